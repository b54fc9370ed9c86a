"""The kinds of labs that are no training loops to make faster: declarations, no machinery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from grader.labs.lab import AnyLab, Form, Hints

HEALTHY = "healthy"  # the answer where no cause stands out: the GPU is busy with what it has to do

# ---------------------------------------------------------------- questions about recorded traces


@dataclass(frozen=True)
class Cause:
    """What holds the step back: one of CAUSES, or "healthy"."""

    points: float
    key: str = "cause"


@dataclass(frozen=True)
class Number:
    """A number to read, or to work out, from the trace. value: which (see `grader.answers.value`). within: how far off it
    may be, as a share of the right one; of shares, which lie between 0 and 1, the difference itself."""

    key: str
    points: float
    value: str
    within: float
    share: bool = False


@dataclass(frozen=True)
class Place:
    """Where in the loop: a phase ("bwd"), or a source line ("train.py:41") where the trace has stacks."""

    key: str
    points: float
    lines: bool = False


@dataclass(frozen=True)
class Question:
    """One trace of `data/traces`, and what is asked about it. The right answers are computed from it when it is graded."""

    name: str  # what the learner knows it by: "a"
    trace: str  # its file, without the ending
    parts: tuple[Cause | Number | Place, ...]
    hints: Hints

    @property
    def title(self) -> str:
        return f"Trace {self.name}"

    @property
    def points(self) -> float:
        return sum(part.points for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class AnswersLab(AnyLab):
    """Questions about recorded traces. The submission is a dictionary of literals, which is read and never executed."""

    questions: tuple[Question, ...]
    forms: dict[str, Any] = field(default_factory=lambda: {"traces": None})

    graded_by: ClassVar[str] = "grader.answers"
    runs_code: ClassVar[bool] = False

    @property
    def checks(self) -> tuple[Question, ...]:
        return self.questions


# ---------------------------------------------------------------- live loops with a planted cause


@dataclass(frozen=True)
class Mystery:
    """A loop with a cause planted. case and sizes: what `grader.workloads.mystery` makes it of; each size is drawn between
    two whole numbers or, for those that are none, two others. data: the data set it needs."""

    cause: str
    case: str
    sizes: dict[str, tuple[float, float]]
    data: str = ""


@dataclass(frozen=True)
class Mysteries:
    """The loops to draw from on one kind of device. repeated: a cause may be drawn twice."""

    choices: tuple[Mystery, ...]
    repeated: bool = False
    workload: str = "grader.workloads.mystery"
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unknown:
    """One of the live loops."""

    name: str  # "1"
    points: float  # for its cause
    hints: Hints

    @property
    def title(self) -> str:
        return f"Loop {self.name}"


@dataclass(frozen=True)
class Proof:
    """For each loop a number that shows its cause: half the points for the right metric, half for its value."""

    points: float  # of all loops together
    hints: Hints
    name: str = "evidence"
    title: str = "Evidence"


@dataclass(frozen=True, kw_only=True)
class MysteryLab(AnyLab):
    """Live loops to be diagnosed. Which cause sits in which follows from the ticket in the answers. ticket: of whoever works
    on them, where that is known; answers for another one's loops are then not graded."""

    forms: dict[str, Mysteries]
    loops: tuple[Unknown, ...]
    evidence: Proof
    ticket: str = ""

    graded_by: ClassVar[str] = "grader.mystery"
    personal: ClassVar[bool] = True

    @property
    def checks(self) -> tuple[Any, ...]:
        return (*self.loops, self.evidence)


# ---------------------------------------------------------------- the costliest operations of a loop

BOUNDS = {
    "compute": "its arithmetic, at the peak of the units it runs on, takes longer than its bytes",
    "memory": "its bytes, at the memory's peak, take longer than its arithmetic",
    "launch": "its kernels are so many and so short that launching them takes longer than running them",
}
REASONS = {
    "slow units": "matrix products on the ordinary units, though there are tensor cores",
    "tiny kernels": "20 kernels a step or more, of less than 10 us each in the mean",
    "at its roof": "it needs less than twice the time that its arithmetic and bytes need at the peaks",
    "below its roof": "it needs more than twice that time: its sizes, its layout, or one pass over memory after another",
}


@dataclass(frozen=True)
class Costly:
    """One of the operations with most GPU time: which it is, the line that asks for it, one of BOUNDS, one of REASONS."""

    name: str  # "1"
    hints: Hints
    operation: float = 6  # points for each part
    line: float = 9
    bound: float = 7
    cause: float = 8

    @property
    def title(self) -> str:
        return f"Operation {self.name}"

    @property
    def points(self) -> float:
        return self.operation + self.line + self.bound + self.cause


@dataclass(frozen=True)
class Together:
    """The share of the GPU's busy time that the costliest operations have together, right within `within`."""

    points: float
    hints: Hints
    within: float = 0.03
    name: str = "share"
    title: str = "Their share of the GPU's time"


