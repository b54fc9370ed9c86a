"""The story of one grade: from a submission and a lab to a Result.

`grade` serves every kind of lab, each measured and judged by the module that the lab names (`graded_by`). What follows it is the
most common kind, a training loop made faster; its chapters are in `grader.grading`."""

import importlib
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from grader import machine
from grader.grading import gate, replay, rungs, work
from grader.grading.arms import Setup, open_arm, set_up, workspace_of
from grader.grading.evidence import AnyFindings, Findings, Losses
from grader.grading.failure import advice, explain, is_machines, with_details
from grader.grading.first_steps import Alone, first_steps, starter_alone, submission_begins
from grader.grading.forms import HELD_BY_OTHERS, choose_form, fitted, lacking, no_marks, on_own_cores, planned
from grader.grading.profiles import profile_each
from grader.grading.race import Compiled, decides, policy_of, race, starter_again, yardstick
from grader.grading.verdict import judge
from grader.kinds import Kind
from grader.kinds.shared import WrongAnswers, read_answers
from grader.labs.lab import AnyLab, Growth
from grader.measure.blocks import Arm, Plan
from grader.paths import temporary
from grader.result import FAIL, NOT_MEASURED, Progress, Result, silent, unscored
from grader.sandbox.child_error import ChildError
from grader.sandbox.setting import Limits, limits_of
from grader.submission import Submission

# Findings, measure and judge are a training loop's part of a grade; its verdict is `grader.grading.verdict.judge`
__all__ = ["Findings", "grade", "judge", "measure", "named_changes"]


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
    kind = cast(Kind, importlib.import_module(lab.graded_by))  # this very module for a training loop
    lacks = lacking(lab, form_name)
    lab, size_why = fitted(lab, form_name)
    findings: AnyFindings = kind.Findings(lab, form_name, allow_unconfined=allow_unconfined)
    findings.warnings += no_marks(lab, form_name)
    findings.disturbed = lacks if HELD_BY_OTHERS in lacks else ""
    if not lacks:
        _measure_kind(
            kind, findings, submission, plan or planned(lab, findings.form, quick), limits or limits_of(quick), progress
        )
    progress(1.0, "done")
    not_measured = [unscored(check, NOT_MEASURED, lacks) for check in lab.checks]
    return Result(
        lab=lab.name,
        title=lab.title,
        form=form_name,
        checks=not_measured if lacks else kind.judge(findings, submission),
        machine=machine.facts(),
        versions=machine.versions(),
        warnings=findings.all_warnings,
        fatal=findings.fatal,
        quick=quick,
        seed=findings.seed,
        seconds=round(time.monotonic() - began, 1),
        disturbed=findings.disturbed,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        timelines=findings.timelines,
        output=submission.locate(findings.output),
        size=form.size if (form := lab.forms.get(form_name)) else "",
        size_why=size_why,
        confinement=findings.confinement,
    )


def _measure_kind(
    kind: Kind, findings: AnyFindings, submission: Submission, plan: Plan, limits: Limits | None, progress: Progress
) -> None:
    """Measure what this kind of lab asks for; what fails is noted as the learner's or the machine's."""
    if findings.lab.runs_code:
        findings.confinement = gate.confined(findings.allow_unconfined)
        if not findings.confinement["files"]:
            findings.warnings.append(gate.OPEN_FILES)
    try:
        kind.measure(findings, submission, plan, limits, progress)
    except WrongAnswers as error:
        findings.fatal = str(error)
    except gate.Disturbed as disturbance:
        findings.disturbed = str(disturbance)
    except ChildError as error:
        findings.advice = advice(error)
        if is_machines(error, findings.submission_there):
            findings.disturbed = f"a loop of this course's own could not run here. {error.message}"
        elif error.kind in ("room", "small_shared", "crowded"):
            findings.disturbed = error.message
        elif error.kind == "out_of_memory" and (taken := gate.memory_was_taken(findings.free_bytes, findings.ranks)):
            findings.disturbed = taken
        else:
            findings.fatal = explain(error, submission)
            findings.output = with_details(findings.output, error, submission)


# ---------------------------------------------------------------- a training loop, made faster

# Causes that no compiler mends. What such a loop leaves for its second start could be its samples, read and decoded in time that nobody
# counts: it is started as if for the first time, and compiles nothing (phase 4 asks for several fixes, compiling among them)
WAITS_FOR_THE_HOST = ("input-bound", "host-bound")
NOTHING_KEPT = "The loop compiled before it was timed, so it was started again without torch.compile. Compiling is no part of this lab's fix."


@dataclass(frozen=True)
class _Attempt:
    """How the two loops are started and timed."""

    setup: Setup
    open_submission: Callable[[], AbstractContextManager[Arm]]
    plan: Plan
    kept: Path  # the folder for the submission's weights on the way
    progress: Progress
    compile_s: float | None = None  # what the submission compiled for at the first attempt, where this is the second


