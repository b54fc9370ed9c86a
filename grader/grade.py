"""One grade, from a submission and a lab to a Result.

The story: gate -> the starter's first steps, alone -> the submission's, compared tightly -> pairs of timed blocks until the
points are known -> the last weights on held-out data, where long runs say what to expect -> one profile of each arm -> the
starter alone once more -> the reference solution trains as long, and losses and weights are compared to the end -> checks."""

from __future__ import annotations

import contextlib
import importlib
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from grader import machine, trace
from grader.checks import answers as answers_check
from grader.checks import logs as logs_check
from grader.checks import memory as memory_check
from grader.checks import outcome as outcome_check
from grader.checks import parity as parity_check
from grader.checks import prediction as prediction_check
from grader.checks import throughput as throughput_check
from grader.checks import trace as trace_check
from grader.errors import UserError
from grader.grading import gate
from grader.grading.arms import (
    FIRST_WEIGHTS,
    MAX_TRACE,
    TOO_LARGE,
    WEIGHTS,
    Setup,
    max_weights_bytes,
    open_arm,
    reference_arm,
    set_up,
    start_training,
    workspace_of,
)
from grader.grading.evidence import AnyFindings
from grader.grading.failure import advice, explain, is_machines, with_details
from grader.grading.forms import (
    HELD_BY_OTHERS,
    NEEDS_GPU,
    choose_form,
    missing_packages,
    needs_gpu,
    on_own_cores,
    too_few_devices,
    too_little_memory,
)
from grader.grading.gate import Disturbed
from grader.labs.lab import CAUSES, AnyLab, Budget, Form, Growth, Lab
from grader.measure import calibration, decision, peaks
from grader.measure import starter as starters
from grader.measure.blocks import QUICK, Arm, Plan, Turn, overstated, pair, still_certain
from grader.measure.calibration import Near
from grader.measure.memory import Meter
from grader.result import AGAIN, FAIL, INCONCLUSIVE, NOT_MEASURED, CheckResult, Progress, Result, silent, unscored
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import turn
from grader.sandbox.setting import Limits
from grader.submission import Submission, same_code, solution
from grader.trace.metrics import FITS

Arming = contextlib.AbstractContextManager[Arm]

OUTLAST_S = 60.0  # seconds to run on in until a level of memory tells something
# Of a rank's share of a batch what its matrix products may be, in any step: to compute the forward pass once more adds a third.
LEAST_OF_SHARE, MOST_OF_SHARE = 0.9, 1.5
# Of the processor time that the starter's main process takes for a step, in 2a: 24 to 36% with 4 or 16 worker processes, 87 to
# 100% where its own threads decode (two cores that others used as well)
LEAST_IN_MAIN, MOST_IN_MAIN = 0.08, 0.6
MOST_LEFT_OUT = 0.1  # of the files: the last of a permutation fill no batch
SLOWER_THAN_CALIBRATED = 1.25  # seen with 2a_workers on an H200: 0.90 to 1.08, and 1.37 once
QUIET = 0.01  # a form's noise, the relative sd of a pair
PATIENCE_S = 10.0  # for a neighbour on the GPU to finish
REPLAY_S = 90.0  # how long the reference solution may train for comparison; timed blocks are some seconds each
MAX_INTERRUPTIONS = 3  # pairs that are repeated because someone else was on the GPU
SEED_TELLS_NOTHING = (
    "From the seed of this grade trainings of this model part soon, by rounding alone: the reference solution, begun from "
    "weights that are rounded, may end as far away as the submission does, so nothing can be said of it."
)
ANOTHER_SEED = "Check again: another seed is drawn."
ROUNDED = 3  # trainings from weights that are rounded, where a seed is doubtful: one alone may end close by chance
COMPARED_WITH_STARTER = (
    "The timed steps were compared with the starter's, as far as it came, and not to the end with the reference solution's. Your "
    "points stay as they are; there is nothing that you have to do."
)


class Compiled(Exception):
    """The loop compiled before it was timed, which takes as long as working ahead would. Started again it finds what it
    compiled, and has no such excuse."""


@on_own_cores
def grade(
    submission: Submission,
    lab: AnyLab,
    *,
    device: str = "auto",
    quick: bool = False,
    plan: Plan | None = None,
    limits: Limits | None = None,
    allow_unconfined: bool = False,
    progress: Progress = silent,
) -> Result:
    """Grade a submission by measurement. What fails in the learner's code ends up in the result, not in an exception.

    quick: fewer and shorter blocks, for trying out; plan and limits override what is measured and waited for. Raises
    UserError for an unknown device and RuntimeError where this machine cannot keep a submission away from files, unless
    `allow_unconfined`; the result says what was open then."""
    began = time.monotonic()
    form_name = choose_form(lab, device)
    kind = importlib.import_module(lab.graded_by)
    found: AnyFindings = kind.Findings(lab, form_name, allow_unconfined=allow_unconfined)
    lacking = too_few_devices(lab, form_name) or missing_packages(lab) or too_little_memory(lab, form_name)
    if HELD_BY_OTHERS in lacking:
        found.disturbed = lacking
    if form_name in lab.forms and not lacking:
        if lab.runs_code:
            found.confinement = gate.confined(allow_unconfined)
            if not found.confinement["files"]:
                found.warnings.append(gate.OPEN_FILES)
        try:
            kind.measure(found, submission, plan or _planned(found, quick), limits, progress)
        except ChildError as error:
            if is_machines(error, found.submission_there):
                found.disturbed = f"a loop of this course's own could not run here. {error.message}"
            elif error.kind in ("room", "small_shared"):
                found.disturbed = error.message
            elif error.kind == "out_of_memory" and (taken := gate.memory_was_taken(found.free_bytes, found.ranks)):
                found.disturbed = taken
            else:
                found.fatal = explain(error, submission)
                found.output = with_details(found.output, error, submission)
            found.advice = advice(error)
        except Disturbed as disturbance:
            found.disturbed = str(disturbance)
    progress(1.0, "done")
    return Result(
        lab=lab.name,
        title=lab.title,
        form=form_name,
        checks=[unscored(check, NOT_MEASURED, lacking) for check in lab.checks]
        if lacking
        else kind.judge(found, submission),
        machine=machine.facts(),
        versions=machine.versions(),
        warnings=found.warnings,
        fatal=found.fatal,
        quick=quick,
        seed=found.seed,
        seconds=round(time.monotonic() - began, 1),
        disturbed=found.disturbed,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        timelines=found.timelines,
        output=found.output,
        confinement=found.confinement,
    )


