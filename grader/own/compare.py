"""Two training loops of one's own, measured as a grade measures: same children, same blocks, no points.

Whether a loop is faster at all is asked here, however little. Two processes that do the same differ, each from its start to its end.
So both loops are started again for every few blocks, and a start counts once: `tests.benchmarks.compare_errors`."""

import re
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean

from grader.checks import parity as parity_check
from grader.checks.throughput import MUCH_LOST
from grader.errors import JobError, UserError
from grader.grading.arms import Setup, open_arm, start_training, workspace_of
from grader.grading.evidence import Race
from grader.grading.first_steps import Alone, first_steps, load, starter_alone, submission_begins
from grader.grading.forms import choose_device
from grader.grading.gate import Disturbed, machine_is_free
from grader.grading.profiles import profile_each
from grader.grading.race import Policy, race, timed_pair
from grader.labs.lab import Form, Parity
from grader.measure import decision
from grader.measure.blocks import Arm, Plan
from grader.measure.calibration import Spread
from grader.measure.decision import Decision, Pair
from grader.paths import temporary
from grader.result import FAIL, CheckResult, Progress, read_file, silent
from grader.sandbox.child_error import ChildError
from grader.sandbox.fork_server import fork_server
from grader.sandbox.probe import confinement
from grader.sandbox.setting import Limits
from grader.submission import MAX_SOURCE
from grader.trace import Analysis, Trace, analyse

FIRST_STEPS = 20  # whose losses and weights are compared
# "the same training" for a job of which nothing was calibrated: wide enough for bf16 and a compiler in a calm regime
AGREEMENT = Parity(steps=FIRST_STEPS, loss=0.01, norm=0.02, cosine=0.99, drift=0.03, held_out=0.0)
NOISE = 0.01  # least relative sd of a pair to believe
JOB_ERROR = JobError.__name__  # the kind of a ChildError; both processes make the job, and neither loop is to blame
SUBMISSION = "submission.py"  # what a loop's file is called where it runs
PAIRS = 2  # of blocks, each time that both loops are started
FIRST = 0.4  # of all progress: the first start, with its profiles
FULL = Plan(min_pairs=decision.FEW, max_pairs=8)
QUICK = Plan(block_s=0.8, block_steps=2, min_pairs=3, max_pairs=6, precision=0.12, profile_steps=2)
NOT_CONFINED = (
    "This machine cannot keep the loops away from files that are not their own (`grader doctor` says what is open). For code "
    "that you trust: --allow-unconfined."
)


@dataclass
class Comparison:
    """What was found of the loop after the change, beside the one before."""

    said: str = ""  # one of decision's FASTER, EQUAL, SLOWER, UNKNOWN; "" where that was not measured
    plan: Plan = FULL  # what was measured by
    starts: int = 0  # how often both were started and measured
    gain: decision.Gain | None = None  # over the starts; None of a single one
    before_s: float | None = None  # seconds a step, the mean over the starts
    after_s: float | None = None
    agreement: CheckResult | None = None  # whether losses and weights agree; None where no steps were made
    compile_s: float | None = None  # what compilation of the later loop took; None for none
    traces: dict[str, Trace] = field(default_factory=dict)  # "before", "after", of the first start
    traced_s: dict[str, float] = field(default_factory=dict)  # seconds a step of that start, without the profiler
    warnings: list[str] = field(default_factory=list)
    message: str = ""  # why nothing was measured
    unusable: bool = False  # a file could not be loaded
    output: str = ""

    def analyses(self, top: int = 10) -> dict[str, Analysis]:
        """Metrics and diagnosis of each trace, with the step time of the same process without the profiler."""
        step_ns = {name: 1e9 * seconds for name, seconds in self.traced_s.items()}
        return {
            name: analyse(trace, step_ns.get(name), top, count=self.plan.profile_steps)
            for name, trace in self.traces.items()
        }


