"""Is it faster, and by how much of what can be won on this machine?"""

import math
from collections.abc import Callable
from typing import Any

from grader.labs.lab import Throughput
from grader.measure import decision
from grader.result import AGAIN, FAIL, INCONCLUSIVE, PASS, CheckResult, scored

MUCH_LOST = 0.1  # of a block's time, to other programs


def interval_counts(lower: float, certain: float) -> bool:
    """Whether the points are for the lower end of the gain's interval; where not, it says too much and is not shown."""
    return certain >= 0.999 * lower


def judge(check: Throughput, decided: decision.Decision, target: float, evidence: dict[str, Any]) -> CheckResult:
    """Points are for what is certain: the lower end of the gain's 90% interval, or less (`Decision.certain`). Not settled (noise, or something else that ran on the
    machine, was too much for the pairs that were allowed): INCONCLUSIVE, with the points that are certain all the same."""
    gain, settled = decided.gain, decided.settled
    share = decision.fraction(decided.certain, target)
    counts = interval_counts(gain.lower, decided.certain)
    measured = f"{gain.factor:.2f}x" + (f" (90% interval {gain.lower:.2f} to {gain.upper:.2f})" if counts else "")
    if share >= 1:
        status, reason = PASS, f"The loop runs {measured} as fast as the starter. Full points need {target:.2f}x."
    elif (cores := evidence.get("cores", 1.0)) > 1:
        status = FAIL
        reason = (
            f"The loop runs {measured} as fast as the starter. But it trained on {cores:.2g} cores at once, and the starter on one. What "
            f"more cores gain doesn't count. {max(1.0, decided.certain):.2f}x is certain and earns {share:.0%}. Full points need "
            f"{target:.2f}x. Leave the number of PyTorch's threads as it is, and train in one process."
        )
    elif evidence.get("worked_ahead"):
        # where others disturbed most pairs, or took much of the others' time, it is rather they who took that time
        disturbed = evidence.get("pairs_left_out", 0) > gain.pairs or _lost(decided) > MUCH_LOST
        status = INCONCLUSIVE if disturbed else FAIL
        reason = (
            f"The loop runs {measured} as fast as the starter. But it took so long before the timed blocks that it could have "
            "worked ahead there. Its first steps, compiling, job.weights and pairs that don't count lie before them, and nobody times these. "
            f"{max(1.0, decided.certain):.2f}x is certain and earns {share:.0%}. Full points need {target:.2f}x."
        )
        if status == FAIL:
            reason += " Do less before the first `yield`."
    elif not settled:
        status, why = INCONCLUSIVE, _why_uncertain(decided, evidence)
        certain = f"{decided.certain:.2f}x is certain, and counts" if share > 0 else "no speed-up is certain"
        reason = (
            f"The loop runs {measured} as fast as the starter, but {why}. After {gain.pairs} pairs of blocks {certain}."
        )
    elif gain.upper < 1.02 or share == 0:
        status = FAIL
        reason = f"No speed-up is visible. The loop runs {measured} as fast as the starter, and full points need {target:.2f}x."
    else:
        status = FAIL
        reason = (
            f"The loop runs {measured} as fast as the starter, which earns {share:.0%}. Full points need {target:.2f}x."
        )
    if evidence.get("prepare_s", 0) > 0.1:
        reason += (
            f" Its preparation took {evidence['prepare_s']:.1f} s. Spread over the whole training that is "
            f"{evidence['prepare_ms_a_step']:.2g} ms per step, and it counts."
        )
    if status == INCONCLUSIVE:
        reason += f" {AGAIN}"
    return scored(check, share * check.points, reason, evidence, status)


def _lost(decided: decision.Decision) -> float:
    return max(pair.lost for pair in decided.pairs)


def _why_uncertain(decided: decision.Decision, evidence: dict[str, Any]) -> str:
    if (slowed := evidence.get("slowed", 1)) > 1:
        return f"something slowed the starter beside it, whose step took {slowed:.2g} times as long as alone"
    if _lost(decided) > MUCH_LOST:
        return f"other programs took up to {_lost(decided):.0%} of a loop's time"
    return f"equal blocks took unequal times here (one pair differs from the next by {decided.gain.noise:.0%})"


NOT_SLOWER = 0.97  # a loop that is at least this fast is not slower
HALF_LOST = 0.8  # at this speed half of the points are gone, at its square all


def judge_healthy(
    check: Throughput, decided: decision.Decision, evidence: dict[str, Any], untouched: bool = False
) -> CheckResult:
    """For a starter with nothing wrong: all points for a loop that is not slower, less and less for one that is. The upper
    end of the interval counts: nobody loses points to noise. untouched: it is the starter itself."""
    gain = decided.gain
    measured = f"{gain.factor:.2f}x (90% interval {gain.lower:.2f} to {gain.upper:.2f})"
    if untouched:
        reason = "This is the untouched loop, as fast as it was."
        return scored(check, check.points, reason, evidence | {"untouched": True})
    kept: Callable[[float], float] = lambda speed: max(0.0, 1 - 0.5 * math.log(speed) / math.log(HALF_LOST))  # noqa: E731
    if gain.upper < NOT_SLOWER and decided.settled:
        reason = f"The loop runs {measured} as fast as the untouched one. Your changes made it slower."
        return scored(check, kept(gain.upper) * check.points, reason, evidence, FAIL)
    if gain.lower < NOT_SLOWER:
        reason = (
            f"The loop runs {measured} as fast as the untouched one, but equal blocks took unequal times here, so it may "
            f"or may not be slower. The certain part earns {kept(gain.lower):.0%} of the points. {AGAIN}"
        )
        return scored(check, kept(gain.lower) * check.points, reason, evidence, INCONCLUSIVE)
    return scored(check, check.points, f"The loop runs {measured} as fast as the untouched one.", evidence)