def _planned(found: AnyFindings, quick: bool) -> Plan:
    form = found.form
    if not isinstance(form, Form):
        return QUICK if quick else Plan()
    if not quick:
        return Plan(block_s=form.block_s)
    # a cache that fills once is told from a leak by three stretches, not by two
    if isinstance(getattr(found.lab, "memory", None), Growth):
        return replace(QUICK, min_pairs=3)
    return replace(QUICK, block_s=0.4) if form.noise <= QUIET else QUICK  # where blocks hardly differ, short ones do


# ---------------------------------------------------------------- a training loop, made faster


@dataclass
class Findings(AnyFindings):
    lab: Lab
    pairs: list[decision.Pair] = field(default_factory=list)  # all that were measured
    decided: decision.Decision | None = None
    target: float = math.nan
    reference_gain: float | None = None
    target_source: str = ""
    compile_s: float | None = None  # None: nothing was compiled
    prepare_s: float = 0.0  # what the submission's own preparation took, in labs that have one
    parity: CheckResult | None = None
    losses: dict[str, list[float]] = field(default_factory=dict)  # "starter", "submission": up to the last timed step
    weights: dict[int, Path] = field(default_factory=dict)  # the submission's, by step: files while the grade lasts
    max_weights_bytes: int = 0  # bytes of such a file
    timed_by: dict[int, int] = field(default_factory=dict)  # how many pairs were measured by those steps
    turns: list[list[Turn]] = field(default_factory=list)  # the submission's timed turns, pair by pair
    overstated: float = 1.0  # see `blocks.overstated`
    untouched: bool = False  # it is the starter, as Python reads it, in a lab that has nothing to be made faster
    worked_ahead: bool = False  # so that some of the gain is not certain
    usual_prepare_s: float = 0.0  # what the preparation takes of a loop that prepares nothing
    # the starter's seconds a step with no submission there: before, and after it where that is in doubt
    alone_s: list[float] = field(default_factory=list)
    slowed: float = 1.0  # by what factor the starter was slower beside the submission, see `decision.slowed`
    warm: bool = False  # it was started again, with what it had compiled at hand
    logs: CheckResult | None = None  # in labs that have logs
    memory: CheckResult | None = None  # in labs that ask for it
    outcome: CheckResult | None = None  # in labs that ask for it
    metrics: dict[str, trace.Metrics] = field(default_factory=dict)  # "starter", "submission"
    traces: dict[str, trace.Trace] = field(default_factory=dict)  # "before", "after"; only where `keep_traces` says so
    keep_traces: bool = False
    main_step_s: tuple[float, float] | None = None  # processor time of the main process a step: starter's, submission's
    trace_problems: list[str] = field(default_factory=list)

    @property
    def same_work(self) -> bool:
        return all(check is None or check.status != FAIL for check in (self.parity, self.logs, self.outcome))

    @property
    def fits(self) -> bool:
        return not (isinstance(self.lab.memory, Budget) and self.memory and self.memory.status == FAIL)

    def start_again(self) -> None:
        """Forget what was measured, not what is known of the lab."""
        fresh = Findings(self.lab, self.form_name)
        for name in ("pairs", "turns", "decided", "losses", "weights", "timed_by", "parity", "logs", "memory"):
            setattr(self, name, getattr(fresh, name))
        self.warm = True

    @property
    def counts_gpu_work(self) -> bool:
        """What tells whether steps were made ahead: see `blocks.overstated`. Where batches could be loaded ahead it is the
        time, but not where compiling is part of the fix."""
        return self.form_name == "cuda" and (self.lab.cause != "input-bound" or self.lab.phase == 4)

    @property
    def gain(self) -> decision.Gain | None:
        return self.decided.gain if self.decided else None

    @property
    def step_s(self) -> tuple[float, float]:
        """Mean seconds per step of the pairs that count: starter, submission."""
        pairs = self.decided.pairs if self.decided else self.pairs
        return fmean(pair.starter_s for pair in pairs), fmean(pair.submission_s for pair in pairs)

    @property
    def lost(self) -> float:
        """The share of the submission's time, in the pairs that count, that went to other programs."""
        pairs = self.decided.pairs if self.decided else self.pairs
        return sum(pair.submission_s * pair.submission_lost for pair in pairs) / sum(
            pair.submission_s for pair in pairs
        )

    def decide(self, plan: Plan) -> decision.Decision | None:
        """What the pairs measured so far say."""
        if self.lab.throughput.healthy:  # known well enough to tell a loop that is slower
            worth = -2 * math.log(throughput_check.HALF_LOST)
            return decision.decide_healthy(
                self.pairs, throughput_check.SLOWER, worth, self.form.noise, min_pairs=plan.min_pairs
            )
        return decision.decide(self.pairs, self.target, self.form.noise, plan.precision, plan.min_pairs)

    @property
    def prepare_step_s(self) -> float:
        """The preparation's share of a step, in seconds."""
        return self.prepare_s / self.form.prepared_for


