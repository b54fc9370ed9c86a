"""Two training loops of one's own, measured as a grade measures: same children, same blocks, no points.

But for one thing: whether a loop is faster at all is asked here, however little. Two processes that do the same differ, each from
its start to its end, and pairs of their blocks agree on a gain that is none. So both loops are started again for every few blocks,
and a start counts once: `python -m tests.benchmarks.compare_errors` tells how often that is wrong."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean

from grader.checks import parity as parity_check
from grader.checks.throughput import MUCH_LOST
from grader.errors import UserError
from grader.grade import Arming, Findings, race, timed_pair
from grader.grading.arms import Setup, open_arm, start_training, workspace_of
from grader.grading.forms import choose_device
from grader.grading.gate import Disturbed, machine_is_free
from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput
from grader.measure import decision
from grader.measure.blocks import Plan
from grader.measure.calibration import Spread
from grader.own.job import JobError
from grader.result import FAIL, CheckResult, Progress
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


@dataclass(frozen=True, kw_only=True)
class _Own(Lab):
    """The loop before the change, in the place of a lab's starter."""

    before: str

    @property
    def starter(self) -> str:
        return self.before


@dataclass
class _Comparing(Findings):
    """As a grade, but for the points: what does not agree is timed all the same, and either loop may be the faster one."""

    keep_traces: bool = True

    @property
    def same_work(self) -> bool:
        return True

    @property
    def counts_gpu_work(self) -> bool:
        """No points hang on what it is for; so both loops do the same between their blocks."""
        return False

    def decide(self, plan: Plan) -> decision.Decision | None:
        """Whether the first start has enough pairs; what they say of the gain is no verdict."""
        counted = tuple(pair for pair in self.pairs if not pair.disturbed)
        if len(counted) < PAIRS:
            return None
        found = decision.gain(*zip(*((p.starter_s, p.submission_s) for p in counted), strict=True))
        return decision.Decision(found, found.lower, True, counted)


@dataclass
class Comparison:
    """What was found. said: one of decision's FASTER, EQUAL, SLOWER, UNKNOWN, of the loop after the change; "" where that was not
    measured, then `message` says why, and `unusable` whether it is that a file could not be loaded. plan: what was measured by.
    starts: how often both were started and measured. gain: how many times as fast it is, over the starts; None of a single one.
    before_s, after_s: seconds a step, the mean over the starts. agreement: whether losses and weights agree, as a check; None
    where no steps were made. compile_s: what compilation of the later loop took, None for none. traces: "before", "after", of
    the first start; traced_s: the seconds a step of that start, without the profiler."""

    said: str = ""
    plan: Plan = FULL
    starts: int = 0
    gain: decision.Gain | None = None
    before_s: float | None = None
    after_s: float | None = None
    agreement: CheckResult | None = None
    compile_s: float | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    traced_s: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    message: str = ""
    unusable: bool = False
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
    progress: Progress = lambda share, what: None,
) -> Comparison:
    """Measure the loop in `after` beside that in `before`: Python files that define train(job), each in a confined process of
    its own. plan: its pairs are starts of both here, with two pairs of blocks each. job: a Python file that defines make_job(seed,
    device). readable: files and folders that the loops may read; from the folders they can import.

    What fails in the user's code ends up in `message`, not in an exception. Raises UserError for files that cannot be read and
    an unknown device, RuntimeError where this machine cannot confine the loops, unless `allow_unconfined`."""
    form_name = choose_device(device)
    fork_server()  # imports torch meanwhile
    sources = [_source(path) for path in (before, after)]
    _source(job)
    for path in readable:
        if not path.exists():
            raise UserError(f"{path} is not there. --read names files and folders that the loops read.")
    if not allow_unconfined and not confinement().files:
        raise RuntimeError(NOT_CONFINED)
    folders = [str(path.resolve()) for path in readable if path.is_dir()]
    form = Form("grader.own.job", {"file": str(job.resolve()), "folders": folders}, "", 1.0, NOISE, AGREEMENT)
    lab = _Own(
        name="own",
        title="",
        phase=0,
        goal="",
        cause="",
        forms={form_name: form},
        throughput=Throughput(0, ("", "", "")),
        trace=(),
        prediction=Prediction(0),
        peek=(),
        before=sources[0],
    )
    found = _Comparing(lab, form_name, allow_unconfined=allow_unconfined)
    files = [path.resolve() for path in (job, *readable)]
    setup = Setup(form, form_name, form.options, files, allow_unconfined)
    result = Comparison(plan=plan)

    def told(share: float, what: str) -> None:
        progress(share, what.replace("the submission", after.name).replace("the starter", before.name))

    try:
        progress(0.0, "looking at the machine")
        machine_is_free(form_name)
        with (
            tempfile.TemporaryDirectory() as kept,
            workspace_of(sources[0]) as folder_before,  # what is compiled is found again at the next start
            workspace_of(sources[1]) as folder_after,
        ):
            once = replace(plan, min_pairs=PAIRS, max_pairs=2 * PAIRS)
            starter = partial(open_arm, sources[0], setup, trusted=True, kept=folder_before)
            ours = partial(open_arm, sources[1], setup, limits, kept=folder_after)
            race(found, starter, ours, Path(kept), once, lambda share, what: told(FIRST * share, what))
            if found.decided:
                result.traced_s = dict(zip(("before", "after"), found.step_s, strict=True))
                starts = [_joined(found.decided.pairs)]
                _start_again(found, starts, starter, ours, plan, once, told)
                _say(result, starts, plan)
                _tell_lost(found)
    except ChildError as error:
        blamed = before if error.trusted else after
        result.message = _explained(error, blamed, job)
        result.unusable = error.kind == JOB_ERROR or error.asked == "load"
        if error.kind != JOB_ERROR:  # whose message says it all
            result.output = re.sub(rf'"[^"]*/{SUBMISSION}"', lambda _: f'"{blamed}"', error.details)
    except Disturbed as disturbance:
        result.message = f"Not measured: {disturbance} Wait until the machine is free and try again."
    progress(1.0, "done")
    _concluded(found, result)
    return result


