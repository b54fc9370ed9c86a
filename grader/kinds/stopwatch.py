"""Labs with a benchmark to repair: it runs in a child, on jobs whose sizes are drawn for each grade, and returns a figure for each.
The same job is timed by the parent's clock, before and after. The figure is compared with that."""

import math
import random
import secrets
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grader.grading.arms import Setup, open_arm
from grader.grading.evidence import AnyFindings
from grader.grading.forms import NEEDS_GPU
from grader.grading.gate import machine_is_free
from grader.kinds.shared import drawn_sizes
from grader.labs.lab import AnyLab, Hints, OtherForm
from grader.measure.blocks import QUICK, Arm
from grader.result import INCONCLUSIVE, NOT_MEASURED, CheckResult, Progress, scored, unscored
from grader.sandbox.parent import turn
from grader.sandbox.setting import Limits
from grader.submission import Submission
from grader.workloads.drive import LOAD, LOG

# ---------------------------------------------------------------- the declaration


@dataclass(frozen=True)
class Timing:
    """A job that the submission's benchmark has to time rightly."""

    name: str
    title: str
    points: float
    # the workload's options, and how long its steps wait, see `served`; pairs are drawn between the two for each grade
    sizes: dict[str, Any]
    tells: str  # what a wrong figure for this job comes from, in sentences
    hints: Hints
    form: str = ""  # "cuda" where only a GPU shows it


@dataclass(frozen=True, kw_only=True)
class Clock(OtherForm):
    within: float  # how far off a figure may be, as a share of the grader's own
    workload: str = "grader.workloads.stopwatch"


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
SECONDS, QUICK_SECONDS = 2.5, 1.0  # of each of the two measurements of a job, at least
TRIES = 3  # of a job, where one leaves doubts; the middle one counts
LIMIT_S = 60.0  # for the benchmark, of one job
STEADY = 0.1  # how far the two measurements may be apart, before only a figure that is much further off can be judged


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


