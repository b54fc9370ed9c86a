"""Labs with a loop that records a trace of itself: graded are the trace, read as untrusted bytes, and what the loop then loses."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from grader import trace
from grader.grading.arms import MAX_TRACE, open_arm, set_up
from grader.grading.evidence import AnyFindings
from grader.grading.first_steps import first_steps, warm_up
from grader.grading.gate import machine_is_free
from grader.labs.lab import AnyLab, Form, Hints
from grader.measure import decision
from grader.measure.blocks import Arm, Plan, pair
from grader.result import FAIL, INCONCLUSIVE, CheckResult, Progress, scored, silent, unscored
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import turn
from grader.sandbox.setting import Limits
from grader.submission import Submission
from grader.trace.columns import Trace
from grader.trace.events import ANNOTATION, CPU_OP
from grader.trace.kernels import MATMUL_OP
from grader.trace.metrics import PHASES

# ---------------------------------------------------------------- the declaration


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
    """What the loop may lose of its speed outside of the recorded window."""

    points: float
    hints: Hints
    at_most: dict[str, float]  # by form; it may gain no more either, for a speed-up would hide what is lost
    name: str = "cost"
    title: str = "It costs nothing afterwards"


@dataclass(frozen=True, kw_only=True)
class AnnotateLab(AnyLab):
    """A loop that has to record a trace of itself, with phases, and to stay as fast."""

    forms: dict[str, Form]
    window: Recorded
    phases: Phases
    cost: Cost

    graded_by: ClassVar[str] = "grader.kinds.annotate"

    @property
    def checks(self) -> tuple[Recorded | Phases | Cost, ...]:
        return (self.window, self.phases, self.cost)


FILE = "own.json"  # in the exchange folder: job.trace
# What must have happened within a phase, by the names that torch itself gives.
WITHIN = {
    "data_wait": ((r"enumerate\(DataLoader\)#", "the DataLoader's __next__"),),
    "h2d": ((r"aten::(to|_to_copy|copy_)$", "a tensor's .to(...)"),),
    "fwd": ((MATMUL_OP.pattern, "a layer of the model"), (r"aten::cross_entropy_loss$", "the loss")),
    "bwd": ((r"autograd::engine::evaluate_function", "the backward pass"),),
    "opt": ((r"Optimizer\.step#", "optimizer.step()"),),
}
BACKWARD = WITHIN["bwd"][0][0]
# of these the other phases have some as well; all others may happen in their phase only, so that a little work does not stand for it
ANYWHERE = (WITHIN["h2d"][0][0], MATMUL_OP.pattern)
# Within "opt", or in "bwd" as many clear before the backward pass; where it shows: gradients can be cleared without it.
CLEARING = r"Optimizer\.zero_grad#"


@dataclass
class Findings(AnyFindings):
    lab: AnnotateLab
    parity: CheckResult | None = None
    # begins the name of each of the loop's steps in the trace: drawn for each grade, so that no loop can write it itself
    mark: str = field(default_factory=lambda: f"step {secrets.token_hex(8)} ")
    recorded: Trace | None = None
    no_trace: str = ""
    written: bytes = b""  # its digest
    goes_on: bool = False  # the recording does, after the first steps
    pairs: list[decision.Pair] = field(default_factory=list)  # the plain loop's blocks and the submission's
    decision: decision.Decision | None = None


def measure(findings: Findings, submission: Submission, plan: Plan, limits: Limits | None, progress: Progress) -> None:
    """First steps of both loops compared, the trace read, then pairs of blocks after the window."""
    progress(0.0, "preparing data")
    setup = set_up(findings.form, findings.form_name, findings.allow_unconfined)
    findings.free_bytes = machine_is_free(findings.form_name, findings.ranks)
    with (
        open_arm(submission.source, setup, limits) as submission_arm,
        open_arm(findings.lab.starter, setup, trusted=True) as starter_arm,
    ):
        try:
            progress(0.05, "loading")
            findings.seed = secrets.randbelow(1 << 31)
            for arm in (submission_arm, starter_arm):
                arm.child.load()
                arm.child.start(findings.seed, keep_initial=arm is starter_arm, mark=findings.mark)
                arm.child.freeze()
            progress(0.1, "first steps of the submission, with its recording")
            warm_up(starter_arm, setup)
            findings.parity, _ = first_steps(starter_arm, submission_arm, setup, silent)
            _read(findings, submission_arm)
            if findings.recorded is not None and findings.parity and findings.parity.status != FAIL:
                _pairs(findings, submission_arm, starter_arm, plan, progress)
        finally:
            findings.output = submission_arm.child.output()


def look(findings: Findings, submission: Submission, progress: Progress) -> None:
    """The recording only: no comparison, no timing."""
    setup = set_up(findings.form, findings.form_name, allow_unconfined=True)
    with open_arm(submission.source, setup) as submission_arm:
        try:
            progress(0.1, "loading")
            submission_arm.child.load()
            submission_arm.child.start(1, mark=findings.mark)
            progress(0.3, "the first steps, with their recording")
            submission_arm.warm_up(findings.form.parity.steps)
            _read(findings, submission_arm)
            if findings.recorded is not None:
                window = findings.lab.window
                progress(0.7, "as many steps again, which nothing should record")
                submission_arm.run(window.wait + window.warmup + window.active)
                findings.goes_on = _goes_on(findings, submission_arm)
        finally:
            findings.output = submission_arm.child.output()


def _read(findings: Findings, submission_arm: Arm) -> None:
    steps = findings.form.parity.steps
    try:
        data = submission_arm.child.fetch(FILE, MAX_TRACE)
    except ChildError:
        findings.no_trace = (
            f"There is no trace at job.trace after {steps} steps. on_trace_ready writes it. The profiler "
            "calls that when the schedule's steps are over, and only if the loop calls step() once per step."
        )
        return
    findings.written = hashlib.sha256(data).digest()
    try:
        findings.recorded = trace.read_bytes(data, expect_gpu=findings.form_name == "cuda")
    except trace.TraceError as error:
        findings.no_trace = f"The file at job.trace after {steps} steps can't be read as a trace: {error}."
        return
    findings.timelines["after"] = trace.timeline(findings.recorded, steps=findings.lab.window.active, skip_first=0)


def _pairs(findings: Findings, submission_arm: Arm, starter_arm: Arm, plan: Plan, progress: Progress) -> None:
    at_most = findings.lab.cost.at_most[findings.form_name]
    for n in range(1, plan.max_pairs + 1):
        progress(0.3 + 0.7 * n / (plan.max_pairs + 1), f"timing pair {n}, after the recording")
        findings.pairs.append(pair(starter_arm, submission_arm, plan))
        # a pair of blocks in which the plain loop was slower than it can be by as much as may be lost says nothing
        findings.decision = decision.decide_healthy(
            findings.pairs, 1 - at_most, 10 * at_most, findings.form.noise, plan.min_pairs
        )
        if findings.decision and findings.decision.settled:
            break
    with turn(submission_arm.child):
        findings.goes_on = _goes_on(findings, submission_arm)


def _goes_on(findings: Findings, submission_arm: Arm) -> bool:
    """Whether its profiler was on after the first steps, or something else is at job.trace than when it was read. A loop that lies
    about the first has still to be as fast as the plain one, and no faster."""
    if submission_arm.child.ask("recorded_since", step=findings.form.parity.steps) is not False:
        return True
    try:
        return hashlib.sha256(submission_arm.child.fetch(FILE, MAX_TRACE)).digest() != findings.written
    except ChildError:
        return True  # it is being written, or gone


# ---------------------------------------------------------------- verdicts


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    lab = findings.lab
    stopped, first = findings.stopped(), [findings.parity] if findings.parity else []
    if not stopped and first and first[0].status == FAIL:
        stopped = FAIL, "Not counted: it is not the same training (see that check)."
    if stopped:
        return [*(unscored(check, *stopped) for check in lab.checks), *first]
    window, phases = judge_window(findings), judge_phases(findings)
    return [window, phases, _judge_cost(findings, phases.points / lab.phases.points), *first]


def judge_window(findings: Findings) -> CheckResult:
    check, recorded = findings.lab.window, findings.recorded
    if recorded is None:
        return scored(check, 0, findings.no_trace)
    if not len(recorded.steps):
        return scored(check, 0, "The trace holds no steps. The profiler's step() was never called.")
    numbers = _numbers(recorded, findings.mark)
    first = check.wait + check.warmup
    wanted = list(range(first, first + check.active))
    evidence = {"steps_recorded": numbers[:20], "steps_wanted": wanted}
    gpu = bool(recorded.is_gpu.any())
    if numbers != wanted:
        said = f"steps {numbers[0]} to {numbers[-1]}" if numbers else "no step with its backward pass"
        share = 0.5 if len(numbers) == check.active else 0
        reason = f"The trace holds {said}. It must hold steps {wanted[0]} to {wanted[-1]}, counted from 0."
        return scored(check, share * check.points, reason, evidence)
    if findings.form_name == "cuda" and not gpu:
        reason = "The right steps are recorded, but nothing that the GPU did. Add ProfilerActivity.CUDA."
        return scored(check, 0.5 * check.points, reason, evidence)
    return scored(check, check.points, f"Steps {wanted[0]} to {wanted[-1]} are recorded, and no others.", evidence)


def _numbers(recorded: Trace, mark: str) -> list[int]:
    """Which steps have their backward pass in the trace: a loop can call the profiler's step(), which numbers them, at will."""
    marks = recorded.annotations[recorded.named(rf"{mark}\d{{1,9}}$", recorded.annotations)]
    operators = np.flatnonzero(recorded.category == CPU_OP)
    backward = operators[recorded.named(BACKWARD, operators)]
    if not len(marks) or not len(backward):
        return []
    # each step begins with its mark; that of the first one may lie before the recording
    first = int(recorded.names[recorded.name[marks[0]]].removeprefix(mark))
    marks_before = np.searchsorted(recorded.start[marks], recorded.start[backward])
    return (first - 1 + np.unique(marks_before)).tolist()


