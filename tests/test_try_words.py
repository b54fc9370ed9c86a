"""What `grader try` tells to write: as the script's framework has it, in real processes."""

import sys
import textwrap

import pytest

from grader.own import trying
from grader.own.trying import Lever, Rung
from tests.own_jobs import LOOK

TRAINER = """
    import torch
    def train(model, data):
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4000):
            for x, y in torch.utils.data.DataLoader(data, batch_size=32):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
"""
SCRIPT = """
    import torch
    from {package} import {name} as trainer
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    trainer.train(torch.nn.Linear(8, 1), data)
"""


WORDS = {
    "transformers.trainer": {
        "loader": "TrainingArguments(dataloader_num_workers=1, dataloader_persistent_workers=True, dataloader_prefetch_factor=4)",
        "autocast": "TrainingArguments(bf16=True)",
        "fused": 'TrainingArguments(optim="adamw_torch_fused")',
        "tf32": "TrainingArguments(tf32=True)",
    },
    "skorch.net": {
        "loader": "NeuralNet(iterator_train__num_workers=1, iterator_train__persistent_workers=True, iterator_train__prefetch_factor=4)",
        "fused": "NeuralNet(optimizer__fused=True)",
    },
    "fastai.learner": {"autocast": "learn.to_bf16()"},
    "composer.trainer.trainer": {"autocast": 'Trainer(precision="amp_bf16")'},
}


@pytest.mark.parametrize("module", WORDS)
def test_a_trainer_that_makes_loader_and_optimizer_has_its_own_words(tmp_path, module):
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(textwrap.dedent(TRAINER))
    package, _, name = module.rpartition(".")
    (tmp_path / "job.py").write_text(textwrap.dedent(SCRIPT).format(package=package, name=name))
    rung = Rung(tuple(Lever(lever, lever, "", values={"workers": 1}) for lever in WORDS[module]))
    trying._run(rung, [sys.executable, str(tmp_path / "job.py")], LOOK, tmp_path, 600)
    assert not rung.why_not
    assert rung.to_write == list(WORDS[module].values())
