"""From pairs of timed blocks to a gain, its interval, and the points. Arithmetic only.

The statistic is the log of (starter's time per step / submission's time per step), one value a pair: noise that scales
both blocks of a pair drops out, and ratios are symmetric in the log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# 95% quantile of Student's t by degrees of freedom 1 to 30 (two-sided 90% interval); beyond, the normal's 1.645 is used
# with a little over. Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
_T95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """A speed-up factor with its 90% interval; `noise` is the standard deviation of one pair's log ratio."""

    factor: float
    lower: float
    upper: float
    noise: float
    pairs: int


def gain(starter_s: Sequence[float], submission_s: Sequence[float], noise_floor: float = 0.0) -> Gain:
    """The gain from times per step, pair by pair. `noise_floor` is the least sd of a pair's log ratio to believe: a few
    pairs can agree by luck. Raises ValueError for fewer than two pairs or times that are not positive."""
    if len(starter_s) != len(submission_s) or len(starter_s) < 2:
        raise ValueError(f"need two or more pairs, got {len(starter_s)} and {len(submission_s)} times")
    if min(*starter_s, *submission_s) <= 0:
        raise ValueError("times per step must be positive")
    ratios = [math.log(a / b) for a, b in zip(starter_s, submission_s, strict=True)]
    n = len(ratios)
    sd = stdev(ratios)
    mean = fmean(ratios)
    t = _T95[n - 2] if n - 2 < len(_T95) else 1.68
    half = t * max(sd, noise_floor) / math.sqrt(n)
    return Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), sd, n)


def fraction(factor: float, target: float) -> float:
    """The share of the points that a gain earns: clip(log(factor) / log(target), 0, 1). Half the fix, in log, earns half
    the points. Raises ValueError unless target > 1."""
    if target <= 1:
        raise ValueError(f"a target gain must be above 1, got {target}")
    return min(1.0, max(0.0, math.log(factor) / math.log(target)))


def settled(measured: Gain, target: float, precision: float) -> bool:
    """Whether the points are known to within +-`precision` (a fraction of all points). A gain at the target or above
    whose lower end still costs points is not settled: more pairs may show that it earns them all."""
    if measured.lower < target <= measured.factor:
        return False
    low, high = fraction(measured.lower, target), fraction(measured.upper, target)
    return high - low <= 2 * precision


def target(reference_gain: float, share: float = 0.87) -> float:
    """The gain that earns full points: `share`, in log, of what the reference solution gains on this machine."""
    return reference_gain**share
