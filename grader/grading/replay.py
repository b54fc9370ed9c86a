"""The reference solution trains as long from this grade's seed: was the timed run the same training to its end?"""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader.checks import answers as answers_check
from grader.checks import logs as logs_check
from grader.checks import outcome as outcome_check
from grader.checks import parity as parity_check
from grader.errors import UserError
from grader.grading.arms import WEIGHTS, Setup, max_weights_bytes, reference_arm
from grader.grading.evidence import ANOTHER_SEED, SEED_TELLS_NOTHING, Checkpoint, Findings, Losses, Race
from grader.grading.race import Decide
from grader.labs.lab import Lab
from grader.measure import calibration
from grader.measure.blocks import Arm
from grader.measure.calibration import Near
from grader.result import FAIL, INCONCLUSIVE, CheckResult, Progress
from grader.sandbox.setting import of_rank
from grader.submission import solution

REPLAY_S = 90.0  # how long the reference solution may train for comparison; timed blocks are some seconds each
TELL_S = 5.0  # how often it says how long it still takes
ROUNDED = 3  # trainings from weights that are rounded, where a seed is doubtful: one alone may end close by chance
COMPARED_WITH_STARTER = (
    "The timed steps were compared with the starter's, as far as it came. They were not compared with the "
    "reference solution's to the end. Your points stay as they are, and you don't have to do anything."
)


@dataclass(frozen=True)
class Reference:
    """The reference solution, ready to be started from this grade's seed."""

    lab: Lab
    setup: Setup  # of untimed runs
    seed: int
    began: float  # the grade, on `time.monotonic`'s clock

    def saying(self, progress: Progress, what: str) -> Callable[[float], None]:
        """To be called with the seconds that are left. A bar reckons by shares, so the share is the one that comes to these."""

        def say(left_s: float) -> None:
            passed_s = time.monotonic() - self.began
            progress(min(0.99, passed_s / (passed_s + left_s)), what)

        return say

    def start(self, nudge: int = 0) -> contextlib.AbstractContextManager[Arm]:
        """nudge: see `Child.start`. Raises UserError where it is not part of this copy of the course."""
        return reference_arm(solution(self.lab).source, self.setup, self.seed, nudge=nudge)


def _late_parity(reference: Reference, losses: Losses, replay: parity_check.Replay | None = None) -> CheckResult:
    """The whole run beside the starter's as far as it came, and beside the replay where there is one."""
    spread = calibration.honest_spread(reference.lab, reference.setup.form_name)
    return parity_check.late(reference.setup.form.parity, losses.starter, losses.submission, spread, replay)


def _replayed(reference: Reference, checkpoints: Sequence[Checkpoint], progress: Progress) -> parity_check.Replay:
    """The reference solution's training beside the submission's weights on the way."""
    updates, files = {}, {each.step: (each.file, *each.samples) for each in checkpoints}
    what = "the reference solution trains as long, for comparison"
    progress(0.78, what)
    with reference.start() as arm:
        # whether a training is a step behind was seen on CPUs only
        remember = (lambda: arm.child.ask("remember")) if reference.setup.form_name == "cpu" else None
        for step in _reached(arm, files, reference.saying(progress, what), before_last=remember):
            for rank, file in enumerate(files[step]):
                arm.child.give(of_rank(WEIGHTS, rank), file.read_bytes())
            updates[step] = arm.child.ask("compare", file=WEIGHTS, stretch=True, ranks=len(files[step]))
        if not updates:
            return parity_check.Replay(arm.losses, {}, None, math.nan)
        held_out = arm.child.ask("evaluate", file=WEIGHTS)["loss"]
        logs = arm.child.logs() if reference.lab.logs else ()
        return parity_check.Replay(arm.losses, updates, held_out, arm.child.ask("evaluate")["loss"], logs=logs)