@dataclass(frozen=True)
class Watched:
    """A loop of the course's own, which is recorded when it is asked for. Its workload is `grader.workloads.mystery`'s form:
    a job that brings its loop."""

    workload: str
    options: dict[str, Any]
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """A trace of `data/traces`, recorded with stacks."""

    trace: str


@dataclass(frozen=True, kw_only=True)
class CostsLab(AnyLab):
    """The costliest operations of a loop of the course's own, to be mapped to its lines and explained. The answers say which
    trace they are about: "live", recorded anew by the grade, or "recorded". They are read and never executed."""

    forms: dict[str, Any]  # "cuda": Watched, "traces": Kept
    operations: tuple[Costly, ...]
    together: Together

    graded_by: ClassVar[str] = "grader.costs"

    @property
    def checks(self) -> tuple[Any, ...]:
        return (*self.operations, self.together)


# ---------------------------------------------------------------- a benchmark that has to be right


@dataclass(frozen=True)
class Timing:
    """A job that the submission's benchmark has to time rightly. sizes: the workload's options; those that are pairs are
    drawn between the two for each grade. tells: what a wrong figure for this job comes from. form: "cuda" where only a GPU
    shows it."""

    name: str
    title: str
    points: float
    sizes: dict[str, Any]
    tells: str
    hints: Hints
    form: str = ""


@dataclass(frozen=True)
class Clock:
    """How a form is measured. within: how far off a figure may be, as a share of the grader's own."""

    within: float
    workload: str = "grader.workloads.stopwatch"
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StopwatchLab(AnyLab):
    """A benchmark to repair: its figure for each job must agree with what the grader measures itself."""

    forms: dict[str, Clock]
    timings: tuple[Timing, ...]

    graded_by: ClassVar[str] = "grader.stopwatch"

    @property
    def checks(self) -> tuple[Timing, ...]:
        return self.timings


# ---------------------------------------------------------------- a kernel to be written


@dataclass(frozen=True)
class Cases:
    """Inputs on which the submission's function must be right, by what they are called in the report: the workload's
    options, of which pairs are drawn between the two for each grade. Each of them earns its share of the points."""

    name: str
    title: str
    points: float
    sizes: dict[str, dict[str, Any]]
    hints: Hints


@dataclass(frozen=True)
class Roof:
    """The function's share of the speed at which this machine moves the bytes that it cannot do without. All points from
    `at_least` on, none for the share of the plain operations one after the other."""

    points: float
    at_least: float
    hints: Hints
    name: str = "roof"
    title: str = "Share of the bandwidth roof"
    form: str = "cuda"


@dataclass(frozen=True)
class Bench:
    """How a form is measured. timed: the workload's options for the calls that are timed; None where nothing is. calls: of
    a function in a round. noise: least relative sd of a round to believe."""

    timed: dict[str, Any] | None
    calls: int = 200
    rounds: int = 7
    noise: float = 0.005
    workload: str = "grader.workloads.chain"
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class KernelLab(AnyLab):
    """A function to be written as one kernel: right in all cases, and as fast as the memory allows. entry: its name."""

    forms: dict[str, Bench]
    entry: str
    cases: tuple[Cases, ...]
    roof: Roof

    graded_by: ClassVar[str] = "grader.kernel"

    @property
    def checks(self) -> tuple[Any, ...]:
        return (*self.cases, self.roof)

    def measures(self, check: Any, form: str) -> bool:
        return form in self.forms and (check is not self.roof or self.forms[form].timed is not None)


# ---------------------------------------------------------------- a loop to be annotated


@dataclass(frozen=True)
class Recorded:
    """The recording that is asked for: so many steps skipped, warmed up and recorded, once."""

    points: float
    hints: Hints
    wait: int = 10
    warmup: int = 2
    active: int = 4
    name: str = "window"
    title: str = "The right steps are recorded"


@dataclass(frozen=True)
class Phases:
    """Each of PHASES marked once a step around what it names; the points are shared among them."""

    points: float
    hints: Hints
    name: str = "phases"
    title: str = "Five phases, each around its own work"


@dataclass(frozen=True)
class Cost:
    """Outside of the recorded window the loop may lose `at_most` of its speed, by form, and gain no more: a speed-up would hide
    what is lost."""

    points: float
    hints: Hints
    at_most: dict[str, float]
    name: str = "cost"
    title: str = "It costs nothing afterwards"


@dataclass(frozen=True, kw_only=True)
class AnnotateLab(AnyLab):
    """A loop that has to record a trace of itself, with phases, and to stay as fast."""

    forms: dict[str, Form]
    window: Recorded
    phases: Phases
    cost: Cost

    graded_by: ClassVar[str] = "grader.annotate"

    @property
    def checks(self) -> tuple[Any, ...]:
        return (self.window, self.phases, self.cost)