def measure(found: Findings, submission: Submission, plan: Plan, limits: Limits | None, progress: Progress) -> None:
    lab, form = found.lab, found.form
    found.untouched = lab.throughput.healthy and not lab.memory and same_code(submission.source, lab.starter)
    found.reference_gain, found.target_source = calibration.reference_gain(lab, found.form_name)
    found.target = decision.target(found.reference_gain) if found.reference_gain else form.minimum_gain or math.nan
    progress(0.0, "preparing data")
    setup = set_up(form, found.form_name, found.allow_unconfined, counted=lab.memory is not None)
    progress(0.02, "looking at the machine")
    found.free_bytes = gate.machine_is_free(found.form_name, found.ranks)
    with tempfile.TemporaryDirectory() as kept, workspace_of(submission.source) as workspace:

        def starter_arm() -> Arming:
            return open_arm(lab.starter, setup, trusted=True)

        def submission_arm() -> Arming:
            return open_arm(submission.source, setup, limits, kept=workspace)

        try:
            race(found, starter_arm, submission_arm, Path(kept), plan, progress)
        except Compiled:
            found.start_again()
            race(found, starter_arm, submission_arm, Path(kept), plan, progress)
        if found.outcome and found.outcome.status == FAIL:
            _look_again(found, setup.untimed, progress)
        if found.same_work and found.fits and found.losses:
            to_the_end = _same_answers if found.lab.serves else _same_to_the_end
            to_the_end(found, setup.untimed, plan, progress)


def race(
    found: Findings,
    open_starter: Callable[[], Arming],
    open_submission: Callable[[], Arming],
    kept: Path,
    plan: Plan,
    progress: Progress,
) -> None:
    """The submission beside the starter: first steps, timed pairs, profiles. Its weights on the way go to `kept`. The starter is
    timed alone before the submission's processes exist, and again when they are gone: it must not be slower beside them. Raises
    Compiled where it should be made once more."""
    found.submission_there = False
    with open_starter() as starter:
        found.seed = secrets.randbelow(1 << 31)  # no process knows it before its loop begins
        _starter_alone(found, starter, progress)
        found.submission_there = True
        with open_submission() as ours:
            try:
                _side_by_side(found, ours, starter, kept, plan, progress)
            finally:
                found.output = ours.child.output()
        found.submission_there = False
        if found.gain and found.gain.lower > 1 and found.same_work and not found.lab.throughput.healthy:
            _starter_again(found, starter, plan, progress)


def _starter_alone(found: Findings, starter: Arm, progress: Progress) -> None:
    """The starter's first steps, while nothing of the submission's runs yet."""
    progress(0.03, "loading the starter")
    _load(found, starter)
    if found.form.prepare_s:
        with turn(starter.child):  # its prepare() does nothing: what it takes is to make a data set
            found.usual_prepare_s = starter.prepare(found.form.prepare_s)
    progress(0.05, "first steps of the starter")
    start_training(starter, found.seed, keep_initial=True)
    _warm_up(starter, found)
    found.alone_s = [starter.step_s]
    with turn(starter.child):
        starter.child.ask("release")


def _load(found: Findings, each: Arm) -> None:
    if found.lab.memory:
        each.meter = Meter(each.child, on_gpu=found.form_name == "cuda")
    each.child.load()
    each.child.freeze()


def _side_by_side(found: Findings, ours: Arm, starter: Arm, kept: Path, plan: Plan, progress: Progress) -> None:
    form = found.form
    progress(0.12, "loading the submission")
    _load(found, ours)
    prepare_s = 0.0
    if form.prepare_s:
        progress(0.13, "the submission's preparation")
        with turn(ours.child):
            prepare_s = max(0.0, ours.prepare(form.prepare_s) - found.usual_prepare_s)
    start_training(ours, found.seed, keep_initial=False)
    _first_steps(found, ours, starter, progress)
    # reading it all in train(job) is a preparation, too; and made again, it may find what it left the first time
    found.prepare_s = max(found.prepare_s, prepare_s + ours.read_ahead_s(starter))
    if not (found.same_work and found.fits):
        return
    if form.minimum_gain is not None:
        _timed_blocks(found, ours, starter, kept, plan, progress)
        if not found.fits:
            return
        found.main_step_s = (starter.ran_main_s / starter.ran_steps, ours.ran_main_s / ours.ran_steps)
        _outlast(found, ours, starter, progress)
        _compare_reads(found, ours, starter)
        _compare_logs(found, ours, starter)
    found.losses = {"starter": list(starter.losses), "submission": list(ours.losses)}
    _compare_outcome(found, starter, progress)
    if form.minimum_gain is not None:
        _profiles(found, ours, starter, plan, progress)


def _starter_again(found: Findings, starter: Arm, plan: Plan, progress: Progress) -> None:
    """What the starter is slower beside the submission than it ever was alone was not won by the submission: it does not count."""
    assert found.decided is not None
    beside = [pair.starter_s for pair in found.decided.pairs]
    if decision.slowed(beside, found.alone_s) > 1:  # by the submission, or by something that is still there
        progress(0.94, "timing the starter alone")
        with starter.timed():
            found.alone_s.append(starter.block(plan))
        found.slowed = decision.slowed(beside, found.alone_s)
    if found.slowed > 1:
        found.decided = replace(found.decided, certain=found.decided.certain / found.slowed, settled=False)


# Nothing is compiled: the same training, and where a compiler takes a minute it is there a minute sooner. The second name is what
# releases of torch ask for that are imported already


def _first_steps(found: Findings, ours: Arm, starter: Arm, progress: Progress) -> None:
    parity = found.form.parity
    progress(0.14, "first steps of the submission (compiling, if it compiles)")
    _warm_up(ours, found)
    if found.lab.serves:
        found.parity = answers_check.judge(parity, starter.losses, ours.losses)
    else:
        found.max_weights_bytes = max_weights_bytes(starter.child, FIRST_WEIGHTS)
        starter.child.give(
            FIRST_WEIGHTS, ours.child.fetch(FIRST_WEIGHTS, found.max_weights_bytes, TOO_LARGE, take=True)
        )
        with turn(starter.child):
            update = starter.child.ask("compare", file=FIRST_WEIGHTS)
        found.parity = parity_check.early(parity, starter.losses, ours.losses, update)
    _compare_reads(found, ours, starter)
    _compare_logs(found, ours, starter)
    _judge_memory(found, ours, starter)


def _warm_up(each: Arm, found: Findings) -> None:
    """The first steps of one arm, and its weights after them."""
    with each.aside():
        with each.metered():
            each.warm_up(found.form.parity.steps)
        if not found.lab.serves:
            each.child.weights(FIRST_WEIGHTS)


