"""The race: pairs of timed blocks of two loops, until it is known how much faster one of them is."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader import machine
from grader.checks import throughput as throughput_check
from grader.grading.arms import TOO_LARGE, WEIGHTS
from grader.grading.evidence import Checkpoint, Findings, Race, Yardstick
from grader.grading.gate import Disturbed, before_block
from grader.grading.half import in_fp16, lacks_on, least_target
from grader.labs.lab import Form, Lab
from grader.measure import calibration, decision
from grader.measure.blocks import Arm, Plan, Turn, overstated, pair
from grader.measure.decision import Decision, Pair
from grader.result import Progress
from grader.sandbox.setting import of_rank
from grader.submission import Submission, same_code

SLOWER_THAN_CALIBRATED = 1.25  # seen with 2a_workers on an H200: 0.90 to 1.08, and 1.37 once
PATIENCE_S = 10.0  # for a neighbour on the GPU to finish
MAX_INTERRUPTIONS = 3  # pairs that are repeated because someone else was on the GPU
BOUND_BY_THE_DEVICE = ("launch-bound", "memory-bound", "compute-bound")  # causes
UNCERTAIN_POINTS = 0.02  # the share of the points that may hang on steps made ahead
# By `blocks.overstated`: how a slow start looks, where running on tells and no second start is needed; and what not even that tells. On
# H200s three starts of 3j's solution were at 1.00, 1.02 and 1.05, where 1.3x earns all its points.
STARTED_SLOWLY, UNTOLD = 1.05, 1.02

Decide = Callable[[Sequence[Pair]], Decision | None]  # what the pairs that were timed so far say


class Compiled(Exception):
    """The loop compiled before it was timed, which takes as long as working ahead would. Started again it has no such excuse."""

    def __init__(self, seconds: float):
        self.seconds = seconds


@dataclass(frozen=True)
class Policy:
    """What a race has to know of the two loops, beside the plan."""

    form_name: str  # "cuda" or "cpu"
    ranks: int
    decide: Decide
    kept: Path | None  # the folder for the submission's weights on the way; None in labs that serve
    max_weights_bytes: int = 0
    alone_s: float = math.nan  # the starter's seconds a step with no submission there
    target: float = math.nan  # the gain that earns all points; nan where none hang on the gain
    counts_gpu_work: bool = False  # what tells whether steps were made ahead: see `blocks.overstated`
    added_step_s: float = 0.0  # seconds that count for each of the submission's steps beside its own
    untouched: bool = False  # both loops are the same: nothing has to be settled
    calibrated_s: float | None = None  # the starter's seconds a step when this machine was calibrated
    compile_s: float | None = None  # what compiling took at the first start, where this is the second
    one_core: bool = False  # the starter trains on one, and more of them are no fix
    waits: bool = False  # see `Arm.cores`


def decides(healthy: bool, target: float, form: Form, plan: Plan) -> Decide:
    """How the pairs of a lab's loops are read."""
    if healthy:  # known well enough to tell a loop that is slower
        worth = -2 * math.log(throughput_check.HALF_LOST)
        return lambda pairs: decision.decide_healthy(
            pairs, throughput_check.NOT_SLOWER, worth, form.noise, min_pairs=plan.min_pairs
        )
    return lambda pairs: decision.decide(pairs, target, form.noise, plan.precision, plan.min_pairs)


def yardstick(lab: Lab, form_name: str, submission: Submission) -> Yardstick:
    gain, source = calibration.reference_gain(lab, form_name)
    lacks = lacks_on(form_name)
    least, why = least_target(lab.forms[form_name], lacks)
    target = decision.target(gain) if gain else least or math.nan
    source = source if gain else why or source
    baselines = (lab.starter, in_fp16(lab.starter)) if "bf16" in lacks else (lab.starter,)
    untouched = (
        lab.throughput.healthy
        and not lab.memory
        and any(same_code(submission.source, baseline) for baseline in baselines)
    )
    return Yardstick(target, gain, source, untouched)


def policy_of(
    findings: Findings, plan: Plan, alone_s: float, kept: Path, max_weights_bytes: int, compile_s: float | None
) -> Policy:
    """The policy for a lab's loops."""
    lab, on_gpu = findings.lab, findings.form_name == "cuda"
    healthy, target = lab.throughput.healthy, findings.yardstick.target
    waits = lab.checkpoints is not None  # it is the wait for them that has to go
    return Policy(
        findings.form_name,
        findings.ranks,
        decides(healthy, target, findings.form, plan),
        kept=None if lab.serves else kept,
        max_weights_bytes=max_weights_bytes,
        alone_s=alone_s,
        target=math.nan if healthy else target,
        # where batches could be loaded ahead it is the time that tells, but not where compiling is part of the fix
        counts_gpu_work=on_gpu and (lab.cause != "input-bound" or lab.phase == 4),
        added_step_s=findings.prepare_step_s,
        untouched=findings.yardstick.untouched,
        calibrated_s=calibration.starter_s(lab, findings.form_name),
        compile_s=compile_s,
        # a CPU stands for a GPU in these: who trains on more cores has a larger one
        one_core=findings.form.threads == 1 and not on_gpu and (lab.cause in BOUND_BY_THE_DEVICE or waits),
        waits=waits,
    )


