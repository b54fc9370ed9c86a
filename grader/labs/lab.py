"""What a lab is: a declaration. No machinery here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Protocol, Self

from grader.errors import UserError
from grader.trace import catalogue, causes

CAUSES = tuple(f"{name}-bound" for name, cause in causes.CAUSES.items() if cause.offered)  # to be predicted


@dataclass(frozen=True)
class Parity:
    """Tolerances of "the same training", calibrated from the reference's own spread (see `grader calibrate`)."""

    steps: int  # the first steps, compared tightly with the starter's from the same seed
    loss: float  # mean relative difference of the loss curve over those steps
    norm: float  # relative difference of the norm of the total update
    cosine: float  # least cosine of the total update with the starter's
    drift: float  # relative difference of the mean of ten losses in a row from the starter's, as long as both run
    # relative difference of the held-out loss from the reference's at the same step, beside the reference's spread over seeds
    held_out: float


@dataclass(frozen=True)
class Answers:
    """Tolerance of "the same answers", in labs that serve requests instead of training."""

    steps: int  # the first requests, compared with the starter's before anything is timed
    # How far looks at the answers (the workload's `Look`) may be from the starter's and the reference solution's, as the root mean
    # square of ten in a row; one wrong answer changes a look by about 1 or more
    within: float


@dataclass(frozen=True)
class Form:
    """How a training loop runs on one kind of device."""

    workload: str  # module with make_job and evaluate, see `grader.workloads`
    options: dict[str, Any]  # their keyword arguments
    data: str  # the data set: "images", "text", "tokens", ... (see `grader.data.prepare`), "" for none
    # Full points need this speed-up where the machine was never calibrated. None where this kind of device cannot show the lab's fix:
    # then only the training is compared, and nothing is scored
    minimum_gain: float | None
    parity: Parity | Answers
    noise: float = 0.03  # least relative sd of a pair of blocks to believe
    block_s: float = 1.5  # of a timed block; shorter ones do where the noise is small
    profiled: int | None = None  # steps of a trace, where they are not the usual few (see `recorded`)
    threads: int | None = None  # of torch and OpenMP, in each process
    environment: dict[str, str] = field(default_factory=dict)
    flops: float | None = None  # that a step cannot do without; a faster step than they allow is rejected
    # seconds that the submission's `prepare(dataset, folder)` may take before the training; None where the lab has no such step
    prepare_s: float | None = None
    prepared_for: int = 1  # optimizer steps that the preparation's time is spread over
    ranks: int = 1  # processes that train together, one a GPU; flops, threads and memory are then of one of them
    exchanged: int | None = None  # numbers that a rank gives to the others in a step, at least
    # bytes copied from the host to the GPU in a step, at least, where the data stand for some that do not fit there
    min_h2d_bytes: int | None = None
    # tokens in one forward pass, where a batch stands for one that does not fit into memory; `flops` must be all matmuls' then
    max_tokens_per_forward: int | None = None
    matrix: int | None = None  # numbers in the model's largest matrix, for `max_tokens_per_forward`
    budget: int | None = None  # bytes that a loop may use, in labs with a `Budget`
    # Bytes of free GPU memory that a grade needs on each GPU, for two loops and CUDA's half GB a process: seen at the peak of a
    # solution's grade on a GPU, with room; calculated where `measured` is ""
    gpu_memory: float = 7e9
    size: str = ""  # of a GPU form in `smaller`: "mid", "small"
    # The GPU on which memory, tolerances and least gain were measured; "" for none yet: no grade takes such a form by itself
    measured: str = "NVIDIA H200"
    # Freed main memory goes back to the system at once: slower, but what a loop keeps can be seen from outside
    exact_memory: bool = False

    def smaller(self, size: str, gpu_memory: float, options: dict[str, Any], measured: str = "", **other: Any) -> Form:
        """This form with other options, for less memory. other: fields that have another value too."""
        changed: dict[str, Any] = {
            "options": self.options | options,
            "size": size,
            "gpu_memory": gpu_memory,
            "measured": measured,
        }
        return replace(self, **changed, **other)

    @property
    def work(self) -> tuple[float, str]:
        """How much a step trains on, and of what: (16384, "tokens"), (256, "images"), (64, "samples"), (1, "requests")."""
        if self.serves:
            return 1, "requests"
        if documents := self.options.get("documents"):
            return sum(documents), "tokens"
        batch = self.options.get("batch_size", 1)
        if "length" in self.options:
            return batch * fmean(self.options.get("lengths") or [self.options["length"]]), "tokens"
        return batch, "images" if "size" in self.options else "samples"

    @property
    def round(self) -> int:
        """Steps after which their work is the same again: batches of several lengths come in turn, and checkpoints."""
        return 1 if self.serves else len(self.options.get("lengths", ())) or self.options.get("every", 1)

    def recorded(self, usual: int) -> int:
        """How many steps a trace holds: whole rounds, so that they take as long on average as those that are timed."""
        if self.min_h2d_bytes is not None:
            usual = max(usual, 24)  # a loop may send up to 12 batches at once
        return self.profiled or math.ceil(usual / self.round) * self.round

    @property
    def serves(self) -> bool:
        """Requests are answered and nothing is trained: there are answers to compare, and no weights."""
        return isinstance(self.parity, Answers)