def _judge_memory(found: Findings, ours: Arm, starter: Arm) -> None:
    """What is known until now of the memory that the loops hold."""
    if not ours.meter or not starter.meter:
        return
    if isinstance(found.lab.memory, Growth):
        found.memory = memory_check.judge_growth(found.lab.memory, starter.meter, ours.meter)
    elif isinstance(found.lab.memory, Budget):
        found.memory = memory_check.judge_budget(found.lab.memory, found.form.budget, ours.meter)


def _outlast(found: Findings, ours: Arm, starter: Arm, progress: Progress) -> None:
    """Run on until a leak would be some times as large as what the submission holds in advance."""
    if not isinstance(found.lab.memory, Growth) or not ours.meter or not starter.meter:
        return
    until = time.monotonic() + OUTLAST_S
    # the growth is a median over stretches: most must be beyond what could be hidden
    pieces = 2 * len(ours.meter.levels)
    while more := memory_check.steps_to_tell(found.lab.memory, starter.meter, ours.meter):
        for _ in range(pieces):
            if (left_s := until - time.monotonic()) < 0:
                return
            progress(0.8, "running on until the memory that is held in advance could hide no leak")
            with ours.metered(), ours.aside():
                ours.run(min(math.ceil(more / pieces), 1 + int(left_s / ours.step_s)))
        _judge_memory(found, ours, starter)


def _compare_reads(found: Findings, ours: Arm, starter: Arm) -> None:
    """Whether what it trained on can have come from the drive, where the lab's files lie on one: a file a sample, another one
    each, up to as many as the starter has read, for there may be no more."""
    if not ours.drive or not starter.drive:
        return
    read = ours.drive.counts.files
    needed = min(starter.drive.counts.files, len(ours.losses) * found.form.options["batch_size"])
    if read < (1 - MOST_LEFT_OUT) * needed and found.same_work:
        found.parity = parity_check.unread(read, needed)


def _compare_logs(found: Findings, ours: Arm, starter: Arm) -> None:
    """What both loops have logged until now. Both are frozen, and stay so."""
    if not found.lab.logs:
        return
    logged = []
    for each in (starter, ours):
        with each.aside():
            logged.append(each.child.logs())
    if found.form.minimum_gain is not None and not found.pairs and logs_check.to_come(logged[1]):
        return  # it is looked at again after the timed blocks
    first = found.form.parity.steps
    found.logs = logs_check.judge(found.lab.logs, *logged, starter.losses, ours.losses, first)


def _timed_blocks(found: Findings, ours: Arm, starter: Arm, kept: Path, plan: Plan, progress: Progress) -> None:
    for n in range(1, plan.max_pairs + 1):
        progress(0.2 + 0.6 * (n - 1) / max(plan.min_pairs + 1, n + 1), f"timing pair {n}")
        before = len(ours.turns)
        found.pairs.append(timed_pair(found, ours, starter, plan))
        found.turns.append(ours.turns[before:])
        _judge_memory(found, ours, starter)
        if not found.fits:
            return
        if n & (n - 1) == 0:  # after pair 1, 2, 4, 8: whoever cheats must begin early to win much
            _keep_weights(found, ours, starter, kept)
        if n >= plan.min_pairs:
            found.decided = found.decide(plan)
        if found.decided and (found.decided.settled or found.untouched):
            break
    _tell_repeats(found)
    if found.decided is None:
        raise Disturbed(f"{found.pairs[-1].disturbed or 'too few pairs of blocks could count'}.")
    _tell_slower_starter(found)
    if not found.warm:
        found.compile_s = ours.compile_s if ours.compiled else None
    _use_up(found, ours, starter, plan, progress)
    _keep_weights(found, ours, starter, kept)
    if ours.recompiled:
        found.warnings.append(
            "torch.compile compiled again inside a timed block: a shape or a constant changes from step to step."
        )


def timed_pair(found: Findings, ours: Arm, starter: Arm, plan: Plan) -> decision.Pair:
    """A pair of blocks, with what was wrong with the machine meanwhile. Raises Disturbed when others are still busy on the
    GPU some time after they were seen."""
    try:
        with (
            machine.watch_throttling(found.ranks)
            if found.form_name == "cuda"
            else contextlib.nullcontext(lambda: False) as throttled
        ):
            measured = pair(starter, ours, plan, lambda: gate.before_block(found.form_name, found.ranks))
        gate.before_block(found.form_name, found.ranks)  # whoever came during the last block
    except Disturbed as disturbance:
        interrupted = sum(math.isnan(each.starter_s) for each in found.pairs)
        if interrupted == MAX_INTERRUPTIONS or not machine.wait_idle(PATIENCE_S, found.ranks):
            raise
        return decision.Pair(math.nan, math.nan, disturbed=str(disturbance).rstrip("."))
    return replace(
        measured,
        submission_s=measured.submission_s + found.prepare_step_s,
        disturbed="the GPU throttled its clocks because it was too hot" if throttled() else "",
    )


def _tell_repeats(found: Findings) -> None:
    """Say which pairs do not count, and why."""
    whys = [each.disturbed for each in found.pairs if each.disturbed]
    slower = len(found.pairs) - len(whys) - (len(found.decided.pairs) if found.decided else 0)
    if found.decided and slower:
        whys += ["the starter or the submission was slowed by something else on this machine"] * slower
    for why in dict.fromkeys(whys):
        found.warnings.append(f"{whys.count(why)} of {len(found.pairs)} pairs of blocks do not count: {why}.")


def _tell_slower_starter(found: Findings) -> None:
    """Say when the starter is much slower than it was when this machine was calibrated."""
    calibrated_s = calibration.starter_s(found.lab, found.form_name)
    if calibrated_s and found.step_s[0] > SLOWER_THAN_CALIBRATED * calibrated_s:
        found.warnings.append(
            f"The starter takes {1e3 * found.step_s[0]:.4g} ms a step; when this machine was calibrated it took "
            f"{1e3 * calibrated_s:.4g} ms. Something that was not there then slows this machine: look for it, or calibrate anew."
        )


