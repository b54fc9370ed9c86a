"""What a lab is: a declaration. No machinery here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

CAUSES = (
    "input-bound",
    "transfer-bound",
    "sync-bound",
    "launch-bound",
    "communication-bound",
    "memory-bound",
    "compute-bound",
)


@dataclass(frozen=True)
class Parity:
    """Tolerances of "the same training", calibrated from the reference's own spread (see `grader calibrate`).

    steps: the first steps, compared tightly with the starter's from the same seed. loss: mean relative difference of
    the loss curve over those steps. norm: relative difference of the norm of the total update. cosine: least cosine of
    the total update with the starter's. drift: mean relative difference of any ten consecutive losses with the
    starter's at the same steps, for as long as both run. held_out: relative difference of the held-out loss of the
    returned weights from the reference's at the same step (beside the reference's own spread over seeds)."""

    steps: int
    loss: float
    norm: float
    cosine: float
    drift: float
    held_out: float


@dataclass(frozen=True)
class Answers:
    """Tolerance of "the same answers", in labs that serve requests in place of training. steps: the first requests, compared
    with the starter's before anything is timed. within: how far looks at a request's answers (the workload's `Look`) may be from
    the starter's and from the reference solution's, as the root mean square of ten in a row; one wrong answer changes a
    look by about 1 or more."""

    steps: int
    within: float


@dataclass(frozen=True)
class Form:
    """How a lab runs on one kind of device.

    workload: module with make_job and evaluate; options: its keyword arguments. data: the data set it needs ("images",
    "text", "tokens", see `grader.data.prepare`; "" for none). minimum_gain: full points need this speed-up where the machine was never calibrated; None
    where this kind of device cannot show the lab's fix: then only the training is compared, and nothing is scored.
    noise: least relative sd of a pair to believe. block_s: seconds of a timed block; where the noise is small, shorter ones do.
    profiled: steps of a trace, where it is not the usual few: one has tens of thousands of events, or loader workers deliver many at a time (see
    `recorded`). flops: floating-point operations that a step cannot do without, at
    least; a faster step than they allow is rejected. prepare_s: seconds that the submission's own
    `prepare(dataset, folder)` may take before the training; None where the lab has no such step. prepared_for: optimizer
    steps that the time it took is spread over. ranks: processes that train together, one a GPU; `flops`, `threads` and
    memory are then of one of them. exchanged: numbers that one of them gives to the others in a step, at least. min_h2d_bytes: bytes that are
    copied from the host to the GPU in a step, at least, where the data stand for some that do not fit there. max_tokens_per_forward: tokens that
    one forward pass may take, where a batch stands for one that does not fit into memory; it needs `flops`, which must be those
    of all matrix products then, and matrix: numbers in the model's largest matrix. budget:
    bytes of memory that a loop may use in labs with a `Budget`, see there. gpu_memory: bytes of free GPU memory that a grade needs on each
    GPU, for two loops: seen at the peak of a solution's grade on an NVIDIA H200 (torch 2.11), the half GB and more that CUDA takes for a
    process included. exact_memory: main memory that a loop frees goes
    back to the system at once (slower, but what it keeps can be seen from outside, where the C library would keep what was
    freed)."""

    workload: str
    options: dict[str, Any]
    data: str
    minimum_gain: float | None
    noise: float
    parity: Parity | Answers
    block_s: float = 1.5
    profiled: int | None = None
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    flops: float | None = None
    prepare_s: float | None = None
    prepared_for: int = 1
    ranks: int = 1
    exchanged: int | None = None
    min_h2d_bytes: int | None = None
    max_tokens_per_forward: int | None = None
    matrix: int | None = None
    budget: int | None = None
    gpu_memory: float = 7e9
    exact_memory: bool = False

    @property
    def work(self) -> tuple[float, str]:
        """How much an optimizer step trains on, and what it is: (16384, "tokens"), (256, "images"), (64, "samples"). Where
        nothing is trained a step answers one request."""
        if self.serves:
            return 1, "requests"
        batch = self.options.get("batch_size", 1)
        if "length" in self.options:
            return batch * fmean(self.options.get("lengths") or [self.options["length"]]), "tokens"
        return batch, "images" if "size" in self.options else "samples"

    @property
    def round(self) -> int:
        """Steps after which their work is the same again: batches of several lengths come in turn."""
        return 1 if self.serves else len(self.options.get("lengths", ())) or 1

    def recorded(self, usual: int) -> int:
        """How many steps a trace holds: whole rounds, so that they are as long, on average, as those that are timed; and of
        loops that may send up to 12 batches at once, where it is counted what is sent."""
        if self.min_h2d_bytes is not None:
            usual = max(usual, 24)
        return self.profiled or math.ceil(usual / self.round) * self.round

    @property
    def serves(self) -> bool:
        """Requests are answered and nothing is trained: there are answers to compare, and no weights."""
        return isinstance(self.parity, Answers)


Hints = tuple[str, str, str]  # in three depths: a nudge; where to look; what to do, without code to paste


@dataclass(frozen=True)
class Throughput:
    """healthy: there is no speed to be won, and the points are for a loop that is not slower."""

    points: float
    hints: Hints
    healthy: bool = False
    name: str = "throughput"
    title: str = "Throughput"


@dataclass(frozen=True)
class TraceCheck:
    """A metric of the trace of the timed process (see `grader.trace.Metrics`) with the value that passes: a count or a
    share, never milliseconds. form: where it can be measured; "" for everywhere. none_at: where the points
    are given in parts, the value that earns none: from there to `at_most` in proportion. absent: what it means that a trace holds
    nothing to read the metric from; where it is said, the check then fails. most_ops: how many operators the training process
    may call outside of its waits for data; with more of them it makes samples there."""

    name: str
    title: str
    points: float
    metric: str
    says: str  # the metric in words, for the report: "of the copied bytes came from pinned memory"
    hints: Hints
    at_least: float | None = None
    at_most: float | None = None
    form: str = ""
    none_at: float | None = None
    absent: str = ""
    most_ops: float | None = None


@dataclass(frozen=True)
class Logs:
    """What the loop must go on logging with `job.log`: `names`, each step, the values those of the starter within
    `relative` of them and `absolute`; wider where the losses have parted by rounding (`grader/checks/logs.py`). The name "loss"
    must be the loss that the step yielded."""

    names: tuple[str, ...]
    relative: float = 0.02
    absolute: float = 0.005


@dataclass(frozen=True)
class Outcome:
    """The returned weights must do as well on held-out data as long trainings of the reference solution did after as many
    steps; worse and better are both suspicious. A gate like parity. The band comes from a few seeds and lies in `outcome.json` beside the declaration, made by
    `grader calibrate NAME --outcome STEPS`. loss: half the band's width at least, as a share of the loss. accuracy: the
    same, as a difference of accuracies."""

    loss: float = 0.02
    accuracy: float = 0.02


@dataclass(frozen=True)
class Growth:
    """The memory of the loop must not grow from step to step: the GPU's and main memory together, as it is seen from
    outside. at_most: bytes a step that count as none. ahead: bytes of GPU memory that a loop may hold beyond what the
    starter holds after its first steps (a leak into memory that was taken in advance could not be seen); ahead_main: of main
    memory, in one process, where that is what the starter leaks (torch.compile takes some 160 MB: torch 2.15, an AMD EPYC)."""

    points: float
    hints: Hints
    at_most: float
    ahead: int = 1 << 30
    ahead_main: int = 300_000_000
    name: str = "growth"
    title: str = "Memory stays level"


@dataclass(frozen=True)
class Budget:
    """The loop may use `Form.budget` bytes, as they are seen from outside: of GPU memory, beside what CUDA itself takes
    (`beside`: bytes of its context at most); on a CPU of main memory, beside what the process held before its job was
    made. A gate as well: without it there are no points for throughput or trace, and its own are as many as the measured gain supports."""

    points: float
    hints: Hints
    beside: int = 1 << 30
    name: str = "budget"
    title: str = "Within the memory budget"


@dataclass(frozen=True)
class Prediction:
    """The locked prediction: half the points for the cause, half for the gain, within `factor` either way (see
    `grader.checks.prediction.RULE`)."""

    points: float
    factor: float = 1.6
    name: str = "prediction"
    title: str = "Prediction"


@dataclass(frozen=True, kw_only=True)
class AnyLab:
    """What every kind of lab has. The kinds other than `Lab` are in `grader.kinds`.

    graded_by: module whose Findings, measure and judge are this kind's grade (see `grader.grade`). runs_code: a grade runs
    a loop in a child. report_in: the check whose cell holds the whole report in nbgrader's feedback; "" for the first.
    personal: what is right depends on whose submission it is. packages: that this lab needs beside those of the course."""

    name: str
    title: str
    phase: int
    goal: str  # one sentence: what to do
    forms: dict[str, Any]  # by "cuda" or "cpu"; by "traces" where nothing is measured
    packages: tuple[str, ...] = ()

    graded_by: ClassVar[str]
    runs_code: ClassVar[bool] = True
    report_in: ClassVar[str] = ""
    personal: ClassVar[bool] = False

    @property
    def folder(self) -> Path:
        return Path(__file__).parent / self.name

    @property
    def starter(self) -> str:
        """What the submission cell holds at first: source text."""
        return (self.folder / "starter.py").read_text(encoding="utf-8")

    @property
    def checks(self) -> tuple[Any, ...]:
        """Each has name, title and points, and hints where it has some; form, where it needs a GPU ("cuda")."""
        raise NotImplementedError

    def measures(self, check: Any, form: str) -> bool:
        """Whether a check can be measured in the lab's form for "cuda" or "cpu"."""
        return form in self.forms and getattr(check, "form", "") in ("", form)

    @property
    def max_score(self) -> float:
        return sum(c.points for c in self.checks)


@dataclass(frozen=True, kw_only=True)
class Lab(AnyLab):
    """A training loop to make faster: the most common kind."""

    cause: str  # the right prediction, one of CAUSES
    forms: dict[str, Form]
    throughput: Throughput
    trace: tuple[TraceCheck, ...]
    prediction: Prediction
    peek: tuple[str, ...]  # names of the counts that `peek` puts first
    logs: Logs | None = None
    memory: Growth | Budget | None = None
    outcome: Outcome | None = None

    graded_by: ClassVar[str] = "grader.grade"
    report_in: ClassVar[str] = "throughput"

    @property
    def serves(self) -> bool:
        return any(form.serves for form in self.forms.values())

    @property
    def scored_on_both(self) -> bool:
        """On a GPU and on a CPU."""
        return all(form in self.forms and self.forms[form].minimum_gain is not None for form in ("cuda", "cpu"))

    def measures(self, check: Any, form: str) -> bool:
        return super().measures(check, form) and self.forms[form].minimum_gain is not None

    @property
    def checks(self) -> tuple[Any, ...]:
        return (self.prediction, self.throughput, *([self.memory] if self.memory else []), *self.trace)
