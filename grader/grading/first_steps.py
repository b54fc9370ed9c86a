"""The first steps of both loops from the same seed, before anything is timed."""

from dataclasses import dataclass

from grader.checks import answers as answers_check
from grader.checks import parity as parity_check
from grader.grading.arms import FIRST_WEIGHTS, TOO_LARGE, Setup, max_weights_bytes, start_training
from grader.measure.blocks import Arm
from grader.measure.memory import Meter
from grader.result import CheckResult, Progress
from grader.sandbox.parent import turn
from grader.sandbox.setting import of_rank


@dataclass(frozen=True)
class Alone:
    """The starter, while nothing of the submission's ran."""

    step_s: float
    prepare_s: float = 0.0  # its prepare() does nothing: what it takes is to make a data set


def load(arm: Arm, setup: Setup) -> None:
    if setup.counted:
        arm.meter = Meter(arm.child, on_gpu=setup.form_name == "cuda")
    arm.child.load()
    arm.child.freeze()


def starter_alone(starter: Arm, setup: Setup, seed: int, progress: Progress) -> Alone:
    progress(0.03, "loading the starter")
    load(starter, setup)
    prepare_s = _prepare(starter, setup)
    progress(0.05, "first steps of the starter")
    start_training(starter, seed, keep_initial=True)
    warm_up(starter, setup)
    step_s = starter.step_s
    with turn(starter.child):
        starter.child.ask("release")
    return Alone(step_s, prepare_s)


def submission_begins(submission: Arm, setup: Setup, seed: int, alone: Alone, progress: Progress) -> float:
    """Load and prepare it, and begin its training. Returns the seconds that its own preparation took."""
    progress(0.12, "loading the submission")
    load(submission, setup)
    if setup.form.prepare_s:
        progress(0.13, "the submission's preparation")
    prepare_s = max(0.0, _prepare(submission, setup) - alone.prepare_s)
    start_training(submission, seed, keep_initial=False)
    return prepare_s


def _prepare(arm: Arm, setup: Setup) -> float:
    """Seconds that its own preparation of the data took; 0 in labs without one."""
    if not setup.form.prepare_s:
        return 0.0
    with turn(arm.child):
        return arm.prepare(setup.form.prepare_s)


def first_steps(starter: Arm, submission: Arm, setup: Setup, progress: Progress) -> tuple[CheckResult, int]:
    """Whether the submission's first steps are the starter's, and the bytes that its files of weights may have."""
    form = setup.form
    limit_s = submission.child.setting.limits.first_step
    progress(0.14, f"first steps of the submission (the first may compile, for at most {limit_s:.0f} s)")
    warm_up(submission, setup)
    if form.serves:
        return answers_check.judge(form.parity, starter.losses, submission.losses), 0
    limit = max_weights_bytes(starter.child, FIRST_WEIGHTS)
    for file in (of_rank(FIRST_WEIGHTS, rank) for rank in range(form.ranks)):
        starter.child.give(file, submission.child.fetch(file, limit, TOO_LARGE, take=True))
    with turn(starter.child):
        update = starter.child.ask("compare", file=FIRST_WEIGHTS, ranks=form.ranks)
    return parity_check.early(form.parity, starter.losses, submission.losses, update), limit


def warm_up(arm: Arm, setup: Setup) -> None:
    """The first steps of one arm, and its weights after them."""
    with arm.untimed_turn():
        with arm.metered():
            arm.warm_up(setup.form.parity.steps)
        if not setup.form.serves:
            arm.child.weights(FIRST_WEIGHTS, each=True)