def _start_again(
    found: _Comparing,
    starts: list[decision.Pair],
    start_starter: Callable[[], Arming],
    start_ours: Callable[[], Arming],
    plan: Plan,
    once: Plan,
    progress: Progress,
) -> None:
    """Both loops in new processes, until it is known which one is faster, or for as often as the plan allows. Adds to `starts`.
    Raises Disturbed where too few are measured until then."""
    first = len(found.pairs)
    for n in range(2, plan.max_pairs + 1):
        progress(FIRST + (1 - FIRST) * (n - 2) / max(plan.min_pairs - 1, n - 1), f"starting both loops again, {n}")
        start = {"ours": start_ours, "starter": start_starter}
        order = ["starter", "ours"] if n % 2 == 0 else ["ours", "starter"]  # what comes of being the first is no gain
        with start[order[0]]() as one, start[order[1]]() as other:
            arms = dict(zip(order, (one, other), strict=True))
            for each in arms.values():
                each.child.load()
                each.child.freeze()
            for each in arms.values():
                start_training(each, found.seed, keep_initial=False)
                with each.aside():
                    each.warm_up(FIRST_STEPS)
            try:
                for _ in range(PAIRS):
                    found.pairs.append(timed_pair(found, arms["ours"], arms["starter"], once))
            except Disturbed as disturbance:
                if decide(starts, found.form.noise, plan.min_pairs) is None:
                    raise
                found.warnings.append(f"Not started more often: {disturbance}")
                break
        if counted := [pair for pair in found.pairs[-PAIRS:] if not pair.disturbed]:
            starts.append(_joined(counted))
        decided = decide(starts, found.form.noise, plan.min_pairs)
        if decided and decided.settled:
            break
    later = [pair.disturbed for pair in found.pairs[first:]]
    for why in filter(None, dict.fromkeys(later)):
        found.warnings.append(
            f"{later.count(why)} of {len(later)} pairs of blocks, after the first start, do not count: {why}."
        )


def _joined(pairs: Sequence[decision.Pair]) -> decision.Pair:
    """One pair of the mean times, for pairs of blocks of the same two processes."""
    return decision.Pair(
        geometric_mean(pair.starter_s for pair in pairs), geometric_mean(pair.submission_s for pair in pairs)
    )


def decide(starts: Sequence[decision.Pair], noise_floor: float, least: int = 2) -> decision.Decision | None:
    """What the starts say, a pair of mean times each, of two loops of which nobody knows which one should be faster; None of fewer
    than `least`. Settled when the interval says it, and would say it too had the slower of them always run as in its fastest
    start, or the faster one as in its slowest. No start is left out: how they differ is what must be known."""
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
    return decision.Decision(gain, gain.lower, settled and said != decision.UNKNOWN, tuple(starts))


def _divided(gain: decision.Gain, factor: float) -> decision.Gain:
    return replace(gain, factor=gain.factor / factor, lower=gain.lower / factor, upper=gain.upper / factor)


def _say(result: Comparison, starts: Sequence[decision.Pair], plan: Plan) -> None:
    """What is said of the gain, from all starts."""
    result.starts = len(starts)
    result.before_s = fmean(start.starter_s for start in starts)
    result.after_s = fmean(start.submission_s for start in starts)
    result.said = decision.UNKNOWN
    if decided := decide(starts, NOISE):
        result.gain = decided.gain
        if decided.settled and len(starts) >= plan.min_pairs:
            result.said = decision.direction(decided.gain)


def _tell_lost(found: _Comparing) -> None:
    lost = max(pair.lost for pair in found.pairs if not pair.disturbed)
    if lost > MUCH_LOST:
        found.warnings.append(
            f"Other programs took up to {lost:.0%} of a loop's time, so the interval says less than it seems to."
        )


def _concluded(found: _Comparing, result: Comparison) -> None:
    result.warnings = found.warnings + found.trace_problems
    result.traces, result.compile_s = found.traces, found.compile_s
    result.output = (
        found.output
        if not result.output or result.output in found.output
        else f"{found.output}\n{result.output}".strip()
    )
    result.agreement = found.parity
    if found.parity and found.parity.status != FAIL and found.losses:
        late = parity_check.late(AGREEMENT, found.losses["starter"], found.losses["submission"], Spread())
        result.agreement = replace(late, evidence=found.parity.evidence | late.evidence)


def _source(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_SOURCE:
            raise UserError(f"{path} is larger than {MAX_SOURCE >> 20} MB: that is no Python file.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no Python file: it is not UTF-8.") from None


def _explained(error: ChildError, file: Path, job: Path) -> str:
    """The message, about the file that it happened in."""
    if error.kind == JOB_ERROR:
        return f"{error.message.partition(': ')[2].removesuffix('.')}."
    text = error.message.replace(f" ({SUBMISSION}, line {error.line})", "")  # as Python says it of what it cannot read
    text = text.replace("The submission's process", f"The process of {file.name}")
    text = text.replace("The submission", file.name).replace("the submission", file.name)
    if error.line is None:
        return text
    place = f"{job.name}, line {error.within}, called from " if error.within is not None else ""
    return f"{text.removesuffix('.')} ({place}{file.name}, line {error.line})."