def compare(
    before: Path,
    after: Path,
    job: Path,
    *,
    device: str = "auto",
    readable: tuple[Path, ...] = (),
    plan: Plan = FULL,
    limits: Limits | None = None,
    allow_unconfined: bool = False,
    progress: Progress = silent,
) -> Comparison:
    """Measure the loop in `after` beside that in `before`: Python files that define train(job), each in a confined process of
    its own. plan: its pairs are starts of both here, with two pairs of blocks each. job: a Python file that defines make_job(seed,
    device). readable: files and folders that the loops may read; from the folders they can import.

    What fails in the user's code ends up in `message`, not in an exception. Raises UserError for files that cannot be read and
    an unknown device, RuntimeError where this machine cannot confine the loops, unless `allow_unconfined`."""
    form_name = choose_device(device)
    fork_server()  # imports torch meanwhile
    sources = [_source(path) for path in (before, after)]
    setup = _setup(job, readable, form_name, allow_unconfined)
    result = Comparison(plan=plan)

    def named(share: float, what: str) -> None:
        progress(share, what.replace("the submission", after.name).replace("the starter", before.name))

    try:
        progress(0.0, "looking at the machine")
        machine_is_free(form_name)
        with (
            workspace_of(sources[0]) as folder_before,  # what is compiled is found again at the next start
            workspace_of(sources[1]) as folder_after,
        ):
            start_before = partial(open_arm, sources[0], setup, trusted=True, kept=folder_before)
            start_after = partial(open_arm, sources[1], setup, limits, kept=folder_after)
            _measure(result, _Loops(setup, start_before, start_after, plan, secrets.randbelow(1 << 31)), named)
    except ChildError as error:
        blamed = before if error.trusted else after
        result.message = _explained(error, blamed, job)
        result.unusable = error.kind == JOB_ERROR or error.asked == "load"
        if error.kind != JOB_ERROR:  # whose message says it all
            details = re.sub(rf'"[^"]*/{SUBMISSION}"', lambda _: f'"{blamed}"', error.details)
            if details not in result.output:
                result.output = f"{result.output}\n{details}".strip()
    except Disturbed as disturbance:
        result.message = f"Not measured: {disturbance} Wait until the machine is free and try again."
    progress(1.0, "done")
    return result


def _setup(job: Path, readable: tuple[Path, ...], form_name: str, allow_unconfined: bool) -> Setup:
    _source(job)
    for path in readable:
        if not path.exists():
            raise UserError(f"{path} is not there. --read names files and folders that the loops read.")
    if not allow_unconfined and not confinement().files:
        raise RuntimeError(NOT_CONFINED)
    folders = [str(path.resolve()) for path in readable if path.is_dir()]
    form = Form("grader.own.job", {"file": str(job.resolve()), "folders": folders}, "", 1.0, AGREEMENT, NOISE)
    return Setup(form, form_name, form.options, [path.resolve() for path in (job, *readable)], allow_unconfined)


@dataclass(frozen=True)
class _Loops:
    """Both loops, and how they are started and timed."""

    setup: Setup
    before: Callable[[], AbstractContextManager[Arm]]
    after: Callable[[], AbstractContextManager[Arm]]
    plan: Plan  # of all starts
    seed: int

    @property
    def once(self) -> Plan:
        """Of one start."""
        return replace(self.plan, min_pairs=PAIRS, max_pairs=2 * PAIRS)

    @property
    def policy(self) -> Policy:
        return Policy(self.setup.form_name, 1, _first_pairs, kept=None)


def _first_pairs(pairs: Sequence[Pair]) -> Decision | None:
    """Whether the first start has enough pairs; what they say of the gain is no verdict."""
    counted = tuple(pair for pair in pairs if not pair.disturbed)
    if len(counted) < PAIRS:
        return None
    found = decision.gain([pair.starter_s for pair in counted], [pair.submission_s for pair in counted])
    return Decision(found, found.lower, True, counted)


def _measure(result: Comparison, loops: _Loops, progress: Progress) -> None:
    """Both loops once, with their profiles, then again and again. What is found out is kept in `result`, however it ends."""
    with loops.before() as before:
        alone = starter_alone(before, loops.setup, loops.seed, lambda share, what: progress(FIRST * share, what))
        with loops.after() as after:
            try:
                known, problems = _first_start(result, loops, before, after, alone, progress)
            finally:
                result.output = after.child.output()
    try:
        result.traced_s = dict(zip(("before", "after"), known.step_s, strict=True))
        starts, pairs = [_joined(known.counted)], list(known.pairs)
        _start_again(result, loops, starts, pairs, progress)
        _say(result, starts, loops.plan)
        lost = max(pair.lost for pair in pairs if not pair.disturbed)
        if lost > MUCH_LOST:
            result.warnings.append(
                f"Other programs took up to {lost:.0%} of a loop's time, so the interval says less than it seems to."
            )
    finally:
        result.warnings += problems


def _first_start(
    result: Comparison, loops: _Loops, before: Arm, after: Arm, alone: Alone, progress: Progress
) -> tuple[Race, Sequence[str]]:
    """First steps, timed pairs and profiles, agreed or not; and what is wrong with the later loop's profile."""
    setup, plan = loops.setup, loops.once

    def first(share: float, what: str) -> None:
        progress(FIRST * share, what)

    submission_begins(after, setup, loops.seed, alone, first)
    early, limit = first_steps(before, after, setup, first)
    result.agreement, known = early, Race()
    with tempfile.TemporaryDirectory(dir=temporary()) as kept:
        policy = replace(loops.policy, kept=Path(kept), max_weights_bytes=limit, alone_s=alone.step_s)
        for known in race(before, after, policy, plan, first):
            result.warnings, result.compile_s = list(known.warnings), known.compile_s
    if early.status != FAIL:
        late = parity_check.late(AGREEMENT, before.losses, after.losses, Spread())
        result.agreement = replace(late, evidence=early.evidence | late.evidence)
    steps, with_starter = plan.profile_steps, plan.profile_starter
    profiles = profile_each(before, after, setup, known.step_s, steps, first, with_starter=with_starter)
    result.traces = profiles.traces
    result.warnings += profiles.warnings
    return known, profiles.problems


