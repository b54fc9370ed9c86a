"""The course's grader. In a notebook: `import grader; lab = grader.lab("2a_workers")`."""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["compare", "lab", "load_ipython_extension", "trace"]

# What the course's notebooks import besides, by module. These names stay where they are, whatever moves around them.
FOR_NOTEBOOKS = {
    "grader": ("lab", "labs", "machine", "nvml", "trace"),
    "grader.data": ("nsys",),
    "grader.data.images": ("draw", "generated"),
    "grader.frontends": ("lesson", "start"),
    "grader.frontends.compare": ("agreement", "text"),
    "grader.frontends.lesson": ("COLORS", "MEASURED", "TRACES"),
    "grader.frontends.ranks": ("Ranks",),
    "grader.frontends.try_levers": ("text",),
    "grader.measure.blocks": ("QUICK", "Plan"),
    "grader.own": ("trying",),
    "grader.own.compare": ("compare",),
    "grader.sandbox.drive": ("Drive",),
    "grader.sandbox.fork_server": ("fork_server",),
    "grader.trace": ("intervals",),
    "grader.trace.operations": ("operations",),
    "grader.trace.roofline": ("peaks",),
    "grader.trace.words": ("BLUE", "FAINT", "GREEN", "ORANGE", "PURPLE", "VERMILION", "plain_number"),
    "grader.workloads": ("gpt",),
    "grader.workloads.drive": ("read",),
    "grader.workloads.gpt": ("GPT",),
    "grader.workloads.job": ("Batches", "Job"),
    "grader.workloads.lengths": ("make_job",),
    "grader.workloads.resnet": ("JpegFiles", "TinyNet"),
    "grader.workloads.trainer": ("CausalLM", "JobTrainer", "TrainingArguments", "optimizer_steps"),
    "grader.workloads.unet": ("UNet",),
}


def lab(name: str, device: str = "auto", quick: bool = False, **more: Any) -> Any:
    """The lab `name` in a notebook (see `NotebookLab`). Registers %%submission. more: what a lab of this kind takes besides."""
    from grader.frontends.notebook import open_lab  # not before: `import grader` must stay light

    return open_lab(name, device=device, quick=quick, **more)


def __getattr__(name: str) -> Any:
    """`grader.compare` (two training loops, see `grader.own.compare`) and `grader.trace`, imported when they are first used."""
    if name == "compare":
        return importlib.import_module("grader.own.compare").compare
    if name == "trace":
        return importlib.import_module("grader.trace")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext grader`: registers %%submission before there is a lab, and %%grader_run."""
    from grader.frontends import magic, run_magic

    magic.install(shell)
    run_magic.install(shell)