def measure(findings: Findings, submission: Submission, plan: Any, limits: Limits | None, progress: Progress) -> None:
    findings.free_bytes = machine_is_free(findings.form_name, findings.ranks)
    findings.seed = secrets.randbelow(1 << 31)
    timings = [timing for timing in findings.lab.timings if findings.lab.measures(timing, findings.form_name)]
    for i, timing in enumerate(timings):
        progress(i / len(timings), f"the job {timing.name!r}")
        tries: list[Figures] = []
        while len(tries) < TRIES and not (tries and _clear(tries[-1], findings.form.within)):
            tries.append(figures(findings, submission, timing, QUICK_SECONDS if plan == QUICK else SECONDS, limits))
        steady = sorted((seen for seen in tries if seen.spread <= STEADY), key=lambda seen: abs(seen.off))
        findings.figures[timing.name] = steady[(len(steady) - 1) // 2] if steady else tries[-1]


def _clear(seen: Figures, within: float) -> bool:
    """Whether one try is enough: the machine was quiet, and the figure is right or far from it."""
    return seen.spread <= within and not within < abs(seen.off) < 3 * within


def figures(
    findings: Findings, submission: Submission, timing: Timing, seconds: float = SECONDS, limits: Limits | None = None
) -> Figures:
    """Time one job for so many seconds, let the benchmark time it, and time it again. Raises ChildError."""
    assert findings.seed is not None
    options = drawn(timing, findings.seed)
    known, waits = served(options)
    setup = Setup(findings.form, findings.form_name, known, [], findings.allow_unconfined, waits=waits)
    with (
        open_arm(SOURCE, setup, trusted=True) as grader_arm,
        open_arm(submission.source, setup, limits) as submission_arm,
    ):
        try:
            submission_arm.child.load("benchmark")
            submission_arm.child.freeze()
            grader_arm.child.load()
            grader_arm.child.start(findings.seed)
            before = _rate(grader_arm, options, seconds)
            grader_arm.child.freeze()
            with turn(submission_arm.child):
                said = submission_arm.child.number("benchmark", findings.seed, LIMIT_S)
            with turn(grader_arm.child):
                after = _rate(grader_arm, options, seconds)
        finally:
            findings.output = submission_arm.child.output()
    return Figures(said, (before, after))


WAITS = ("load_s", "log_s", "pause_every", "pause_s")


def served(sizes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The workload's options, and the seconds that its steps wait, which another process knows: a benchmark that could read them
    would have nothing to measure. Loading a batch takes `load_s`, a log `log_s`, and each `pause_every` steps `pause_s` more."""
    options = {name: size for name, size in sizes.items() if name not in WAITS}
    load_s, log_s, every, pause_s = (sizes.get(name, 0) for name in WAITS)
    waits = {LOAD: [load_s]} if load_s else {}
    if log_s:
        waits[LOG] = [log_s] * max(1, every)
        waits[LOG][-1] += pause_s
    return options | {"loads": LOAD in waits, "logged": LOG in waits}, waits


def drawn(timing: Timing, seed: int | None) -> dict[str, Any]:
    """A job's sizes for a grade. No `last` of its own: all batches are full."""
    chance = random.Random(f"{timing.name} {seed}")
    options = drawn_sizes(chance, timing.sizes)
    if options["last"] is None:
        options["last"] = options["batch_size"]
    return options


def _rate(arm: Arm, options: dict[str, Any], seconds: float) -> float:
    """Samples per second over whole epochs, and whole rounds of what happens every so many steps."""
    batches, size, last = (options[name] for name in ("batches", "batch_size", "last"))
    round_ = math.lcm(batches, options.get("pause_every") or 1)
    if not arm.losses:
        arm.run(2 * batches)
    step_s = arm.run(round_)
    rounds = max(1, math.ceil(seconds / step_s / round_))
    samples_a_step = ((batches - 1) * size + last) / batches
    return samples_a_step / arm.run(rounds * round_)


# ---------------------------------------------------------------- verdicts


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    return [_judge(findings, timing) for timing in findings.lab.timings]


def _judge(findings: Findings, timing: Timing) -> CheckResult:
    if not findings.lab.measures(timing, findings.form_name):
        return unscored(timing, NOT_MEASURED, NEEDS_GPU)
    if stopped := findings.stopped("the benchmark did not run"):
        return unscored(timing, *stopped)
    seen = findings.figures[timing.name]
    within = max(findings.form.within, seen.spread)
    evidence = {
        "benchmark_says": seen.said,
        "grader_measured": list(seen.measured),
        "off": seen.off,
        "within": within,
        "sizes": drawn(timing, findings.seed),
    }
    both = f"The benchmark says {_rounded(seen.said)} samples/s, and the grader measured {_rounded(seen.right)}"
    allowed = f"At most {within:.1%} is allowed"
    if within > findings.form.within:
        allowed += (
            ", because the grader's own two measurements differ by that on this machine. Usually it is "
            f"{findings.form.within:.0%}"
        )
    if seen.spread > STEADY and abs(seen.off) < 3 * seen.spread:
        reason = (
            f"{both}, but its own two measurements differ by {seen.spread:.0%}. This machine is too busy. "
            "Close other programs and check again."
        )
        return unscored(timing, INCONCLUSIVE, reason, evidence)
    if abs(seen.off) <= within:
        reason = f"{both}. That is {abs(seen.off):.1%} off. {allowed}."
        return scored(timing, timing.points, reason, evidence)
    way = "too high" if seen.off > 0 else "too low"
    amount = f"{abs(seen.off):.0%}" if abs(seen.off) < 10 else f"{1 + seen.off:,.0f} times"
    reason = f"{both}. That is {amount} {way}. {allowed}. {timing.tells}"
    return scored(timing, 0, reason, evidence)


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if 1000 <= rate < 1e9 else f"{rate:.4g}"