@dataclass(frozen=True, kw_only=True)
class OtherForm:
    """The form of a lab that is no loop to make faster. Its loop runs in one process, from the beginning."""

    workload: str = ""
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)

    prepare_s: ClassVar[None] = None
    prepared_for: ClassVar[int] = 1
    ranks: ClassVar[int] = 1
    budget: ClassVar[None] = None
    gpu_memory: ClassVar[float] = 7e9
    size: ClassVar[str] = ""
    measured: ClassVar[str] = "NVIDIA H200"
    exact_memory: ClassVar[bool] = False
    round: ClassVar[int] = 1
    serves: ClassVar[bool] = False


AnyForm = Form | OtherForm
Hints = tuple[str, str, str]  # in three depths: a nudge; where to look; what to do, without code to paste


class Check(Protocol):
    """What earns points. It may have `hints`, and `form`: the kind of device that can show it."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def points(self) -> float: ...


@dataclass(frozen=True)
class Throughput:
    points: float
    hints: Hints
    healthy: bool = False  # there is no speed to be won: the points are for a loop that is not slower
    name: str = "throughput"
    title: str = "Throughput"


@dataclass(frozen=True)
class AtLeast:
    """A metric (see `grader.trace.catalogue`) with the count or share from which on it passes."""

    metric: str
    bound: float

    def passes(self, value: float) -> bool:
        return value >= self.bound


@dataclass(frozen=True)
class AtMost:
    """A metric with the count or share up to which it passes."""

    metric: str
    bound: float
    none_at: float | None = None  # the value that earns nothing: from there to the bound points are given in proportion

    def passes(self, value: float) -> bool:
        return value <= self.bound


@dataclass(frozen=True)
class TraceCheck:
    """What the timed process's trace has to show."""

    name: str
    title: str
    points: float
    wanted: AtLeast | AtMost
    hints: Hints
    says: str = ""  # the metric in words, for the report: "of the copied bytes came from pinned memory"; "" for its own
    absent: str = ""  # what a trace without the metric means; where it is said, the check then fails
    # operators that the training process may call outside of its waits for data: with more of them it makes samples there
    most_ops: float | None = None
    wanted_in: dict[str, AtMost] = field(default_factory=dict, hash=False)  # smaller forms, by size, that want something else

    def __post_init__(self) -> None:
        if not self.says:
            object.__setattr__(self, "says", catalogue.METRICS[self.metric].words)

    def in_form(self, size: str) -> TraceCheck:
        """The check as a form of this size has it."""
        return replace(self, wanted=self.wanted_in.get(size, self.wanted))

    @property
    def metric(self) -> str:
        return self.wanted.metric

    @property
    def form(self) -> str:
        """Where its metric can be measured; "" for everywhere."""
        known = catalogue.metric(self.metric)
        return "cuda" if known and known.needs in ("gpu", "step time") else ""


