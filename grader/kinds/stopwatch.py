"""Grades a benchmark: it runs in a child, on jobs whose sizes are drawn for this grade, and returns one number for each. The
same job is timed here, by the parent's clock, before and after. The number is compared and otherwise not believed."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grader.grading.arms import Setup, open_arm
from grader.grading.evidence import AnyFindings
from grader.grading.forms import NEEDS_GPU
from grader.grading.gate import machine_is_free
from grader.labs.lab import AnyLab, Hints, OtherForm
from grader.measure.blocks import QUICK, Arm
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Progress, unscored
from grader.sandbox.parent import turn
from grader.sandbox.setting import Limits
from grader.submission import Submission

# ---------------------------------------------------------------- the declaration


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
class Clock(OtherForm):
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

    graded_by: ClassVar[str] = "grader.kinds.stopwatch"

    @property
    def checks(self) -> tuple[Timing, ...]:
        return self.timings


SOURCE = """
def train(job):
    while True:
        for inputs, labels in job.loader:
            yield job.step(inputs, labels)
"""
SECONDS, QUICK_SECONDS = 2.5, 1.0  # of each of our own two measurements of a job, at least
TRIES = 3  # of a job, where one leaves doubts; the middle one counts
LIMIT_S = 60.0  # for the benchmark, of one job
STEADY = 0.1  # how far our two measurements may be apart, before only a figure that is much further off can be judged


@dataclass(frozen=True)
class Figures:
    """Samples per second: what the benchmark said, and what was measured here before and after it ran."""

    said: float
    measured: tuple[float, float]

    @property
    def right(self) -> float:
        return sum(self.measured) / 2

    @property
    def off(self) -> float:
        return self.said / self.right - 1

    @property
    def spread(self) -> float:
        return abs(self.measured[0] - self.measured[1]) / self.right


@dataclass
class Findings(AnyFindings):
    lab: StopwatchLab
    figures: dict[str, Figures] = field(default_factory=dict)


def measure(found: Findings, submission: Submission, plan: Any, limits: Limits | None, progress: Progress) -> None:
    found.free_bytes = machine_is_free(found.form_name, found.ranks)
    found.seed = secrets.randbelow(1 << 31)
    timings = [timing for timing in found.lab.timings if found.lab.measures(timing, found.form_name)]
    for i, timing in enumerate(timings):
        progress(i / len(timings), f"the job {timing.name!r}")
        tries: list[Figures] = []
        while len(tries) < TRIES and not (tries and _clear(tries[-1], found.form.within)):
            tries.append(figures(found, submission, timing, QUICK_SECONDS if plan == QUICK else SECONDS, limits))
        steady = sorted((seen for seen in tries if seen.spread <= STEADY), key=lambda seen: abs(seen.off))
        found.figures[timing.name] = steady[(len(steady) - 1) // 2] if steady else tries[-1]


def _clear(seen: Figures, within: float) -> bool:
    """Whether one try is enough: the machine was quiet, and the figure is right or far from it."""
    return seen.spread <= within and not within < abs(seen.off) < 3 * within


def figures(
    found: Findings, submission: Submission, timing: Timing, seconds: float = SECONDS, limits: Limits | None = None
) -> Figures:
    """Time one job for so many seconds, let the benchmark time it, and time it again. Raises ChildError."""
    options = drawn(timing, found.seed)
    with (
        _child(found, SOURCE, options, None, trusted=True) as ours,
        _child(found, submission.source, options, limits) as theirs,
    ):
        try:
            theirs.child.load("benchmark")
            theirs.child.freeze()
            ours.child.load()
            ours.child.start(found.seed)
            before = _rate(ours, options, seconds)
            ours.child.freeze()
            with turn(theirs.child):
                said = theirs.child.number("benchmark", found.seed, LIMIT_S)
            with turn(ours.child):
                after = _rate(ours, options, seconds)
        finally:
            found.output = theirs.child.output()
    return Figures(said, (before, after))


def drawn(timing: Timing, seed: int | None) -> dict[str, Any]:
    """The workload's options for a grade: pairs of whole numbers or of others become one between them. No `last` of its own:
    all batches are full."""
    chance = random.Random(f"{timing.name} {seed}")
    options = {}
    for name, size in timing.sizes.items():
        if isinstance(size, tuple):
            low, high = size
            size = chance.randint(low, high) if isinstance(low, int) else round(chance.uniform(low, high), 5)
        options[name] = size
    if options["last"] is None:
        options["last"] = options["batch_size"]
    return options


@contextmanager
def _child(
    found: Findings, source: str, options: dict[str, Any], limits: Limits | None, trusted: bool = False
) -> Iterator[Arm]:
    setup = Setup(found.form, found.form_name, options, [], found.allow_unconfined)
    with open_arm(source, setup, limits, trusted=trusted) as child:
        yield child


def _rate(ours: Arm, options: dict[str, Any], seconds: float) -> float:
    """Samples per second over whole epochs, and whole rounds of what happens every so many steps."""
    batches, size, last = (options[name] for name in ("batches", "batch_size", "last"))
    round_ = math.lcm(batches, options.get("pause_every") or 1)
    if not ours.losses:
        ours.run(2 * batches)
    step_s = ours.run(round_)
    rounds = max(1, math.ceil(seconds / step_s / round_))
    samples_a_step = ((batches - 1) * size + last) / batches
    return samples_a_step / ours.run(rounds * round_)


# ---------------------------------------------------------------- verdicts


def judge(found: Findings, submission: Submission) -> list[CheckResult]:
    return [_judge(found, timing) for timing in found.lab.timings]


def _judge(found: Findings, timing: Timing) -> CheckResult:
    if not found.lab.measures(timing, found.form_name):
        return unscored(timing, NOT_MEASURED, NEEDS_GPU)
    if found.fatal:
        return unscored(timing, FAIL, "Not counted: the benchmark did not run (see above).")
    if found.disturbed:
        return unscored(timing, INCONCLUSIVE, f"Not measured: {found.disturbed} {found.advice}")
    seen = found.figures[timing.name]
    within = max(found.form.within, seen.spread)
    evidence = {
        "benchmark_says": seen.said,
        "grader_measured": list(seen.measured),
        "off": seen.off,
        "within": within,
        "sizes": drawn(timing, found.seed),
    }
    both = f"The benchmark says {_rounded(seen.said)} samples/s, the grader measured {_rounded(seen.right)}"
    allowed = f"at most {within:.1%}"
    if within > found.form.within:
        allowed += (
            f", as much as the grader's own two measurements differ on this machine (else {found.form.within:.0%})"
        )
    if seen.spread > STEADY and abs(seen.off) < 3 * seen.spread:
        reason = (
            f"{both}, but its own two measurements differ by {seen.spread:.0%}: this machine is too busy. Close other programs "
            "and check again."
        )
        return unscored(timing, INCONCLUSIVE, reason, evidence)
    if abs(seen.off) <= within:
        reason = f"{both}: {abs(seen.off):.1%} off ({allowed})."
        return CheckResult(timing.name, timing.title, PASS, timing.points, timing.points, reason, "", evidence)
    way = "too high" if seen.off > 0 else "too low"
    amount = f"{abs(seen.off):.0%}" if abs(seen.off) < 10 else f"{1 + seen.off:,.0f} times"
    reason = f"{both}: {amount} {way} ({allowed}). Mind that {timing.tells}."
    hint, *deeper = timing.hints
    return CheckResult(timing.name, timing.title, FAIL, 0, timing.points, reason, hint, evidence, deeper)


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if 1000 <= rate < 1e9 else f"{rate:.4g}"
