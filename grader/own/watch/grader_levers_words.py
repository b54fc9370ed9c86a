"""What to write in a script to have a lever: as its framework has it, or at the line of its own that a lever was found at."""

from __future__ import annotations

import os
import sys

import torch

INSTALLED = (__file__, os.__file__, torch.__file__)
FOREIGN = tuple({os.path.dirname(path) for each in INSTALLED for path in (each, os.path.realpath(each))})
PLACED = ("autocast", "compile", "compile_graphs", "fused", "foreach", "loader")  # written where they were found
TRAINERS = {  # a module that calls the model, or makes loaders and optimizers, in place of the script
    "transformers.trainer": {
        "tf32": "TrainingArguments(tf32=True)",
        "autocast": "TrainingArguments({kind}=True)",
        "fused": 'TrainingArguments(optim="adamw_torch_fused")',
        "compile": "TrainingArguments(torch_compile=True)",
        "loader": "TrainingArguments(dataloader_num_workers={workers}, dataloader_persistent_workers=True, dataloader_prefetch_factor={prefetch})",
    },
    "lightning.pytorch.trainer.trainer": {"autocast": 'Trainer(precision="{mixed}")'},
    "pytorch_lightning.trainer.trainer": {"autocast": 'Trainer(precision="{mixed}")'},
    "fastai.learner": {"autocast": "learn.to_{kind}()"},
    "composer.trainer.trainer": {"autocast": 'Trainer(precision="amp_{kind}")'},
    "skorch.net": {
        "fused": "NeuralNet(optimizer__fused=True)",
        "foreach": "NeuralNet(optimizer__foreach=True)",
        "compile": "NeuralNet(compile=True)",
        "loader": "NeuralNet(iterator_train__num_workers={workers}, iterator_train__persistent_workers=True, iterator_train__prefetch_factor={prefetch})",
    },
    "ultralytics.engine.trainer": {"loader": "train(workers={workers})"},
}


def as_written(name: str, write: str, values: dict) -> str:
    """For a lever that was found in the call that runs. values: by which the words of a framework are filled."""
    frame, line = sys._getframe(1), ""
    while frame is not None:
        words = TRAINERS.get(str(frame.f_globals.get("__name__")), {}).get(name)
        if words:
            return words.format(**values)
        if not line and name in PLACED and _of_the_script(frame.f_code.co_filename):
            line = f" ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"
        frame = frame.f_back
    return write + line


def _of_the_script(path: str) -> bool:
    """Not of an installed package, nor of Python."""
    return not path.startswith(("<", *FOREIGN)) and "site-packages" not in path and "dist-packages" not in path