def judge_phases(findings: Findings) -> CheckResult:
    check, recorded = findings.lab.phases, findings.recorded
    if recorded is None or not len(recorded.steps):
        return scored(check, 0, "There is no trace with steps in which phases could be found.")
    if not _numbers(recorded, findings.mark):
        return scored(check, 0, "The trace holds no step of this run with its backward pass, so it shows no phases.")
    spans = {phase: phase_spans(recorded, phase) for phase in PHASES}
    wrong = {phase: why for phase in PHASES if (why := _wrong(recorded, phase, spans))}
    good = [phase for phase in PHASES if phase not in wrong]
    said = [f"`{phase}` {why}." for phase, why in wrong.items()]
    if good:
        said.insert(0, f"Right: {', '.join(good)}.")
    evidence = {phase: len(events) for phase, events in spans.items()} | {"steps": len(recorded.steps)}
    return scored(check, len(good) / len(PHASES) * check.points, " ".join(said), evidence)


def phase_spans(recorded: Trace, phase: str) -> np.ndarray:
    """The annotations with this name, within the recorded steps."""
    events = np.flatnonzero(recorded.category == ANNOTATION)
    events = events[recorded.named(rf"{phase}$", events)]
    low, high = recorded.start[recorded.steps].min(), recorded.end[recorded.steps].max()
    return events[(recorded.start[events] >= low) & (recorded.end[events] <= high)]


