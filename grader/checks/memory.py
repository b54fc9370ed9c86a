"""Does the loop keep what it no longer needs, and does it fit? Both as seen from outside."""

from __future__ import annotations

from dataclasses import replace

from grader.labs.lab import Budget, Growth
from grader.measure.memory import Meter, growth
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult

TOO_FEW = "Too few blocks were timed to tell whether memory grows. That says nothing about your loop: check again, not in quick mode."
NOTHING = 0.02  # of a leak: what is gone of it by chance


def size(number: float) -> str:
    """Bytes in words: 3.2 MB, 12.5 KB."""
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if abs(number) >= one:
            return f"{number / one:.3g} {unit}"
    return f"{number / 1e3:.3g} KB"


def kilobytes(number: float) -> str:
    """7 KB, 1,284 KB: numbers to be compared; nothing grows by less than none."""
    return f"{max(0.0, number) / 1e3:,.0f} KB"


def judge_growth(check: Growth, starter: Meter, submission: Meter) -> CheckResult:
    """All points for memory that stays level; else the share of the starter's growth that is gone."""
    ours, theirs = growth(submission.levels), growth(starter.levels)
    if ours is None or theirs is None:
        return CheckResult(check.name, check.title, INCONCLUSIVE, 0, check.points, TOO_FEW)
    total, before = sum(ours), sum(theirs)
    # what the growth itself does not explain
    begun = submission.levels[0].steps
    ahead = max(each.gpu - max(0, ours[0]) * (each.steps - begun) for each in submission.levels) - starter.levels[0].gpu
    main = max(each.largest - max(0, ours[1]) * (each.steps - begun) for each in submission.levels)
    main -= starter.levels[0].largest
    evidence = {
        "grows_kb_a_step": total / 1e3,
        "of_it_on_the_gpu": ours[0] / 1e3,
        "starter_grows_kb_a_step": before / 1e3,
        "at_most_kb_a_step": check.at_most / 1e3,
        "steps": submission.levels[-1].steps,
        "levels_mb": [[each.steps, each.gpu / 1e6, each.main / 1e6] for each in submission.levels],
    }

    def result(status: str, points: float, reason: str, *hints: str) -> CheckResult:
        hint, *deeper = hints or ("",)
        return CheckResult(
            check.name, check.title, status, round(points, 2), check.points, reason, hint, evidence, deeper
        )

    # where the leak is one of main memory, and what was taken in advance can hold a good part of it
    leak = max(0.0, theirs[1]) * (submission.levels[-1].steps - begun)
    hides = theirs[1] > theirs[0] and main > max(check.ahead_main, leak / 4)
    for taken, held, kind in ((ahead > check.ahead, ahead, "GPU"), (hides, main, "main")):
        if taken:
            reason = (
                f"The loop holds {size(held)} of {kind} memory more than the untouched one does at "
                "first. In memory that was taken in advance a leak cannot be seen, so this is not counted."
            )
            return result(FAIL, 0, reason, *check.hints)
    where = f"GPU {size(ours[0])}, main memory {size(ours[1])}" if submission.on_gpu else "main memory"
    if total <= check.at_most:
        seen = f"From step to step memory grows by {kilobytes(total)} (the untouched loop: {kilobytes(before)})"
        return result(PASS, check.points, f"{seen}; up to {kilobytes(check.at_most)} count as level.")
    share = min(0.95, max(0.0, 1 - total / before)) if before > 0 else 0.0
    share = share if share > NOTHING else 0.0
    reason = f"Each step leaves {size(total)} behind ({where}); the untouched loop leaves {size(before)}."
    if share:
        reason += f" What is gone of it earns {share:.0%} of the points."
    return result(FAIL, share * check.points, reason, *check.hints)


def judge_budget(check: Budget, budget: int, meter: Meter) -> CheckResult:
    """All points within the budget, none beyond."""
    allowed = budget + (check.beside if meter.on_gpu else 0)
    what = "GPU memory, CUDA's own included" if meter.on_gpu else "main memory"
    evidence = {"peak_mb": meter.peak / 1e6, "budget_mb": budget / 1e6, "allowed_mb": allowed / 1e6}
    seen = f"At its peak the loop held {size(meter.peak)} of {what}; {size(allowed)} are allowed."
    if meter.peak <= allowed:
        return CheckResult(check.name, check.title, PASS, check.points, check.points, seen, "", evidence)
    hint, *deeper = check.hints
    return CheckResult(check.name, check.title, FAIL, 0, check.points, seen, hint, evidence, deeper)


def as_far_as(supported: float, what: str, found: CheckResult) -> CheckResult:
    """A check that the untouched loop passes as well earns the share (0 to 1) of its points that what had to be done
    supports; `what`: that, in words."""
    if supported >= 1 or not found.points:
        return found
    untouched = "passes this, too" if found.status == PASS else "does no worse"
    reason = f"{found.reason} The untouched loop {untouched}: {what} supports {supported:.0%} of these points."
    return replace(found, status=FAIL, points=round(supported * found.points, 2), reason=reason)