@dataclass(frozen=True)
class Logs:
    """What the loop must go on logging with `job.log` in each step; "loss" must be the loss that the step yielded."""

    names: tuple[str, ...]
    # how far values may be from the starter's; further where rounding has parted the losses (`grader.checks.logs`)
    relative: float = 0.02
    absolute: float = 0.005


@dataclass(frozen=True)
class Checkpoints:
    """What the loop must go on saving on `job.drive`, at every `every`-th step of the form's options."""

    # How far a tensor of the first checkpoint may be from the starter's, as a share of what it moves until the second
    within: float = 0.25


@dataclass(frozen=True)
class Outcome:
    """A gate: the weights must do as well on held-out data as long trainings of the reference solution did after as many steps.

    Worse and better are both suspicious. The band lies in `outcome.json` beside the declaration (`grader calibrate NAME --outcome
    STEPS`); it comes from a few seeds, so it has a least half width."""

    loss: float = 0.02  # a share of the loss
    accuracy: float = 0.02  # a difference of accuracies


@dataclass(frozen=True)
class Growth:
    """Memory must not grow from step to step: the GPU's and main memory together, as seen from outside."""

    points: float
    hints: Hints
    at_most: float  # bytes a step that count as none
    # Bytes that a loop may hold beyond what the starter holds after its first steps: a leak into memory that was taken in advance
    # could not be seen. torch.compile takes some 160 MB of main memory (torch 2.15, an AMD EPYC)
    ahead: int = 1 << 30  # of GPU memory
    ahead_main: int = 300_000_000  # of main memory in one process, where the starter leaks that
    name: str = "growth"
    title: str = "Memory stays level"


@dataclass(frozen=True)
class Budget:
    """A gate and a check: the loop may use `Form.budget` bytes, as seen from outside. Its points follow the measured gain.

    On a GPU beside what CUDA itself takes, on a CPU beside what the process held before its job was made."""

    points: float
    hints: Hints
    beside: int = 1 << 30  # bytes of CUDA's context, at most
    name: str = "budget"
    title: str = "Within the memory budget"


@dataclass(frozen=True)
class Lever:
    """A change that can be named for an `Order`."""

    name: str  # as `grader try --only` has it
    changes: tuple[tuple[str, str], ...]  # of the starter's text


@dataclass(frozen=True)
class Order:
    """Three changes, named in their order: `answers = {"cuda": [...], "cpu": [...]}` beside the loop. The starter is timed with each of
    them in turn, and with those that could have come before it."""

    points: float
    hints: Hints
    levers: tuple[Lever, ...]
    count: int = 3
    pays: float = 1.03  # times as fast, where a change stands
    as_good: float = 1.05  # by what factor a later change may gain more there
    name: str = "order"
    title: str = "Three changes in their order"

    def lever(self, name: str) -> Lever:
        """Raises StopIteration for an unknown name."""
        return next(lever for lever in self.levers if lever.name == name)


@dataclass(frozen=True)
class Prediction:
    """The locked prediction: half the points for the cause, half for the gain (see `grader.checks.prediction.RULE`)."""

    points: float
    factor: float = 1.6  # how far off the gain may be, either way
    name: str = "prediction"
    title: str = "Prediction"


