"""Do the checkpoints hold what a run needs to go on? A gate like parity. Files are read as safetensors, which hold numbers alone."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from grader.labs.lab import Checkpoints
from grader.result import FAIL, PASS, CheckResult
from grader.sandbox.drive import Written

NAME, TITLE = "checkpoints", "Checkpoints to go on from"
HINT = (
    "After every `job.every` steps, `step-N` must come to lie on the drive, with all tensors as they are after step N. Copy them while "
    "no step runs. Write the copy under a different name and rename it. Before the next one is due, wait until it's written."
)
SAME_SIZE = 0.98  # of the bytes of the starter's: where a name is shorter the header is, too
STILL = 0.5  # of the numbers that change between the starter's first two
ROUNDING = 1e-6  # of a tensor's norm
State = Mapping[str, np.ndarray]


def due(every: int, steps: int) -> int:
    """How many must have been saved after so many steps. That of the last `every` steps, and one before, may be on the way."""
    return max(0, steps // every - 1)


def too_late(every: int, steps: int, saved: int) -> CheckResult | None:
    """A failed check where at the end of a timed block fewer were saved than must be: the rest would be written on nobody's clock."""
    if saved >= (most := due(every, steps)):
        return None
    problem = (
        f"At the end of a timed block the loop had made {steps} steps, and {saved} of {most} checkpoints were on the drive. "
        "The loop must wait until one is written before it makes the next"
    )
    return _failed(problem, {"checkpoints": saved})


def judge(check: Checkpoints, every: int, starter: Written, submission: Written, steps: int) -> CheckResult:
    """steps: that the submission has made."""
    wanted = [every * n for n in range(1, 1 + due(every, steps))]
    problem = _misplaced(wanted, every, submission)
    evidence = {"checkpoints": len(submission.steps)}
    if not problem and submission.steps and submission.least < SAME_SIZE * starter.least:
        problem = f"One has {submission.least:,} bytes, and each of the untouched loop's has {starter.least:,}"
    if not problem and len(wanted) > 1:
        problem = _wrong(check, every, starter, submission)
    if problem:
        return _failed(problem, evidence)
    return CheckResult(NAME, TITLE, PASS, 0, 0, "Each checkpoint is whole and has the state of its step.", "", evidence)


def _failed(problem: str, evidence: dict[str, int]) -> CheckResult:
    reason = f"Nobody could go on from these checkpoints. {problem}."
    return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, HINT, evidence)


def _misplaced(wanted: list[int], every: int, submission: Written) -> str:
    if submission.direct:
        return (
            f"step-{submission.direct[0]} was written under its own name. A crash would leave half of it, where the last whole one is "
            "looked for. Write under a different name, and rename when all is written"
        )
    missing = next((step for step in wanted if step not in submission.steps), None)
    if missing is not None:
        return f"step-{missing} is not on the drive after step {wanted[-1] + every}, though it may come at most {every} steps late"
    other = next((step for step in submission.steps if step % every), None)
    if other is not None:
        return f"step-{other} was saved, but a checkpoint is due every {every} steps"
    if len(set(submission.steps)) < len(submission.steps) or list(submission.steps) != sorted(submission.steps):
        return "They were not renamed once each, in the order of their steps"
    return ""


def _wrong(check: Checkpoints, every: int, starter: Written, submission: Written) -> str:
    """What is wrong with the submission's first two, beside the starter's, or ''; a starter that is not as far tells nothing."""
    if 2 * every not in starter.files:
        return ""
    usual, later = (_read(starter.files[step]) for step in (every, 2 * every))
    assert usual and later
    moved = {name: _norm(later[name] - tensor) for name, tensor in usual.items()}
    for step, right in ((every, usual), (2 * every, later)):
        given = _read(submission.files[step]) if step in submission.files else None
        if given is None:
            return f"step-{step} cannot be read as safetensors"
        missing = sorted(right.keys() - given.keys())
        if missing:
            return f"step-{step} has no {missing[0]}"
        shapes = [
            name
            for name, tensor in right.items()
            if (given[name].shape, given[name].dtype) != (tensor.shape, tensor.dtype)
        ]
        if shapes:
            return f"step-{step} has {shapes[0]} in another shape or type"
        off = [
            name
            for name, tensor in right.items()
            if not _norm(given[name] - tensor) <= check.within * moved[name] + ROUNDING * _norm(tensor)
        ]
        if off:
            return f"In step-{step}, {len(off)} of {len(right)} tensors are not as they were after step {step}, {off[0]} among them"
    return _unchanged({name: _changed(usual[name], later[name]) for name in usual}, submission)


def _unchanged(usual: Mapping[str, float], submission: Written) -> str:
    """What the last two have in common that the starter's first two don't, or ''. Rounding has grown by then, so no more can be told.
    usual: the share of each tensor's numbers that differ in the starter's first two."""
    before, last = sorted(submission.files)[-2:]
    states = [_read(submission.files[step]) or {} for step in (before, last)]
    for name in (name for name, share in usual.items() if share):
        one, other = (state.get(name) for state in states)
        if one is None or other is None or one.shape != other.shape or _changed(one, other) < STILL * usual[name]:
            return f"step-{last} has the {name} of step-{before}, or most of it, or one of them has none"
    return ""


def _changed(one: np.ndarray, other: np.ndarray) -> float:
    """The share of numbers that differ: training moves them all, and to touch them all costs as much as to copy them."""
    return float(np.mean(one != other))


def _read(file: Path) -> State | None:
    """None where it is none."""
    try:
        return safetensors.numpy.load_file(file)
    except Exception:  # whatever the reader makes of it
        return None


def _norm(tensor: np.ndarray) -> float:
    return float(np.linalg.norm(tensor.astype(np.float64).ravel()))
