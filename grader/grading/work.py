"""Whether the loop still does its work: what it reads and logs, the memory it holds, and what its model has learned."""

import math
import tempfile
import time
from pathlib import Path

from grader.checks import checkpoints as checkpoints_check
from grader.checks import logs as logs_check
from grader.checks import memory as memory_check
from grader.checks import outcome as outcome_check
from grader.checks import parity as parity_check
from grader.grading.arms import FIRST_WEIGHTS, WEIGHTS, Setup
from grader.grading.evidence import Findings, Race
from grader.labs.lab import Budget, Growth, Lab
from grader.measure import calibration
from grader.measure.blocks import Arm
from grader.paths import temporary
from grader.result import CheckResult, Progress
from grader.sandbox.drive import Written
from grader.sandbox.parent import turn

OUTLAST_S = 60.0  # seconds to run on in until a level of memory tells something
MOST_LEFT_OUT = 0.1  # of the files: the last of a permutation fill no batch


def look(findings: Findings, starter: Arm, submission: Arm, setup: Setup) -> None:
    """What was read and logged until now."""
    unread = _unread(starter, submission, setup)
    if unread and findings.work.same:
        findings.note(parity=unread)
    logs = _logs(findings, setup, starter, submission, timed=bool(findings.race.pairs))
    saved = _checkpoints(findings.lab, setup, starter, submission)
    findings.note(logs=logs or findings.work.logs, checkpoints=saved)


def _unread(starter: Arm, submission: Arm, setup: Setup) -> CheckResult | None:
    """A failed parity where what it trained on can't be from the lab's drive: a file a sample, up to all that the starter has read."""
    if not submission.drive or not starter.drive:
        return None
    read = submission.drive.counts.files
    needed = min(starter.drive.counts.files, len(submission.losses) * setup.form.options["batch_size"])
    return parity_check.unread(read, needed) if read < (1 - MOST_LEFT_OUT) * needed else None


def _logs(findings: Findings, setup: Setup, starter: Arm, submission: Arm, timed: bool) -> CheckResult | None:
    """What both loops, frozen, have logged until now; None where it is too early to say. timed: whether the timed blocks are over."""
    lab = findings.lab
    if not lab.logs:
        return None
    with starter.untimed_turn():
        usual = starter.child.logs()
    with submission.untimed_turn():
        findings.logged = logged = submission.child.logs()
    if setup.form.minimum_gain is not None and not timed and logs_check.to_come(logged):
        return None  # it is looked at again after the timed blocks
    return logs_check.judge(lab.logs, usual, logged, starter.losses, submission.losses, setup.form.parity.steps)


def _checkpoints(lab: Lab, setup: Setup, starter: Arm, submission: Arm) -> CheckResult | None:
    """What lies on both drives by now. Both loops are frozen, and stay so."""
    if not lab.checkpoints or not starter.drive or not submission.drive:
        return None
    with tempfile.TemporaryDirectory(dir=temporary()) as folder:
        usual, saved = (_written(arm, Path(folder) / name) for name, arm in (("a", starter), ("b", submission)))
        every, steps = setup.form.options["every"], len(submission.losses)
        return checkpoints_check.judge(lab.checkpoints, every, usual, saved, steps)


def saves_in_time(findings: Findings, submission: Arm) -> None:
    """At the end of a timed block: what is still to be written must be no more than at any other time."""
    if findings.lab.checkpoints and submission.drive:
        every, steps = findings.form.options["every"], len(submission.losses)
        late = checkpoints_check.too_late(every, steps, submission.drive.counts.saved)
        findings.note(checkpoints=late or findings.work.checkpoints)


def _written(arm: Arm, folder: Path) -> Written:
    """What an arm has written, put into a new folder. Its drive answers in its turns only."""
    assert arm.drive
    folder.mkdir()
    with arm.untimed_turn():
        return arm.drive.written(folder)


def memory(lab: Lab, setup: Setup, starter: Arm, submission: Arm) -> CheckResult | None:
    """What is known until now of the memory that the loops hold."""
    if not submission.meter or not starter.meter:
        return None
    if isinstance(lab.memory, Growth):
        return memory_check.judge_growth(lab.memory, starter.meter, submission.meter)
    assert isinstance(lab.memory, Budget)
    return memory_check.judge_budget(lab.memory, setup.form.budget, submission.meter)


def outlast(check: Growth, starter: Arm, submission: Arm, progress: Progress) -> CheckResult | None:
    """Run on until a leak would be some times as large as what the submission holds in advance; None where it is already."""
    assert submission.meter and starter.meter
    until, judged = time.monotonic() + OUTLAST_S, None
    # the growth is a median over stretches: most must be beyond what could be hidden
    pieces = 2 * len(submission.meter.levels)
    while more := memory_check.steps_to_tell(check, starter.meter, submission.meter):
        for _ in range(pieces):
            if (left_s := until - time.monotonic()) < 0:
                return judged
            progress(0.7, "running on until the memory that is held in advance could hide no leak")
            with submission.metered(), submission.untimed_turn():
                submission.run(min(math.ceil(more / pieces), 1 + int(left_s / submission.step_s)))
        judged = memory_check.judge_growth(check, starter.meter, submission.meter)
    return judged


def outcome(lab: Lab, setup: Setup, starter: Arm, race: Race, progress: Progress) -> CheckResult | None:
    """The submission's last weights on held-out data, evaluated by the starter's process, against the band of long runs."""
    if not lab.outcome:
        return None
    band, missing = calibration.outcome_band(lab, setup.form_name)
    if band is None:
        return outcome_check.not_measured(missing)
    progress(0.71, "evaluating on held-out data")
    step, file = setup.form.parity.steps, FIRST_WEIGHTS
    if race.checkpoints:
        step, file = race.checkpoints[-1].step, WEIGHTS
        starter.child.give(file, race.checkpoints[-1].file.read_bytes())
    with turn(starter.child):
        return outcome_check.judge(lab.outcome, band, step, starter.child.ask("evaluate", file=file))
