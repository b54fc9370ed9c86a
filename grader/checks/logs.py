"""Does the loop still log what it logged? A gate like parity: leaving the logs out is no fix."""

from collections.abc import Sequence
from typing import Any

from grader.checks import parity
from grader.labs.lab import Logs
from grader.result import FAIL, PASS, CheckResult

NAME, TITLE = "logs", "Same logs"
LATEST = 10  # steps: whoever reads so many at once waits for the device that much less often
HINT = (
    "Log the same values in every step. You may compute them in a different way, and read them up to "
    f"{LATEST} steps later. job.log takes tensors."
)
# Two honest trainings can part by rounding alone, and then other numbers part sooner than losses do. Where the losses have parted
# by this share (`parity.loss_gaps`), `relative` is as wide as it is declared; by twice the share, twice as wide. Of 16 pairs of small
# GPTs, one of each pair begun from weights one millionth off, none needed more than half of that in 400 or 600 steps (AMD EPYC,
# torch 2.14, learning rates of 0.005 and 0.01; the largest activation was compared). On an NVIDIA H200 (torch 2.11) an honest loop
# of 3e_compile had logged 941 steps as the starter had, when its largest activation was 3% off.
PARTED = 1.5e-4
# Of the steps that the reference solution made as well, this share may have logged something else: what is off in a step now and then
# is rounding, and to invent as little saves next to nothing.
ASTRAY = 0.1
Logged = Sequence[dict[str, Any]]  # step by step: name -> number, or None for one that is not finite


def judge(
    check: Logs,
    starter: Logged,
    submission: Logged,
    starter_losses: Sequence[float],
    losses: Sequence[float],
    first: int,
) -> CheckResult:
    """What both logged is compared where both have a step. `starter_losses`, `losses`: what both yielded. `first`: so many steps agree
    whatever the losses do. A loss that is logged must be the one that is yielded; whether that is right, parity says."""
    logged = len(submission) - next((n for n, values in enumerate(reversed(submission)) if values), 0)
    submission = submission[: max(logged, len(submission) - LATEST)]  # the last steps' numbers may still be to come
    evidence = {"steps": len(submission), "names": list(check.names)}
    problem = _incomplete(check, submission, losses)
    if not problem:
        wider = [max(1.0, apart / PARTED) for apart in parity.loss_gaps(starter_losses, losses, first)]
        for name in check.names:
            if name == "loss":
                continue
            together = zip(submission, starter, wider, strict=False)
            off = [_off(check, ours[name], theirs[name], factor) for ours, theirs, factor in together]
            evidence[f"{name}_of_the_tolerance"] = round(max(off, default=0.0), 4)
            at = next((step for step, value in enumerate(off) if value > 1), None)
            if at is not None and not problem:
                ours, theirs = submission[at][name], starter[at][name]
                problem = f"Step {at} logged {name} as {ours:.4g}, and the starter logs {theirs:.4g}"
    if problem:
        return CheckResult(NAME, TITLE, FAIL, 0, 0, f"The logs are not the starter's. {problem}.", HINT, evidence)
    return CheckResult(NAME, TITLE, PASS, 0, 0, "Every step logs what the starter logs.", "", evidence)


def beside_the_reference(
    check: Logs,
    first: CheckResult,
    reference: Logged,
    submission: Logged,
    reference_losses: Sequence[float],
    losses: Sequence[float],
    steps: int,
) -> CheckResult:
    """The second look at logs that `first` has passed: the starter made fewer steps, and what was logged after those may be invented.
    `reference`, `reference_losses`: of the reference solution from the same seed; `steps`: the `first` of `judge`."""
    wider = [max(1.0, apart / PARTED) for apart in parity.loss_gaps(reference_losses, losses, steps)]
    evidence = dict(first.evidence)
    for name in check.names:
        both = [
            (step, _off(check, ours[name], theirs[name], factor))
            for step, (ours, theirs, factor) in enumerate(zip(submission, reference, wider, strict=False))
            if isinstance(ours.get(name), float) and isinstance(theirs.get(name), float)
        ]
        astray = [step for step, off in both if off > 1]
        evidence[f"{name}_astray"] = round(len(astray) / max(1, len(both)), 4)
        if name != "loss" and len(astray) > ASTRAY * len(both):
            ours, theirs = submission[astray[0]][name], reference[astray[0]][name]
            reason = (
                f"The logs are not those of this training. Of {len(both)} steps {len(astray)} logged another {name} than the reference "
                f"solution does on the same batches. The first is step {astray[0]}, with {ours:.4g} in place of {theirs:.4g}."
            )
            return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, HINT, evidence)
    return CheckResult(NAME, TITLE, first.status, 0, 0, first.reason, first.hint, evidence)


def to_come(submission: Logged) -> bool:
    """Whether nothing was logged, and nothing had to be yet."""
    return len(submission) <= LATEST and not any(submission)


def _incomplete(check: Logs, submission: Logged, losses: Sequence[float]) -> str:
    """What is wrong with the submission's logs by themselves, or ''."""
    for step, (values, loss) in enumerate(zip(submission, losses, strict=False)):
        missing = [name for name in check.names if name not in values]
        if missing:
            return f"Step {step} logged no {', '.join(missing)}"
        broken = [name for name in check.names if not isinstance(values[name], float)]
        if broken:
            return f"Step {step} logged {', '.join(broken)} as something that is not a finite number"
        if "loss" in check.names and abs(values["loss"] - loss) > 1e-3 * abs(loss) + 1e-6:
            return f"Step {step} logged the loss {values['loss']:.4g}, but yielded {loss:.4g}"
    return ""


def _off(check: Logs, ours: float, theirs: float, wider: float) -> float:
    """A difference in units of what is tolerated."""
    return abs(ours - theirs) / (wider * check.relative * abs(theirs) + check.absolute)
