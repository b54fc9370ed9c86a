"""A lab in a notebook: `lab = grader.lab("2a_workers")` and what one does with it. Each kind of lab has its own tools."""

from typing import Any

from grader import labs
from grader.frontends.notebook.base import NotebookLab
from grader.frontends.notebook.live import LiveLab
from grader.frontends.notebook.loop import LoopLab
from grader.frontends.notebook.operations import OperationsLab
from grader.frontends.notebook.own_code import BenchmarkLab, OwnKernelLab, RecordingLab
from grader.frontends.notebook.traces import TracesLab
from grader.kinds.annotate import AnnotateLab
from grader.kinds.answers import AnswersLab
from grader.kinds.costs import CostsLab
from grader.kinds.kernel import KernelLab
from grader.kinds.mystery import MysteryLab
from grader.kinds.stopwatch import StopwatchLab
from grader.labs.lab import AnyLab, Lab

TOOLS: dict[type[AnyLab], type[NotebookLab]] = {
    Lab: LoopLab,
    AnswersLab: TracesLab,
    MysteryLab: LiveLab,
    CostsLab: OperationsLab,
    StopwatchLab: BenchmarkLab,
    KernelLab: OwnKernelLab,
    AnnotateLab: RecordingLab,
}


def open_lab(name: str, device: str = "auto", quick: bool = False, **more: Any) -> NotebookLab:
    """The lab `name` with the tools of its kind; more: what these take besides."""
    return TOOLS[type(labs.get(name))](name, device=device, quick=quick, **more)