def _use_up(found: Findings, ours: Arm, starter: Arm, plan: Plan, progress: Progress) -> None:
    """Steps that were made ahead in the untimed turns would make the gain look higher. Where that could be, and points hang
    on it, the loop runs on until they must be used up; what cannot be told then does not count."""
    decided = found.decided
    assert decided is not None
    if found.lab.throughput.healthy or math.isnan(found.target):
        return
    _set_left_out_aside(found, ours)

    def certain() -> float:
        return still_certain(decided.certain, overstated(ours, starter, found.counts_gpu_work))

    def lost() -> float:
        return decision.fraction(decided.certain, found.target) - decision.fraction(max(certain(), 1e-9), found.target)

    enough, until = 0.02, ours.seconds + plan.use_up_s
    if lost() > enough and ours.compiled and not found.warm:
        raise Compiled
    while lost() > enough and ours.seconds < until:
        progress(0.8, "the loop runs on: steps made ahead must be used up")
        ours.run_on()
    found.overstated = overstated(ours, starter, found.counts_gpu_work)
    found.worked_ahead = lost() > enough
    if found.worked_ahead:
        found.decided = replace(decided, certain=certain())


def _set_left_out_aside(found: Findings, ours: Arm) -> None:
    """A loop can be slow in a pair so that it does not count: it looks as if others had slowed it, or is busy on the GPU while
    it should be frozen. Then steps that were made ahead there would be handed over in the pairs that do count."""
    assert found.decided is not None
    counts = {id(each) for each in found.decided.pairs}
    kept, left_out = [], []
    for each, turns in zip(found.pairs, found.turns, strict=True):
        (kept if id(each) in counts else left_out).extend(turns)
    pace_s = found.step_s[1] - found.prepare_step_s
    busy_s = sum(each.busy_s for each in kept) / sum(each.steps for each in kept)
    for each in left_out:
        ours.set_aside(each, pace_s, busy_s)


def _keep_weights(found: Findings, ours: Arm, starter: Arm, kept: Path) -> None:
    step = len(ours.losses)
    if step in found.weights or found.lab.serves:
        return
    if not found.counts_gpu_work:  # the starter does the same, to know how long it takes
        with starter.aside():
            starter.child.weights(WEIGHTS)
    with ours.aside():
        ours.child.weights(WEIGHTS)
    found.timed_by[step] = len(found.pairs)
    found.weights[step] = kept / f"{step}.safetensors"
    found.weights[step].write_bytes(ours.child.fetch(WEIGHTS, found.max_weights_bytes, TOO_LARGE, take=True))


def _same_to_the_end(found: Findings, setup: Setup, plan: Plan, progress: Progress) -> None:
    """Whether the timed run was the same training from beginning to end. The starter is too slow to say; the reference
    solution trains as many steps from the same seed, and both must be in the same places on the way."""
    parity, losses = found.form.parity, found.losses["submission"]
    spread = calibration.honest_spread(found.lab, found.form_name)
    late = parity_check.late(parity, found.losses["starter"], losses, spread)
    # without a gain there are no points that could be undeserved, and who is far off needs no replay
    if late.status == INCONCLUSIVE or (found.gain and found.gain.lower > 1 and late.status != FAIL):
        try:
            replay = _replayed(found, setup, progress)
            _leave_out_uncompared(found, replay, plan)
            late = parity_check.late(parity, found.losses["starter"], losses, spread, replay)
            if (step := parity_check.doubtful(late)) and (twins := _twins(found, step, setup, progress)):
                late = parity_check.late(parity, found.losses["starter"], losses, spread, replace(replay, twins=twins))
        except UserError as missing:
            if late.status != INCONCLUSIVE:
                found.warnings.append(f"{COMPARED_WITH_STARTER} {missing}")
    assert found.parity is not None
    if parity_check.untold(late):
        found.disturbed = SEED_TELLS_NOTHING
        late = replace(late, status=INCONCLUSIVE, reason=f"{SEED_TELLS_NOTHING} {ANOTHER_SEED}")
    found.parity = replace(late, evidence=found.parity.evidence | late.evidence)


def _same_answers(found: Findings, setup: Setup, plan: Plan, progress: Progress) -> None:
    """Whether every request of the timed run got its answers: the starter's, as far as it came, and the reference solution's
    from the first to the last."""
    assert found.parity is not None
    answers, ours = found.form.parity, found.losses["submission"]
    late = answers_check.judge(answers, found.losses["starter"], ours)
    if found.gain and found.gain.lower > 1 and late.status != FAIL:
        try:
            begins = _reference(found, setup)
        except UserError as missing:
            found.warnings.append(f"{COMPARED_WITH_STARTER} {missing}")
            return
        progress(0.95, "the reference solution answers the same requests, for comparison")
        with begins as reference:
            more = len(ours) - len(reference.losses)
            # one that is compiled answers in less than half the time of the reference, which is not
            if more > 2 * REPLAY_S / reference.step_s:
                late = answers_check.too_many(len(ours))
            else:
                reference.run(max(1, more))
                late = answers_check.judge(answers, reference.losses, ours, "reference solution")
    found.parity = replace(late, evidence=found.parity.evidence | late.evidence)


def _reference(found: Findings, setup: Setup, nudge: int = 0) -> Arming:
    """The reference solution from this grade's seed. Raises UserError where it is not part of this copy of the course."""
    return reference_arm(solution(found.lab).source, setup, found.seed, nudge=nudge)


def _replayed(found: Findings, setup: Setup, progress: Progress) -> parity_check.Replay:
    updates = {}
    progress(0.95, "the reference solution trains as long, for comparison")
    with _reference(found, setup) as reference:
        for step in _reached(reference, found.weights):
            reference.child.give(WEIGHTS, found.weights[step].read_bytes())
            updates[step] = reference.child.ask("compare", file=WEIGHTS, stretch=True)
        if not updates:
            return parity_check.Replay(reference.losses, {}, None, math.nan)
        return parity_check.Replay(
            reference.losses,
            updates,
            reference.child.ask("evaluate", file=WEIGHTS)["loss"],
            reference.child.ask("evaluate")["loss"],
        )