@dataclass(frozen=True, kw_only=True)
class AnyLab:
    """What every kind of lab has. The kinds other than `Lab` are in `grader.kinds`."""

    name: str
    title: str
    phase: int
    goal: str  # one sentence: what to do
    forms: Mapping[str, AnyForm | None]  # by "cuda" or "cpu"; by "traces" where nothing is measured
    smaller: tuple[AnyForm, ...] = ()  # forms for a GPU with less memory than forms["cuda"] needs, largest first
    packages: tuple[str, ...] = ()  # that it needs beside those of the course

    graded_by: ClassVar[str]  # module whose Findings, measure and judge are this kind's grade
    runs_code: ClassVar[bool] = True  # a grade runs a loop in a child
    # the check whose cell holds the whole report in nbgrader's feedback; "" for the first
    report_in: ClassVar[str] = ""
    personal: ClassVar[bool] = False  # what is right depends on whose submission it is

    @property
    def folder(self) -> Path:
        return Path(__file__).parent / self.name

    @property
    def starter(self) -> str:
        """What the submission cell holds at first: source text."""
        return (self.folder / "starter.py").read_text(encoding="utf-8")

    @property
    def checks(self) -> tuple[Check, ...]:
        raise NotImplementedError

    def measures(self, check: Check, form: str) -> bool:
        """Whether a check can be measured in the lab's form for "cuda" or "cpu"."""
        return form in self.forms and getattr(check, "form", "") in ("", form)  # few checks have a form

    def measurable(self, form: str) -> float:
        """Points that can be measured in the lab's form for "cuda" or "cpu", whatever is handed in."""
        return sum(check.points for check in self.checks if self.measures(check, form))

    def ranks(self, form: str) -> int:
        """Processes that train together in a form; 1 where the lab has none of that name."""
        declared = self.forms.get(form)
        return declared.ranks if declared else 1

    @property
    def gpu_forms(self) -> tuple[AnyForm, ...]:
        """Largest first; empty where the lab has none."""
        largest = self.forms.get("cuda")
        return (largest, *self.smaller) if largest else ()

    def sized(self, size: str) -> Self:
        """The lab with one GPU form, that of this size; "" for the largest. Raises UserError for a size that it has not."""
        found = next((form for form in self.gpu_forms if form.size == size), None)
        if found is None and size:
            has = ", ".join(form.size for form in self.smaller) or "none but its full form"
            raise UserError(f"{self.name} has no GPU form {size!r}. Its smaller ones are: {has}.")
        return replace(self, forms={**self.forms, "cuda": found}, smaller=()) if found else self

    def form_key(self, form: str) -> str:
        """What calibrations are kept by: "cuda", "cpu", "cuda small"."""
        declared = self.forms.get(form)
        return f"{form} {declared.size}" if declared and declared.size else form

    @property
    def max_score(self) -> float:
        return sum(c.points for c in self.checks)


@dataclass(frozen=True, kw_only=True)
class Lab(AnyLab):
    """A training loop to make faster: the most common kind."""

    cause: str  # the right prediction, one of CAUSES
    close: tuple[str, ...] = ()  # right as well: what takes about as much of a step, or more of it on some machines
    forms: dict[str, Form]
    throughput: Throughput
    trace: tuple[TraceCheck, ...]
    prediction: Prediction = Prediction(points=10)
    peek: tuple[str, ...]  # names of the counts that `peek` puts first
    logs: Logs | None = None
    checkpoints: Checkpoints | None = None
    memory: Growth | Budget | None = None
    outcome: Outcome | None = None
    order: Order | None = None

    graded_by: ClassVar[str] = "grader.grade"
    report_in: ClassVar[str] = "throughput"

    @property
    def serves(self) -> bool:
        return any(form.serves for form in self.forms.values())

    @property
    def scored_on_both(self) -> bool:
        """On a GPU and on a CPU."""
        return all(form in self.forms and self.forms[form].minimum_gain is not None for form in ("cuda", "cpu"))

    def measures(self, check: Check, form: str) -> bool:
        return super().measures(check, form) and self.forms[form].minimum_gain is not None

    @property
    def checks(self) -> tuple[Check, ...]:
        more: list[Check] = [check for check in (self.memory, self.order) if check]
        return (self.prediction, self.throughput, *more, *self.trace)