def race(starter: Arm, submission: Arm, policy: Policy, plan: Plan, progress: Progress) -> Iterator[Race]:
    """Time pairs until the points are known. Gives what is known after each step of that, so that a grade which ends half way keeps
    it. Raises Disturbed where too few pairs can count, and Compiled where the race should be run once more."""
    known, turns = Race(alone_s=(policy.alone_s,), compile_s=policy.compile_s), []
    for n in range(1, plan.max_pairs + 1):
        progress(0.2 + 0.5 * (n - 1) / max(plan.min_pairs + 1, n + 1), f"timing pair {n}")
        before = len(submission.turns)
        known = replace(known, pairs=(*known.pairs, timed_pair(starter, submission, policy, plan, known.pairs)))
        turns.append(submission.turns[before:])
        yield known
        if n & (n - 1) == 0:  # after pair 1, 2, 4, 8: whoever cheats must begin early to win much
            known = _keep_weights(known, starter, submission, policy)
        if n >= plan.min_pairs:
            known = replace(known, decided=policy.decide(known.pairs))
        yield known
        if known.decided and (known.decided.settled or policy.untouched):
            break
    known = replace(known, warnings=_repeats(known))
    yield known
    if known.decided is None:
        raise Disturbed(f"{known.pairs[-1].disturbed or 'too few pairs of blocks could count'}.")
    known = replace(known, warnings=known.warnings + _slower_starter(known, policy))
    if policy.compile_s is None:
        known = replace(known, compile_s=submission.compile_s if submission.compiled else None)
    yield known
    known = exhaust_stockpile(known, turns, starter, submission, policy, plan, progress)
    if policy.one_core and known.decided and (cores := submission.cores(policy.waits)) > 1:
        known = replace(known, decided=replace(known.decided, certain=known.decided.certain / cores), cores=cores)
    yield known
    known = _keep_weights(known, starter, submission, policy)
    if submission.recompiled:
        again = "torch.compile compiled again inside a timed block. A shape or a constant changes from step to step."
        known = replace(known, warnings=(*known.warnings, again))
    main_step_s = (starter.ran_main_s / starter.ran_steps, submission.ran_main_s / submission.ran_steps)
    yield replace(known, main_step_s=main_step_s, main_thread=submission.main_thread, doing=submission.doing)


def timed_pair(starter: Arm, submission: Arm, policy: Policy, plan: Plan, so_far: Sequence[Pair] = ()) -> Pair:
    """A pair of blocks, with what was wrong with the machine meanwhile. Raises Disturbed when others stay busy on the GPU."""
    on_gpu = policy.form_name == "cuda"
    watched = machine.watch_throttling(policy.ranks) if on_gpu else contextlib.nullcontext(lambda: False)
    try:
        with watched as throttled:
            timed = pair(starter, submission, plan, lambda: before_block(policy.form_name, policy.ranks))
        before_block(policy.form_name, policy.ranks)  # whoever came during the last block
    except Disturbed as disturbance:
        interrupted = sum(math.isnan(each.starter_s) for each in so_far)
        if interrupted == MAX_INTERRUPTIONS or not machine.wait_idle(PATIENCE_S, policy.ranks):
            raise
        return Pair(math.nan, math.nan, disturbed=str(disturbance).rstrip("."))
    return replace(
        timed,
        submission_s=timed.submission_s + policy.added_step_s,
        disturbed="the GPU throttled its clocks because it was too hot" if throttled() else "",
    )


def _repeats(known: Race) -> tuple[str, ...]:
    """Which pairs do not count, and why."""
    whys = [each.disturbed for each in known.pairs if each.disturbed]
    slower = len(known.pairs) - len(whys) - (len(known.decided.pairs) if known.decided else 0)
    if known.decided and slower:
        whys += ["the starter or the submission was slowed by something else on this machine"] * slower
    return tuple(
        f"{whys.count(why)} of {len(known.pairs)} pairs of blocks don't count, because {why}."
        for why in dict.fromkeys(whys)
    )