def _reached(one: Arm, steps: Iterable[int]) -> Iterator[int]:
    """Train to each of these steps, as far as that takes no more than REPLAY_S in all."""
    for step in sorted(steps):
        if one.reaching_s(step) > REPLAY_S:
            return
        one.step_s = one.run(step - len(one.losses))
        yield step


def _leave_out_uncompared(found: Findings, replay: parity_check.Replay, plan: Plan) -> None:
    """Pairs count as far as the reference solution could follow; the rest may be no training at all. Where too few are left
    nothing is known."""
    followed = max(replay.updates, default=0)
    if followed == max(found.weights):
        return
    found.pairs = found.pairs[: found.timed_by.get(followed, 0)]
    decided = found.decide(plan)
    if decided and found.decided:
        decided = replace(decided, certain=min(decided.certain, found.decided.certain))
    found.decided = decided
    found.warnings.append(
        f"The loop claims {max(found.weights)} steps. The reference solution could follow {followed} of them in {REPLAY_S:.0f} s; what was "
        "timed after those does not count."
    )


def _twins(found: Findings, step: int, setup: Setup, progress: Progress) -> dict[int, Near]:
    """How far trainings part from this seed by rounding alone, after `step` steps and wherever the submission's weights were
    kept after that: the furthest that the reference solution ends from itself if it begins with weights that are rounded. As
    far as it comes in any reasonable time; where that is not as far as `step`, at the last place before it."""
    twins: dict[int, Near] = {}
    with tempfile.TemporaryDirectory() as folder:
        progress(0.96, "the reference solution once more: its weights are not kept in each grade, for they are large")
        with _reference(found, setup) as reference:
            kept = {}
            for stop in _reached(reference, found.weights):  # from the first one on: each stretch is compared, too
                reference.child.weights(WEIGHTS)
                kept[stop] = Path(folder) / str(stop)
                kept[stop].write_bytes(reference.child.fetch(WEIGHTS, max_weights_bytes(reference.child, WEIGHTS)))
        for n in range(1, 1 + ROUNDED):
            progress(0.96 + 0.01 * n, "trainings from rounded weights: how far apart honest ones from this seed are")
            with _reference(found, setup, nudge=n) as twin:
                for stop in _reached(twin, kept):
                    twin.child.give(WEIGHTS, kept[stop].read_bytes())
                    update = twin.child.ask("compare", file=WEIGHTS, stretch=True)
                    near = parity_check.apart(twin.losses, reference.losses, update, found.form.parity.steps, stop)
                    twins[stop] = Near(*map(max, near, twins.get(stop, near)))
    return {stop: near for stop, near in twins.items() if stop >= step} or dict([*twins.items()][-1:])


def _compare_outcome(found: Findings, starter: Arm, progress: Progress) -> None:
    """The submission's last weights on held-out data, against the band of long runs. The starter's process evaluates them;
    both are frozen, and stay so."""
    if not found.lab.outcome:
        return
    band, missing = calibration.outcome_band(found.lab, found.form_name)
    if band is None:
        found.outcome = outcome_check.not_measured(missing)
        return
    progress(0.84, "evaluating on held-out data")
    step, file = found.form.parity.steps, FIRST_WEIGHTS
    if found.weights:
        step, file = max(found.weights), WEIGHTS
        starter.child.give(file, found.weights[step].read_bytes())
    with turn(starter.child):
        found.outcome = outcome_check.judge(found.lab.outcome, band, step, starter.child.ask("evaluate", file=file))


def _look_again(found: Findings, setup: Setup, progress: Progress) -> None:
    """Outside of the band of long runs the reference solution decides, trained as long from this grade's seed. Where it is not part
    of this copy nobody decides: a few seeds alone reject nobody. Where it cannot follow, the band's word stands."""
    assert found.outcome is not None
    step = found.outcome.evidence["steps"]
    progress(0.94, "held-out data: the reference solution from the same seed")
    try:
        with _reference(found, setup) as reference:
            if reference.reaching_s(step) > REPLAY_S:
                found.warnings.append(
                    f"The reference solution could not follow these {step} steps in {REPLAY_S:.0f} s."
                )
                return
            if step > len(reference.losses):
                reference.run(step - len(reference.losses))
            of_this_seed = reference.child.ask("evaluate")
            found.outcome = outcome_check.beside(found.lab.outcome, found.outcome, of_this_seed)
    except UserError as missing:
        reason = f"{found.outcome.reason} Whether this grade's seed leads there, the reference solution would tell: {missing}"
        found.outcome = outcome_check.not_measured(reason, found.outcome.evidence)


def _profiles(found: Findings, ours: Arm, starter: Arm, plan: Plan, progress: Progress) -> None:
    starter_s, ours_s = found.step_s
    steps = found.form.recorded(plan.profile_steps)
    arms = [("starter", "before", starter, starter_s), ("submission", "after", ours, ours_s)]
    for name, shown, each, step_s in arms if plan.profile_starter else arms[1:]:
        once = each is starter and not found.keep_traces
        if once and (seen_before := starters.timeline(found.lab, found.form_name, step_s, steps)):
            found.timelines[shown] = seen_before
            continue
        progress(0.86 if each is starter else 0.93, f"profiling the {name}")
        try:
            with turn(each.child):
                compiled = each.profile(steps, "trace.json")
                counted = each.counted()
            data = each.child.fetch("trace.json", MAX_TRACE)
            recorded = trace.read_bytes(data, expect_gpu=found.form_name == "cuda")
            metrics = trace.metrics(recorded, step_ns=step_s * 1e9, count=steps)
            metrics.count(counted)
            metrics.compiled = compiled if compiled["graphs"] else None
            found.metrics[name] = metrics
            if found.keep_traces:
                found.traces[shown] = recorded
            counts = {"kernels": metrics.kernels, "gpu_idle": metrics.gpu_idle_unprofiled}
            found.timelines[shown] = trace.timeline(recorded, step_ns=step_s * 1e9) | counts
            if once:
                starters.keep(found.lab, found.form_name, step_s, steps, found.timelines[shown])
        except (trace.TraceError, ChildError) as error:  # the throughput stands; no check needs the starter's trace
            problem = f"there is no trace of the {name}: {error}"
            (found.warnings if each is starter else found.trace_problems).append(problem)
            continue
        if name == "submission":
            found.trace_problems += _implausible(found, metrics, step_s)


