"""The course in the order in which it is learned: what the start notebook's map shows.

A new lesson or lab is one line of `PHASES`. Titles and goals are not repeated here: a lesson's is its first heading, a
lab's stands in its declaration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader import labs
from grader.frontends import board

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = REPOSITORY / "notebooks"


@dataclass(frozen=True)
class Lesson:
    path: str  # below notebooks/, without .ipynb

    @property
    def file(self) -> Path:
        return NOTEBOOKS / f"{self.path}.ipynb"

    @property
    def title(self) -> str:
        """The notebook's first heading, as plain text. Learners open lessons in place: where one has none left, its path."""
        try:
            cells = json.loads(self.file.read_text(encoding="utf-8"))["cells"]
            text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        except (OSError, ValueError, LookupError, TypeError):
            return self.path
        heading = next((line for line in text.splitlines() if line.startswith("# ")), f"# {self.path}")
        return heading[2:].strip().replace("`", "")


@dataclass(frozen=True)
class Lab:
    name: str  # one of grader.labs.NAMES
    core: bool = False  # on the core path; all others are electives

    @property
    def file(self) -> Path:
        """The learner's own copy; it need not be there yet."""
        return REPOSITORY / "work" / self.name / f"{self.name}.ipynb"

    @property
    def declared(self) -> Any:
        return labs.get(self.name)


@dataclass(frozen=True)
class Phase:
    title: str
    milestone: str  # what one can do at its end
    stops: tuple[Lesson | Lab, ...]


PHASES = (
    Phase(
        "Phase 1: See it",
        "Say of a training loop that you have never seen whether its input or the GPU holds it back, in ten minutes.",
        (
            Lesson("1_instrumentation/1_throughput"),
            Lab("1a_stopwatch"),
            Lesson("1_instrumentation/2_utilisation"),
            Lesson("1_instrumentation/3_profilers"),
            Lab("1b_annotate"),
            Lesson("1_instrumentation/4_trace"),
            Lab("1c_diagnose", core=True),
            Lesson("1_instrumentation/5_baseline"),
            Lab("1d_mystery", core=True),
            Lab("1e_retest"),
        ),
    ),
    Phase(
        "Phase 2: Feed the GPU",
        "The gaps in which the GPU has nothing to do get shorter, and you can say why.",
        (
            Lesson("2_data/1_disk_to_gpu"),
            Lesson("2_data/2_dataloader"),
            Lab("2a_workers", core=True),
            Lesson("2_data/3_overlap"),
            Lab("2b_transfers"),
            Lesson("2_data/4_transforms"),
            Lab("2c_transforms"),
            Lesson("2_data/5_formats"),
            Lab("2d_formats"),
            Lesson("2_data/6_syncs"),
            Lab("2e_syncs"),
            Lab("2f_end_to_end", core=True),
            Lab("2g_healthy"),
            Lab("2h_retest"),
        ),
    ),
    Phase(
        "Phase 3: Make the step itself fast",
        "Map the three most expensive operations of a trace to lines of code, and say why they cost what they cost.",
        (
            Lesson("3_step/1_roofline"),
            Lab("3b_top_ops", core=True),
            Lesson("3_step/2_precision"),
            Lab("3a_precision", core=True),
            Lab("3m_fp16"),
            Lesson("3_step/3_shapes"),
            Lab("3c_shapes"),
            Lesson("3_step/4_launches"),
            Lab("3d_tiny_ops"),
            Lesson("3_step/5_compile"),
            Lab("3e_compile"),
            Lesson("3_step/6_attention"),
            Lab("3f_attention"),
            Lesson("3_step/7_memory"),
            Lab("3g_leak"),
            Lesson("3_step/8_fit"),
            Lab("3h_fit"),
            Lesson("3_step/9_kernels"),
            Lab("3i_triton"),
            Lesson("3_step/10_communication"),
            Lab("3j_communication"),
            Lab("3k_healthy"),
            Lab("3l_retest"),
        ),
    ),
    Phase(
        "Phase 4: Real models, fast",
        "Take a real training job that is slow in many ways at once, choose your own order, and train the same model many times faster.",
        (
            Lesson("4_models/1_own_loop"),
            Lab("4a_resnet50", core=True),
            Lab("4b_nanogpt", core=True),
            Lab("4c_unet"),
            Lab("4d_trainer"),
            Lab("4e_inference"),
            Lesson("4_models/2_rules"),
            Lesson("4_models/3_order"),
        ),
    ),
)


@dataclass(frozen=True)
class Progress:
    """How far a learner has come with a lab on this machine, from the last report beside the working copy, and the attempts."""

    begun: bool  # there is a working copy
    score: float | None = None  # of the last grade; None where there is none
    most: float | None = None  # all points of the lab
    measured: float | None = None  # those that this machine could measure
    quick: bool = False  # a grade with quick measurements, not for marks
    date: str = ""
    best: float | None = None  # score of the best grade, quick ones left out where there are others
    best_quick: bool = False


def progress(lab: Lab) -> Progress:
    """Read from `work/`; a report that cannot be read counts as none."""
    begun = lab.file.exists()
    try:
        report = json.loads((lab.file.parent / f"report-{lab.name}.json").read_text(encoding="utf-8"))
        numbers = [float(report[key]) for key in ("score", "max_score", "measured_max")]
        quick, date = bool(report.get("quick")), str(report.get("date", ""))[:10]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Progress(begun)
    grades = [(not quick, numbers[0])]
    grades += [
        (not each["quick"], each["points"])
        for each in board.read(board.file_of(lab.file.parent, lab.name))
        if each["points"] is not None and each["lab"] == lab.name
    ]
    full, best = max(grades)
    return Progress(begun, *numbers, quick=quick, date=date, best=best, best_quick=not full)


def stops(kind: type) -> list[Any]:
    """All lessons, or all labs, in order."""
    return [stop for phase in PHASES for stop in phase.stops if isinstance(stop, kind)]