def _reached(
    arm: Arm,
    steps: Collection[int],
    say: Callable[[float], None],
    more: int = 0,
    before_last: Callable[[], object] | None = None,
) -> Iterator[int]:
    """Train to each of these steps, as far as that takes no more than REPLAY_S in all. say: called with the seconds left, those of
    so many `more` trainings included. before_last: called when one step is missing to each."""

    def left_s() -> float:
        whole_s = max((each for each in map(arm.reaching_s, steps) if each <= REPLAY_S), default=0.0)
        return max(0.0, (more + 1) * whole_s - arm.reaching_s(len(arm.losses)))

    for step in sorted(steps):
        if arm.reaching_s(step) > REPLAY_S:
            return
        say(left_s())
        _train(arm, step - bool(before_last), lambda: say(left_s()))
        if before_last and len(arm.losses) < step:
            before_last()
            arm.run(1)  # too short to tell the pace
        yield step


def _train(arm: Arm, until: int, say: Callable[[], None]) -> None:
    """Train until so many steps are made in all, with a word after every TELL_S."""
    seconds, steps = arm.seconds, until - len(arm.losses)
    while (missing := until - len(arm.losses)) > 0:
        arm.step_s = arm.run(min(missing, max(1, int(TELL_S / arm.step_s))))
        say()
    if steps > 0:
        arm.step_s = (arm.seconds - seconds) / steps


def compared_part(race: Race, replay: parity_check.Replay, decide: Decide) -> tuple[Race, tuple[str, ...]]:
    """The race as far as the reference solution could follow, with a warning where that is not all. Where too few pairs are left
    nothing is known."""
    followed, claimed = max(replay.updates, default=0), race.checkpoints[-1].step
    if followed == claimed:
        return race, ()
    pairs = race.pairs[: next((each.pairs for each in race.checkpoints if each.step == followed), 0)]
    decided = decide(pairs)
    if decided and race.decided:
        certain = min(decided.certain, race.decided.certain)
        decided = replace(decided, certain=certain, settled=decided.settled and race.slowed == 1)
    warning = (
        f"The loop made {claimed} steps. The reference solution could follow {followed} of them in "
        f"{REPLAY_S:.0f} s. What was timed after those does not count."
    )
    return replace(race, pairs=pairs, decided=decided), (warning,)


def twins(reference: Reference, checkpoints: Sequence[Checkpoint], step: int, progress: Progress) -> dict[int, Near]:
    """How far trainings part from this seed by rounding alone, after `step` steps and wherever the submission's weights were
    kept after that: the furthest that the reference solution ends from itself if it begins with weights that are rounded. As
    far as it comes in any reasonable time; where that is not as far as `step`, at the last place before it."""
    found: dict[int, Near] = {}
    first = reference.setup.form.parity.steps
    with tempfile.TemporaryDirectory() as folder:
        say = reference.saying(progress, "the reference solution once more, for its weights")
        with reference.start() as arm:
            kept = {}
            steps = [each.step for each in checkpoints]  # each stretch is compared, too
            for stop in _reached(arm, steps, say, more=ROUNDED):
                arm.child.weights(WEIGHTS)
                kept[stop] = Path(folder) / str(stop)
                kept[stop].write_bytes(arm.child.fetch(WEIGHTS, max_weights_bytes(arm.child, WEIGHTS)))
        for n in range(1, 1 + ROUNDED):
            say = reference.saying(progress, "trainings from rounded weights, which show how far rounding leads")
            with reference.start(nudge=n) as twin:
                for stop in _reached(twin, kept, say, more=ROUNDED - n):
                    twin.child.give(WEIGHTS, kept[stop].read_bytes())
                    update = twin.child.ask("compare", file=WEIGHTS, stretch=True)
                    near = parity_check.twin_distance(twin.losses, arm.losses, update, first, stop)
                    found[stop] = Near(*map(max, near, found.get(stop, near)))
    return {stop: near for stop, near in found.items() if stop >= step} or dict([*found.items()][-1:])


def _answers(reference: Reference, losses: Losses, progress: Progress) -> CheckResult:
    """Whether every request got the reference solution's answers. Raises UserError where it is not part of this copy of the course."""
    starting, what = reference.start(), "the reference solution answers the same requests, for comparison"
    progress(0.78, what)
    with starting as arm:
        more = len(losses.submission) - len(arm.losses)
        # one that is compiled answers in less than half the time of the reference, which is not
        if more > 2 * REPLAY_S / arm.step_s:
            return answers_check.too_many(len(losses.submission))
        say, until = reference.saying(progress, what), len(arm.losses) + max(1, more)
        _train(arm, until, lambda: say((until - len(arm.losses)) * arm.step_s))
        return answers_check.judge(reference.setup.form.parity, arm.losses, losses.submission, "reference solution")