def _implausible(found: Findings, metrics: trace.Metrics, step_s: float) -> list[str]:
    """The process that is judged wrote the trace; it must agree with what the parent measured."""
    problems = [] if metrics.complete else list(metrics.reasons)
    if found.form_name != "cuda":
        return problems
    busy = metrics.gpu_busy_ns
    if busy is not None and metrics.step_ns and busy > FITS * metrics.step_ns:
        problems.append(f"its GPU work takes {busy / 1e6:.1f} ms a step, a whole step takes {step_s * 1e3:.1f} ms")
    if not metrics.kernels:
        problems.append("it shows no GPU work")
    return problems


# ---------------------------------------------------------------- verdicts


def judge(found: Findings, submission: Submission) -> list[CheckResult]:
    lab = found.lab
    if found.form_name not in lab.forms:
        return [unscored(check, NOT_MEASURED, NEEDS_GPU) for check in lab.checks]
    checks = [check for check in (found.parity, found.logs, found.outcome) if check]

    stopped, impossible = None, ""  # why throughput and trace earn nothing, with the status that says so
    if found.fatal:
        stopped = (FAIL, "Not counted: the submission did not run (see above).")
    elif found.disturbed:
        undecided = found.parity and found.parity.status == INCONCLUSIVE  # for its seed, not for the machine
        then = ANOTHER_SEED if undecided else found.advice
        stopped = (INCONCLUSIVE, f"Not measured: {found.disturbed} {then}")
    elif found.parity is None or found.parity.status == FAIL:
        stopped = (FAIL, f"Not counted: it is not the same {'service' if lab.serves else 'training'} (see that check).")
    elif found.outcome and found.outcome.status == FAIL:
        stopped = (FAIL, "Not counted: the trained model is not what this training leads to (see that check).")
    elif not found.same_work:
        stopped = (FAIL, "Not counted: the loop no longer logs what it logged (see that check).")
    elif not found.fits:
        stopped = (FAIL, "Not counted: the loop uses more memory than it may (see that check).")
    elif found.form.minimum_gain is None:
        stopped = (NOT_MEASURED, f"{NEEDS_GPU} What was compared is the training.")
    elif found.gain is None:
        stopped = (INCONCLUSIVE, f"No gain could be measured. {AGAIN}")
    elif impossible := _impossible(found):
        stopped = (FAIL, impossible)
    elif lacking := _lacking(found):
        stopped = lacking

    supported = 0.0
    if found.form.minimum_gain is None:
        checks.append(unscored(lab.throughput, NOT_MEASURED, f"{NEEDS_GPU} What was compared is the training."))
    elif stopped:
        evidence = _throughput_evidence(found) | ({"impossible": True} if impossible else {})
        checks.append(unscored(lab.throughput, *stopped, evidence=evidence))
    else:
        assert found.decided is not None
        evidence = _throughput_evidence(found)
        if lab.throughput.healthy:
            checks.append(throughput_check.judge_healthy(lab.throughput, found.decided, evidence, found.untouched))
            if not lab.memory:  # there is nothing to do but to look, and to say what was seen
                said = dict(submission.prediction or ())
                looked = float(said.get("cause") in CAUSES and "gain" in said)
                checks[-1] = memory_check.as_far_as(looked, "a prediction of cause and gain", checks[-1])
        else:
            checks.append(throughput_check.judge(lab.throughput, found.decided, found.target, evidence))
        supported = checks[-1].points / lab.throughput.points
    undecided = checks[-1].status == INCONCLUSIVE
    checks.insert(0, _predicted(found, submission, supported >= 1, undecided))
    if lab.memory:
        if stopped and found.fits:
            checks.append(unscored(lab.memory, *stopped))
        else:
            checks.append(found.memory or unscored(lab.memory, INCONCLUSIVE, f"Nothing was measured. {AGAIN}"))
        if isinstance(lab.memory, Budget):
            checks[-1] = memory_check.as_far_as(supported, "the measured gain", checks[-1], undecided)
        elif not stopped:
            share = checks[-1].points / lab.memory.points
            checks[-2] = memory_check.as_far_as(share, "what is gone of the growth", checks[-2])
    for check in lab.trace:
        if not lab.measures(check, found.form_name):
            checks.append(unscored(check, NOT_MEASURED, needs_gpu(lab)))
        elif stopped:
            checks.append(unscored(check, *stopped))
        elif "submission" not in found.metrics:
            checks.append(
                unscored(check, INCONCLUSIVE, f"{'; '.join(found.trace_problems) or 'There is no trace'}. Check again.")
            )
        else:
            checks.append(
                trace_check.judge(
                    check, found.metrics["submission"], found.trace_problems, supported, found.lost, undecided
                )
            )
            if check.metric == "loads_in_main" and checks[-1].points and (doubt := _made_in_main(found)):
                checks[-1] = unscored(check, INCONCLUSIVE, doubt, checks[-1].evidence)
    return checks


def _predicted(found: Findings, submission: Submission, full: bool, undecided: bool) -> CheckResult:
    """The prediction's verdict. full: the submission has all points for its throughput."""
    lab, gains = found.lab, {}
    reference_gain = 1.0 if lab.throughput.healthy else found.reference_gain
    if reference_gain:
        gains[prediction_check.REFERENCE] = reference_gain
    if full and found.gain:
        gains[prediction_check.OWN] = found.gain.factor
    if not gains and found.gain is None:
        return unscored(lab.prediction, NOT_MEASURED, "Nothing was measured to compare the prediction with.")
    graded_on = found.form_name if lab.scored_on_both else ""
    return prediction_check.judge(lab.prediction, lab.cause, gains, submission.prediction, graded_on, undecided)