def measure(findings: Findings, submission: Submission, plan: Plan, limits: Limits | None, progress: Progress) -> None:
    lab, form_name = findings.lab, findings.form_name
    findings.yardstick = yardstick(lab, form_name, submission)
    progress(0.0, "preparing data")
    setup = set_up(findings.form, form_name, findings.allow_unconfined, counted=lab.memory is not None)
    progress(0.02, "looking at the machine")
    began = time.monotonic()
    findings.free_bytes = gate.machine_is_free(form_name, findings.ranks)
    with tempfile.TemporaryDirectory(dir=temporary()) as kept, workspace_of(submission.source) as workspace:
        open_submission = partial(open_arm, submission.source, setup, limits, kept=workspace)
        attempt = _Attempt(setup, open_submission, plan, Path(kept), progress)
        try:
            _beside_the_starter(findings, attempt)
        except Compiled as compiled:
            findings.start_again()
            again = replace(attempt, compile_s=compiled.seconds)
            if lab.cause in WAITS_FOR_THE_HOST and lab.phase < 4:
                findings.warnings.append(NOTHING_KEPT)
                open_submission = partial(open_arm, submission.source, setup.eager, limits)
                again = replace(attempt, setup=setup.eager, open_submission=open_submission, compile_s=0.0)
            _beside_the_starter(findings, again)
        assert findings.seed is not None
        reference = replay.Reference(lab, setup.untimed, findings.seed, began)
        if findings.work.outcome and findings.work.outcome.status == FAIL:
            replay.second_look(findings, reference, progress)
        if not (findings.work.same and findings.fits and findings.losses):
            return
        if lab.serves:
            replay.same_answers(findings, reference, progress)
        else:
            reads = decides(lab.throughput.healthy, findings.yardstick.target, findings.form, plan)
            replay.same_to_the_end(findings, reference, reads, progress)
        if lab.order and findings.form.minimum_gain is not None:
            findings.order = rungs.order(lab, setup, findings.seed, named_changes(findings, submission), plan, progress)


def named_changes(findings: Findings, submission: Submission) -> dict[Any, Any]:
    """What stands beside the loop. Where that cannot be read the loop is graded all the same, and the report says why."""
    try:
        return read_answers(
            submission, [lever.name for lever in findings.lab.order.levers] if findings.lab.order else ()
        )
    except WrongAnswers as error:
        findings.warnings.append(str(error))
        return {}


def _beside_the_starter(findings: Findings, attempt: _Attempt) -> None:
    """The starter is timed alone before and after the submission: it must not be slower beside it."""
    lab, setup, progress = findings.lab, attempt.setup, attempt.progress
    findings.submission_there = False
    with open_arm(lab.starter, setup, trusted=True) as starter_arm:
        findings.seed = secrets.randbelow(1 << 31)  # no process knows it before its loop begins
        alone = starter_alone(starter_arm, setup, findings.seed, progress)
        findings.submission_there = True
        with attempt.open_submission() as submission_arm:
            try:
                prepare_s = submission_begins(submission_arm, setup, findings.seed, alone, progress)
                _side_by_side(findings, attempt, starter_arm, submission_arm, alone, prepare_s)
            finally:
                findings.output = submission_arm.child.output()
        findings.submission_there = False
        gain = findings.race.gain
        if gain and gain.lower > 1 and findings.work.same and not lab.throughput.healthy:
            findings.race = starter_again(findings.race, starter_arm, attempt.plan, progress)


def _side_by_side(
    findings: Findings, attempt: _Attempt, starter_arm: Arm, submission_arm: Arm, alone: Alone, prepare_s: float
) -> None:
    """First steps, timed pairs, what the model has learned, profiles."""
    lab, setup, plan, progress = findings.lab, attempt.setup, attempt.plan, attempt.progress
    arms, is_timed = (starter_arm, submission_arm), findings.form.minimum_gain is not None
    parity, max_weights_bytes = first_steps(*arms, setup, progress)
    findings.note(parity=parity)
    work.look(findings, *arms, setup)
    findings.note(memory=work.memory(lab, setup, *arms))
    # reading it all in train(job) is a preparation, too; and made again, it may find what it left the first time
    findings.prepare_s = max(findings.prepare_s, prepare_s + submission_arm.read_ahead_s(starter_arm))
    if not (findings.work.same and findings.fits):
        return
    if is_timed:
        policy = policy_of(findings, plan, alone.step_s, attempt.kept, max_weights_bytes, attempt.compile_s)
        for known in race(*arms, policy, plan, progress):
            findings.race = known
            findings.note(memory=work.memory(lab, setup, *arms))
            work.saves_in_time(findings, submission_arm)
            if not (findings.work.same and findings.fits):
                return
        if isinstance(lab.memory, Growth):
            findings.note(memory=work.outlast(lab.memory, *arms, progress) or findings.work.memory)
        work.look(findings, *arms, setup)
    findings.losses = Losses(list(starter_arm.losses), list(submission_arm.losses))
    findings.note(outcome=work.outcome(lab, setup, starter_arm, findings.race, progress))
    if is_timed:
        step_s, steps = findings.race.step_s, plan.profile_steps
        findings.profiles = profile_each(*arms, setup, step_s, steps, progress, lab, plan.profile_starter)
        findings.timelines = findings.profiles.timelines
    if findings.form.serves:  # what was answered in a trace is compared, too
        findings.losses = Losses(list(starter_arm.losses), list(submission_arm.losses))