def _slower_starter(known: Race, policy: Policy) -> tuple[str, ...]:
    """Whether the starter is much slower than it was when this machine was calibrated."""
    if not policy.calibrated_s or known.step_s[0] <= SLOWER_THAN_CALIBRATED * policy.calibrated_s:
        return ()
    return (
        f"The starter takes {1e3 * known.step_s[0]:.4g} ms per step. It took {1e3 * policy.calibrated_s:.4g} "
        "ms when this machine was calibrated. Something slows this machine now. Find it, or calibrate again.",
    )


def exhaust_stockpile(
    known: Race,
    turns: Sequence[Sequence[Turn]],
    starter: Arm,
    submission: Arm,
    policy: Policy,
    plan: Plan,
    progress: Progress,
) -> Race:
    """Where steps made ahead could make the gain look higher, and points hang on it, run on until they must be used up; what cannot be
    told then does not count. turns: the submission's timed ones, pair by pair."""
    decided, target = known.decided, policy.target
    assert decided is not None
    if math.isnan(target):
        return known
    pace = _discount_left_out(known, turns, submission, policy)

    def factor() -> float:
        return overstated(submission, starter, policy.counts_gpu_work)

    def certain() -> float:
        return decided.certain / factor()

    def lost() -> float:
        return decision.fraction(decided.certain, target) - decision.fraction(max(certain(), 1e-9), target)

    def hangs_on(points: float) -> bool:
        return lost() > points and factor() > UNTOLD

    until = submission.seconds + plan.use_up_s
    if hangs_on(UNCERTAIN_POINTS) and factor() > STARTED_SLOWLY and submission.compiled and policy.compile_s is None:
        raise Compiled(submission.compile_s)
    while hangs_on(UNCERTAIN_POINTS) and submission.seconds < until:
        progress(0.7, "the loop runs on: steps made ahead must be used up")
        submission.run_on(*pace)
    known = replace(known, overstated=factor())
    if not hangs_on(2 * UNCERTAIN_POINTS):  # on a busy machine first steps differ by as much as running on cannot tell
        return known
    return replace(known, worked_ahead=True, decided=replace(decided, certain=certain()))


def _discount_left_out(
    known: Race, turns: Sequence[Sequence[Turn]], submission: Arm, policy: Policy
) -> tuple[float, float]:
    """The pace, in seconds a step and of the GPU's work a step, of pairs that look disturbed, or in which the loop was busy while
    frozen: steps that were made ahead there would be handed over in the pairs that do count."""
    counts = {id(each) for each in known.counted}
    kept: list[Turn] = []
    left_out: list[Turn] = []
    for one_pair, some in zip(known.pairs, turns, strict=True):
        (kept if id(one_pair) in counts else left_out).extend(some)
    pace_s = known.step_s[1] - policy.added_step_s
    busy_s = sum(each.busy_s for each in kept) / sum(each.steps for each in kept)
    for each in left_out:
        submission.discount(each, pace_s, busy_s)
    return pace_s, busy_s


def _keep_weights(known: Race, starter: Arm, submission: Arm, policy: Policy) -> Race:
    step = len(submission.losses)
    if policy.kept is None or any(each.step == step for each in known.checkpoints):
        return known
    if not policy.counts_gpu_work:  # the starter does the same, to know how long it takes
        with starter.untimed_turn():
            starter.child.weights(WEIGHTS, each=True)
    with submission.untimed_turn():
        submission.child.weights(WEIGHTS, each=True)
    files = []
    for rank in range(policy.ranks):
        files.append(policy.kept / of_rank(f"{step}.safetensors", rank))
        fetched = submission.child.fetch(of_rank(WEIGHTS, rank), policy.max_weights_bytes, TOO_LARGE, take=True)
        files[rank].write_bytes(fetched)
    checkpoint = Checkpoint(step, files[0], len(known.pairs), tuple(files[1:]))
    return replace(known, checkpoints=(*known.checkpoints, checkpoint))


def starter_again(known: Race, starter: Arm, plan: Plan, progress: Progress) -> Race:
    """What the starter is slower beside the submission than it ever was alone does not count. Called when the submission is gone."""
    decided = known.decided
    assert decided is not None
    beside = [pair.starter_s for pair in decided.pairs]
    if decision.slowed(beside, known.alone_s) > 1:  # by the submission, or by something that is still there
        progress(0.77, "timing the starter alone")
        with starter.timed():
            known = replace(known, alone_s=(*known.alone_s, starter.block(plan)))
        known = replace(known, slowed=decision.slowed(beside, known.alone_s))
    if known.slowed > 1:
        decided = replace(decided, certain=decided.certain / known.slowed, settled=False)
        known = replace(known, decided=decided)
    return known