def _made_in_main(found: Findings) -> str:
    """Why it is not known that samples are made outside of the main process, whoever reads their files; '' where it is: what
    is read elsewhere can be handed to it for nothing, the work of decoding cannot, and the kernel counts that for each process."""
    if not found.main_step_s:
        return ""
    starter_s, ours_s = found.main_step_s
    least = 0.0 if found.form_name == "cuda" else LEAST_IN_MAIN  # the GPU trains there, and asks for next to nothing
    if least * starter_s <= ours_s <= MOST_IN_MAIN * starter_s:
        return ""
    return (
        f"The training process worked for {1e3 * ours_s:.1f} ms of processor time a step. The untouched loop's, which makes its samples "
        f"itself, takes {1e3 * starter_s:.1f} ms, and from {least:.0%} to {MOST_IN_MAIN:.0%} of that are for training: whether "
        "samples are made elsewhere, and steps there, is not known. Let other processes hand over finished tensors, and let this "
        "one do no more than train and wait."
    )


def _lacking(found: Findings) -> tuple[str, str] | None:
    """Why it is not known, or not so, that a step did what it cannot do without, no more at once than it may: status, reason."""
    form, metrics = found.form, found.metrics.get("submission") or trace.Metrics()
    given, copied = metrics.exchanged, metrics.h2d_bytes
    if form.exchanged is not None:
        if given is None:
            return INCONCLUSIVE, (
                "Not counted: no trace shows what the ranks give to each other. Of a list of more than 30 tensors the profiler "
                "notes no sizes: give them to the others in one tensor, or in shorter lists, and check again."
            )
        if metrics.smallest_group is not None and metrics.smallest_group < form.ranks:
            return FAIL, (
                f"Not counted: the trace tells of a process group of {metrics.smallest_group} of {form.ranks} ranks. What is given to "
                "it does not reach all of them: average the gradients in the default group, which has all."
            )
        if given < form.exchanged:
            return FAIL, (
                f"Not counted: in a step a rank gives {given:,.0f} numbers to the others, and it cannot do without "
                f"{form.exchanged:,}, a quarter of the gradients. A part of the step is missing."
            )
    if form.min_h2d_bytes is not None:
        if copied is None:
            return INCONCLUSIVE, "Not counted: no trace shows what was copied to the GPU. Check again."
        if copied < form.min_h2d_bytes:
            return FAIL, (
                f"Not counted: in a step {copied / 1e6:.1f} MB were copied to the GPU, and a batch has more. A data set that is kept "
                "on the GPU is no answer here: this one stands for data that do not fit there."
            )
    return _not_its_share(form, metrics) if form.max_tokens_per_forward is not None else None


def _not_its_share(form: Form, metrics: trace.Metrics) -> tuple[str, str] | None:
    """Why it is not known, or not so, that the recorded rank trained on its share of each batch, in parts that are small
    enough. Told from the matrix products, which no loop can do without: a lookup has other forms, and zeros can be sent."""
    largest, steps = metrics.largest_product, metrics.per_step.get("product_flops")
    if largest is None or not steps:
        return INCONCLUSIVE, (
            "Not counted: no trace shows all matrix products of a step, so how many tokens rank 0 trained on is not known. A CUDA "
            "graph hides them, and a convolution does not tell its own: leave these out, and check again."
        )
    assert form.max_tokens_per_forward and form.matrix and form.flops
    taken = largest / (2 * form.matrix)  # a product and a sum for each number in the matrix and each token
    if taken > form.max_tokens_per_forward:
        return FAIL, (
            f"Not counted: a forward pass took {taken:,.0f} tokens at once, as its largest matrix product shows. The batch stands "
            f"for one that does not fit into memory: at most {form.max_tokens_per_forward:,}, a micro-batch, are allowed."
        )
    # of each step: ranks that take turns with whole batches have the right mean
    share = form.work[0] / form.ranks
    least, most = LEAST_OF_SHARE * share, MOST_OF_SHARE * share
    for done in (flops / form.flops * share for flops in steps):
        if not least <= done <= most:
            return FAIL, (
                f"Not counted: in a step rank 0 did the matrix products of {done:,.0f} tokens, and its share of the batch is "
                f"{share:,.0f}. Each rank has to train on its own share, in every step, with PyTorch's own matrix products: "
                f"those of {least:,.0f} to {most:,.0f} tokens are allowed."
            )
    return None


def _impossible(found: Findings) -> str:
    """Why the measured rate cannot be true, or ''."""
    least = peaks.least_step_s(machine.gpu_name(), found.form.flops) if found.form_name == "cuda" else None
    fastest = min(pair.submission_s for pair in found.pairs if not pair.disturbed)
    if least is None or fastest >= least:
        return ""
    return (
        f"Not counted: a step took {1e3 * fastest:.2f} ms, and this GPU needs at least {1e3 * least:.2f} ms for the "
        "matrix products of a step. Something was not computed."
    )


def _throughput_evidence(found: Findings) -> dict[str, Any]:
    if found.gain is None:
        return {}
    gain = found.gain
    assert found.decided is not None
    starter_s, ours_s = found.step_s
    return {
        "gain": gain.factor,
        "gain_lower": gain.lower,
        "gain_upper": gain.upper,
        "gain_certain": found.decided.certain,
        "noise": gain.noise,
        "target": found.target,
        "reference_gain": found.reference_gain,
        "target_source": found.target_source,
        "starter_ms": 1e3 * starter_s,
        "submission_ms": 1e3 * ours_s,
        "pairs": [[1e3 * each.starter_s, 1e3 * each.submission_s] for each in found.decided.pairs],
        "lost": [[each.starter_lost, each.submission_lost] for each in found.decided.pairs],
        "pairs_left_out": len(found.pairs) - len(found.decided.pairs),
        "lost_to_others": max(each.lost for each in found.decided.pairs),
        "compile_s": found.compile_s,
        "alone_ms": [1e3 * each for each in found.alone_s],
        "slowed": found.slowed,
        "overstated": found.overstated,
        "worked_ahead": found.worked_ahead,
    } | (
        {"prepare_s": found.prepare_s, "prepare_ms_a_step": 1e3 * found.prepare_step_s} if found.form.prepare_s else {}
    )