def _start_again(result: Comparison, loops: _Loops, starts: list[Pair], pairs: list[Pair], progress: Progress) -> None:
    """Both loops in new processes, until it is known which one is faster, or for as often as the plan allows. Adds to `starts`
    and to `pairs`, of all blocks. Raises Disturbed where too few are measured until then."""
    first, plan = len(pairs), loops.plan
    for n in range(2, plan.max_pairs + 1):
        progress(FIRST + (1 - FIRST) * (n - 2) / max(plan.min_pairs - 1, n - 1), f"starting both loops again, {n}")
        start = {"after": loops.after, "before": loops.before}
        order = ["before", "after"] if n % 2 == 0 else ["after", "before"]  # what comes of being the first is no gain
        with start[order[0]]() as one, start[order[1]]() as other:
            arms = dict(zip(order, (one, other), strict=True))
            for arm in arms.values():
                load(arm, loops.setup)
            for arm in arms.values():
                start_training(arm, loops.seed, keep_initial=False)
                with arm.untimed_turn():
                    arm.warm_up(FIRST_STEPS)
            try:
                for _ in range(PAIRS):
                    pairs.append(timed_pair(arms["before"], arms["after"], loops.policy, loops.once, pairs))
            except Disturbed as disturbance:
                if decide(starts, NOISE, plan.min_pairs) is None:
                    raise
                result.warnings.append(f"Not started more often: {disturbance}")
                break
        if counted := [pair for pair in pairs[-PAIRS:] if not pair.disturbed]:
            starts.append(_joined(counted))
        decided = decide(starts, NOISE, plan.min_pairs)
        if decided and decided.settled:
            break
    later = [pair.disturbed for pair in pairs[first:]]
    for why in filter(None, dict.fromkeys(later)):
        result.warnings.append(
            f"{later.count(why)} of {len(later)} pairs of blocks, after the first start, do not count: {why}."
        )


def _joined(pairs: Sequence[Pair]) -> Pair:
    """One pair of the mean times, for pairs of blocks of the same two processes."""
    return Pair(geometric_mean(pair.starter_s for pair in pairs), geometric_mean(pair.submission_s for pair in pairs))


def decide(starts: Sequence[Pair], noise_floor: float, least: int = 2) -> Decision | None:
    """What the starts say, a pair of mean times each, of two loops of which nobody knows which is faster; None of fewer than `least`.
    Settled when the interval says it, and would had the slower always run as in its fastest start, or the faster as in its slowest."""
    if len(starts) < max(2, least):
        return None
    before, after = [start.starter_s for start in starts], [start.submission_s for start in starts]
    gain = decision.gain(before, after, noise_floor)
    said = decision.direction(gain)
    luck = {
        decision.FASTER: max(fmean(before) / min(before), max(after) / fmean(after)),
        decision.SLOWER: min(min(after) / fmean(after), fmean(before) / max(before)),
    }
    settled = said == decision.EQUAL or said == decision.direction(_divided(gain, luck.get(said, 1.0)))
    return Decision(gain, gain.lower, settled and said != decision.UNKNOWN, tuple(starts))


def _divided(gain: decision.Gain, factor: float) -> decision.Gain:
    return replace(gain, factor=gain.factor / factor, lower=gain.lower / factor, upper=gain.upper / factor)


def _say(result: Comparison, starts: Sequence[Pair], plan: Plan) -> None:
    """What is said of the gain, from all starts."""
    result.starts = len(starts)
    result.before_s = fmean(start.starter_s for start in starts)
    result.after_s = fmean(start.submission_s for start in starts)
    result.said = decision.UNKNOWN
    if decided := decide(starts, NOISE):
        result.gain = decided.gain
        if decided.settled and len(starts) >= plan.min_pairs:
            result.said = decision.direction(decided.gain)


def _source(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_SOURCE:
            raise UserError(f"{path} is larger than {MAX_SOURCE >> 20} MB: that is no Python file.")
        return read_file(path).decode().replace("\r\n", "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no Python file: it is not UTF-8.") from None


def _explained(error: ChildError, file: Path, job: Path) -> str:
    """The message, about the file that it happened in."""
    if error.kind == JOB_ERROR:
        return f"{error.message.partition(': ')[2].removesuffix('.')}."
    text = error.message.replace("The submission's process", f"The process of {file.name}")
    text = text.replace("The submission", file.name).replace("the submission", file.name)
    if error.line is None:
        return text
    place = f"{job.name}, line {error.within}, called from " if error.within is not None else ""
    return f"{text.removesuffix('.')} ({place}{file.name}, line {error.line})."
