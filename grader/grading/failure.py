"""What is said of code that failed: in the words, and with the lines, of the learner's notebook."""

from __future__ import annotations

from grader.sandbox.child_error import ChildError
from grader.submission import Submission, defined

WAIT = "Wait until the machine is free and check again."
UNFIT = "Waiting doesn't help. `grader doctor` says what this machine can grade."


def is_machines(error: ChildError, submission_there: bool) -> bool:
    """Whether it was the machine that failed. Starter and reference solution are ours: when they fail, the learner's code is
    not the reason, unless it gave them weights that cannot be read, or left them without memory."""
    theirs = ("weights", "out_of_memory") if submission_there else ("weights",)
    return error.trusted and error.kind not in theirs


def advice(error: ChildError) -> str:
    """What to do where this error disturbed a grade."""
    if error.kind == "small_shared":
        return ""  # it says so itself
    raised_again = error.trusted and error.kind[:1].isupper()  # the name of an exception
    return UNFIT if raised_again else WAIT


def explain(error: ChildError, submission: Submission) -> str:
    """The message with its place in the notebook, and with what a missing name most likely means."""
    text = error.message
    where = submission.where(error.line)
    if where:
        text = f"{text.removesuffix('.')} ({where})."
    if error.kind == "NameError" and error.name in submission.elsewhere:
        text += (
            f" `{error.name}` is defined in a cell that is not part of the submission. Only cells that "
            "begin with %%submission are. Move the definition into one."
        )
    elif error.kind == "NameError" and error.name in defined(submission.source):
        text += f" `{error.name}` is defined further down. Move its definition above the line that uses it."
    elif error.kind == "NameError":
        text += (
            " Only cells that begin with %%submission are part of the submission. Put everything that they need "
            "into such cells."
        )
    return text


def with_details(output: str, error: ChildError, submission: Submission) -> str:
    """What the submission printed, followed by the error's traceback (or its last words, unless they are there)."""
    if error.details in output:
        return output
    return f"{output.rstrip()}\n\n{submission.locate(error.details)}".lstrip("\n")
