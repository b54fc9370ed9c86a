"""Does the loop keep what it no longer needs, and does it fit? Both as seen from outside."""

import math

from grader.labs.lab import Budget, Growth
from grader.measure.memory import Meter, growth
from grader.result import FAIL, INCONCLUSIVE, CheckResult, scored, unscored
from grader.safe_text import size_text

TOO_FEW = "Too few blocks were timed to tell whether memory grows. That says nothing about your loop. Check again without quick mode."
NOTHING = 0.02  # of a leak: what is gone of it by chance
OUTLASTED = 8  # times what is held in advance: so large a leak must become before its absence tells


def kilobytes(number: float) -> str:
    """7 KB, 1,284 KB: numbers to be compared; nothing grows by less than none."""
    return f"{max(0.0, number) / 1e3:,.0f} KB"


def _held(starter: Meter, submission: Meter) -> tuple[float, float]:
    """Bytes of the GPU's and of main memory, there in one process, that the submission holds more than the starter did at
    first, and that its growth does not explain. Both grew, see `growth`."""
    gpu, main = growth(submission.levels) or (0.0, 0.0)
    first, begun = starter.levels[0], submission.levels[0].steps
    levels = submission.levels
    return (
        max(0.0, max(each.gpu - max(0, gpu) * (each.steps - begun) for each in levels) - first.gpu),
        max(0.0, max(each.largest - max(0, main) * (each.steps - begun) for each in levels) - first.largest),
    )


def _hidden(starter: Meter, submission: Meter) -> float:
    """The share of the starter's leak, over the steps that were looked at, that could lie in what the submission holds."""
    steps = submission.levels[-1].steps - submission.levels[0].steps
    leaked = sum(growth(starter.levels) or (0.0, 0.0)) * steps
    return sum(_held(starter, submission)) / leaked if leaked > 0 else 0.0


def steps_to_tell(check: Growth, starter: Meter, submission: Meter) -> int:
    """How many more steps the submission has to make until what it holds in advance could hide no more than one part in
    OUTLASTED of the starter's leak: memory can be let go as a leak grows. 0 too where it holds more than it may."""
    if growth(submission.levels) is None or growth(starter.levels) is None or _too_much(check, starter, submission):
        return 0
    steps = submission.levels[-1].steps - submission.levels[0].steps
    return max(0, math.ceil((OUTLASTED * _hidden(starter, submission) - 1) * steps))


def _too_much(check: Growth, starter: Meter, submission: Meter) -> str:
    """What is held in advance beyond what may be, in words, or ''; of main memory libraries take more beside a GPU. However
    much it is, it may be held where the leak would be OUTLASTED times as large."""
    if OUTLASTED * _hidden(starter, submission) <= 1:
        return ""
    theirs = growth(starter.levels) or (0.0, 0.0)
    gpu, main = _held(starter, submission)
    if gpu > check.ahead:
        return f"{size_text(gpu)} of GPU memory"
    if main > (check.ahead_main if theirs[1] > theirs[0] else check.ahead):
        return f"{size_text(main)} of main memory"
    return ""


def judge_growth(check: Growth, starter: Meter, submission: Meter) -> CheckResult:
    """The points that the share of the starter's growth earns that is gone, less what memory held in advance could hide of it."""
    ours, theirs = growth(submission.levels), growth(starter.levels)
    if ours is None or theirs is None:
        return unscored(check, INCONCLUSIVE, TOO_FEW)
    total, before = sum(ours), sum(theirs)
    evidence = {
        "grows_kb_a_step": total / 1e3,
        "of_it_on_the_gpu": ours[0] / 1e3,
        "starter_grows_kb_a_step": before / 1e3,
        "at_most_kb_a_step": check.at_most / 1e3,
        "held_in_advance_mb": [each / 1e6 for each in _held(starter, submission)],
        "steps": submission.levels[-1].steps,
        "levels_mb": [[each.steps, each.gpu / 1e6, each.main / 1e6] for each in submission.levels],
    }

    if taken := _too_much(check, starter, submission):
        reason = (
            f"The loop holds {taken} more than the untouched one does at first. A leak into memory that was taken "
            "in advance can't be seen, so this doesn't count."
        )
        return scored(check, 0, reason, evidence, FAIL)
    if steps_to_tell(check, starter, submission):
        held = size_text(sum(_held(starter, submission)))
        reason = (
            f"The loop holds {held} more than the untouched one does at first. A leak of so few steps could hide in that, so "
            "this is undecided. Check again without quick mode, for more steps."
        )
        return unscored(check, INCONCLUSIVE, reason, evidence)
    where = f"GPU {size_text(ours[0])}, main memory {size_text(ours[1])}" if submission.on_gpu else "main memory"
    if total <= check.at_most:
        seen = f"From step to step memory grows by {kilobytes(total)} (the untouched loop's by {kilobytes(before)})"
        return scored(check, check.points, f"{seen}. Up to {kilobytes(check.at_most)} counts as level.", evidence)
    share = min(0.95, max(0.0, 1 - total / before - _hidden(starter, submission))) if before > 0 else 0.0
    share = share if share > NOTHING else 0.0
    reason = f"Each step leaves {size_text(total)} behind ({where}). The untouched loop leaves {size_text(before)}."
    if share:
        reason += f" The part that is gone earns {share:.0%} of the points."
    return scored(check, share * check.points, reason, evidence, FAIL)


def judge_budget(check: Budget, budget: int, meter: Meter) -> CheckResult:
    """All points within the budget, none beyond."""
    allowed = budget + (check.beside if meter.on_gpu else 0)
    what = "GPU memory, CUDA's own included" if meter.on_gpu else "main memory"
    evidence = {"peak_mb": meter.peak / 1e6, "budget_mb": budget / 1e6, "allowed_mb": allowed / 1e6}
    seen = f"At its peak the loop held {size_text(meter.peak)} of {what}. {size_text(allowed)} are allowed."
    return scored(check, check.points if meter.peak <= allowed else 0, seen, evidence)