def _wrong(recorded: Trace, phase: str, spans: dict[str, np.ndarray]) -> str:
    """What is wrong with a phase; "" for nothing."""
    own, steps = spans[phase], len(recorded.steps)
    if not len(own):
        return "is not in the trace"
    if len(own) != steps:
        return f"is there {len(own)} times in {steps} steps"
    for other, others in spans.items():
        # counted, not compared one with one: the trace is the learner's, and may hold any number of steps
        begun = np.searchsorted(np.sort(recorded.start[others]), recorded.end[own], side="left")
        ended = np.searchsorted(np.sort(recorded.end[others]), recorded.start[own], side="right")
        if other != phase and (begun > ended).any():
            return f"and `{other}` overlap. One must end before the other begins"
    for pattern, what in WITHIN[phase]:
        inside = _starts(recorded, pattern)
        first = np.searchsorted(inside, recorded.start[own])
        held = (
            (first < len(inside)) & (inside[np.minimum(first, len(inside) - 1)] < recorded.end[own])
            if len(inside)
            else [False]
        )
        if not np.all(held):
            return f"is not around {what}"
        before = np.searchsorted(recorded.start[own], inside, side="right") - 1
        if pattern not in ANYWHERE and not np.all((before >= 0) & (inside < recorded.end[own][before])):
            return f"is not around all of {what}"
    if phase == "opt":
        clearing, around = _starts(recorded, CLEARING), np.concatenate([own, spans["bwd"]])
        begun, ended = (
            np.searchsorted(np.sort(times[around]), clearing, side="right") for times in (recorded.start, recorded.end)
        )
        if not np.all(begun > ended):
            return (
                f"is not around {'all of ' if np.any(begun > ended) else ''}optimizer.zero_grad(), and neither is `bwd`"
            )
    return ""