def same_to_the_end(findings: Findings, reference: Reference, decide: Decide, progress: Progress) -> None:
    """Whether the timed run was the same training from beginning to end. The starter is too slow to say; the reference
    solution trains as many steps from the same seed, and both must be in the same places on the way."""
    losses, checkpoints, gain = findings.losses, findings.race.checkpoints, findings.race.gain
    assert losses is not None
    late = _late_parity(reference, losses)
    if late.status == INCONCLUSIVE and not checkpoints:
        return  # nothing was timed: the first steps are all there is, and they were compared, with their weights
    # without a gain there are no points that could be undeserved, and who is far off needs no replay
    if late.status == INCONCLUSIVE or (gain and gain.lower > 1 and late.status != FAIL):
        try:
            replay = _replayed(reference, checkpoints, progress)
            findings.race, warnings = compared_part(findings.race, replay, decide)
            findings.replay_warnings += warnings
            late = _late_parity(reference, losses, replay)
            _look_at_the_logs(findings, replay)
            if (step := parity_check.doubtful(late)) and (found := twins(reference, checkpoints, step, progress)):
                late = _late_parity(reference, losses, replace(replay, twins=found))
        except UserError as missing:
            if late.status != INCONCLUSIVE:
                findings.replay_warnings += (f"{COMPARED_WITH_STARTER} {missing}",)
    if parity_check.rounding_may_explain(late):
        findings.disturbed, findings.advice = SEED_TELLS_NOTHING, ANOTHER_SEED
        late = replace(late, status=INCONCLUSIVE, reason=f"{SEED_TELLS_NOTHING} {ANOTHER_SEED}")
    _add_parity(findings, late)


def _look_at_the_logs(findings: Findings, replay: parity_check.Replay) -> None:
    """Whether the submission logged what the reference solution does, as far as that came."""
    check, first, losses = findings.lab.logs, findings.work.logs, findings.losses
    if check and first and losses and replay.logs:
        steps, rest = findings.form.parity.steps, logs_check.beside_the_reference
        findings.note(logs=rest(check, first, replay.logs, findings.logged, replay.losses, losses.submission, steps))


def same_answers(findings: Findings, reference: Reference, progress: Progress) -> None:
    """Whether every request of the timed run got its answers: the starter's as far as it came, and the reference solution's."""
    losses, gain = findings.losses, findings.race.gain
    assert losses is not None
    late = answers_check.judge(findings.form.parity, losses.starter, losses.submission)
    if gain and gain.lower > 1 and late.status != FAIL:
        try:
            late = _answers(reference, losses, progress)
        except UserError as missing:
            findings.replay_warnings += (f"{COMPARED_WITH_STARTER} {missing}",)
            return
    _add_parity(findings, late)


def _add_parity(findings: Findings, late: CheckResult) -> None:
    early = findings.work.parity
    assert early is not None
    findings.note(parity=replace(late, evidence=early.evidence | late.evidence))


def second_look(findings: Findings, reference: Reference, progress: Progress) -> None:
    """Outside of the band of long runs the reference solution decides, trained as long from this grade's seed. Where it is not
    part of this copy nobody decides: a few seeds alone reject nobody. Where it cannot follow, the band's word stands."""
    first, check = findings.work.outcome, reference.lab.outcome
    assert first is not None and check is not None
    step = first.evidence["steps"]
    what = "the reference solution from the same seed, for its held-out data"
    progress(0.78, what)
    try:
        with reference.start() as arm:
            if arm.reaching_s(step) > REPLAY_S:
                late = f"The reference solution could not follow these {step} steps in {REPLAY_S:.0f} s."
                findings.replay_warnings += (late,)
                return
            say = reference.saying(progress, what)
            _train(arm, step, lambda: say((step - len(arm.losses)) * arm.step_s))
            findings.note(outcome=outcome_check.beside(check, first, arm.child.ask("evaluate")))
    except UserError as missing:
        reason = f"{first.reason} The reference solution would tell whether this grade's seed leads there. {missing}"
        findings.note(outcome=outcome_check.not_measured(reason, first.evidence))