def _starts(recorded: Trace, pattern: str) -> np.ndarray:
    """When operators of such a name begin within the recorded steps, sorted; annotations where torch itself makes them, with a #."""
    annotated = (recorded.category == ANNOTATION) & ("#" in pattern)
    events = np.flatnonzero((recorded.category == CPU_OP) | annotated)
    starts = np.sort(recorded.start[events[recorded.named(pattern, events)]])
    low, high = recorded.start[recorded.steps].min(), recorded.end[recorded.steps].max()
    return starts[(starts >= low) & (starts < high)]


def _judge_cost(findings: Findings, supported: float) -> CheckResult:
    check, decided = findings.lab.cost, findings.decision
    at_most = check.at_most[findings.form_name]
    if decided is None and findings.pairs:
        return unscored(
            check, INCONCLUSIVE, f"Not measured: {findings.pairs[-1].disturbed or 'too few pairs'}. Check again."
        )
    if decided is None:
        return scored(check, 0, "Not counted: without a trace nothing was recorded, so nothing could cost time.")
    if findings.goes_on:
        reason = (
            "Not counted: the recording goes on. The profiler was on, or wrote to job.trace, while the loop was timed."
        )
        return scored(check, 0, reason)
    gain = decided.gain
    runs = f"the loop runs at {gain.factor:.1%} of the plain one's speed (90% interval {gain.lower:.1%} to {gain.upper:.1%})"
    evidence = {
        "speed": gain.factor,
        "lower": gain.lower,
        "upper": gain.upper,
        "at_most_lost": at_most,
        "pairs_ms": [[1e3 * each.starter_s, 1e3 * each.submission_s] for each in decided.pairs],
    }
    if gain.lower < 1 - at_most and decided.settled:
        return scored(check, 0, f"After the recording {runs}. It may lose at most {at_most:.0%}.", evidence)
    if gain.lower < 1 - at_most:
        reason = f"After the recording {runs}. That is too uncertain to say whether it loses at most {at_most:.0%}. Check again."
        return unscored(check, INCONCLUSIVE, reason, evidence)
    if gain.lower > 1 + at_most:  # what else it gained could hide what it loses
        reason = (
            f"Not counted: after the recording {runs}. A speed-up hides what the recording costs. Leave the "
            "rest of the loop as it is, including the loader's options."
        )
        return unscored(check, FAIL, reason, evidence)
    reason = f"After the recording {runs}."
    judged = scored(check, supported * check.points, reason, evidence)
    if supported < 1:  # its hints are about a recording that goes on
        judged.hint, judged.more_hints = "", []
        judged.reason += (
            f" The phases support {supported:.0%} of these points, because a loop without phases costs nothing."
        )
    return judged
