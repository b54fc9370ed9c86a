"""From pairs of timed blocks to a gain, its interval, and the points. Arithmetic only.

The statistic is the log of (starter's time per step / submission's), one value a pair: noise that scales both blocks drops out. How
often the rule is wrong was simulated: `python -m tests.benchmarks.decision_errors`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

FEW, FAR = 4, 0.6  # with fewer pairs only all points are settled, and what is no more than this share of them

# 95% quantile of Student's t by degrees of freedom 1 to 30 (two-sided 90% interval); beyond, the normal's 1.645 is used
# with a little over. Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
_T95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """A speed-up factor with its 90% interval."""

    factor: float
    lower: float
    upper: float
    noise: float  # the standard deviation of one pair's log ratio
    pairs: int


def _student(freedom: int) -> float:
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.68


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
    half = _student(n - 1) * max(sd, noise_floor) / math.sqrt(n)
    return Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), sd, n)


def of_runs(
    before: Sequence[float],
    now: Sequence[float],
    others: Sequence[Sequence[float]] = (),
    noise_floor: float = 0.0,
    wider: float = 1.0,
) -> Gain:
    """The gain from few runs of two jobs, times per step. How much runs of one job differ is pooled over both and the `others`. The
    interval is so many times wider, and unbounded where no job ran twice. Raises ValueError for no runs or times that are not
    positive. Student's t for two means with one variance: https://www.itl.nist.gov/div898/handbook/eda/section3/eda353.htm"""
    if not before or not now:
        raise ValueError("need a run or more of each job")
    if min(*before, *now) <= 0:
        raise ValueError("times per step must be positive")
    jobs = [[math.log(x) for x in job] for job in (before, now, *others) if job]
    mean, n = fmean(jobs[0]) - fmean(jobs[1]), min(len(before), len(now))
    freedom = sum(len(job) - 1 for job in jobs)
    if not freedom:
        return Gain(math.exp(mean), 0.0, math.inf, math.nan, n)
    sd = math.sqrt(sum((x - fmean(job)) ** 2 for job in jobs for x in job) / freedom)
    half = wider * _student(freedom) * max(sd, noise_floor) * math.sqrt(1 / len(before) + 1 / len(now))
    return Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), sd, n)


def change(before: Sequence[float], now: Sequence[float], noise_floor: float = 0.0) -> Gain:
    """How many times as fast this night was as the nights `before` it, from times (any unit, one a night; of this night one a repeat),
    with the interval of one more night: what a night does to all its repeats is not averaged away. `noise_floor` as in `gain`. Raises
    ValueError for fewer than two nights, none now, or times that are not positive."""
    if len(before) < 2 or not now:
        raise ValueError(f"need two or more nights before this one, got {len(before)}, and {len(now)} times now")
    if min(*before, *now) <= 0:
        raise ValueError("times must be positive")
    earlier, n = [math.log(x) for x in before], len(before)
    sd = stdev(earlier)
    mean = fmean(earlier) - fmean(map(math.log, now))
    half = _student(n - 1) * max(sd, noise_floor) * math.sqrt(1 + 1 / n)
    return Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), sd, n)


def fraction(factor: float, target: float) -> float:
    """The share of the points that a gain earns: clip(log(factor) / log(target), 0, 1). Raises ValueError unless target > 1."""
    if target <= 1:
        raise ValueError(f"a target gain must be above 1, got {target}")
    return min(1.0, max(0.0, math.log(factor) / math.log(target)))


@dataclass(frozen=True)
class Pair:
    """Two timed blocks, one of each arm."""

    starter_s: float  # seconds per step
    submission_s: float
    # share of the block's time (0 to 1) that went to other programs, as far as that can be told
    starter_lost: float = 0.0
    submission_lost: float = 0.0
    disturbed: str = ""  # why the pair cannot count

    @property
    def lost(self) -> float:
        """The larger share of the two."""
        return max(self.starter_lost, self.submission_lost)


@dataclass(frozen=True)
class Decision:
    """What pairs say."""

    gain: Gain
    certain: float  # the gain that the points are for
    settled: bool  # the points are known
    pairs: tuple[Pair, ...]  # that count


def decide(
    pairs: Sequence[Pair], target: float, noise_floor: float, precision: float, min_pairs: int = 2
) -> Decision | None:
    """What the pairs measured so far say; None where fewer than `min_pairs` of them can count.

    The points are settled when the interval says them to within +-`precision` (a fraction of all points), and when each
    arm agrees with itself: they may hang by no more than twice `precision` on whether an arm always ran as in its fastest
    block. Pairs in which the starter was about as fast as at its best may settle them, too. A loop that could have earned all
    points, had it always run so, three half intervals up, is not told that it failed. What that gets wrong, and how often:
    data/measured/decision.md."""
    doubt, worth = 2 * precision, math.log(target)
    views = _views(pairs, doubt * worth, noise_floor, min_pairs)
    if not views:
        return None
    for view in views:
        if _settled(view, target, doubt):
            return Decision(view.gain, view.gain.lower, True, view.pairs)
    view = views[-1]
    firm = fraction(view.gain.lower, target) - fraction(view.least, target) <= doubt
    return Decision(view.gain, view.gain.lower if firm else view.least, False, view.pairs)


def decide_healthy(
    pairs: Sequence[Pair], slower: float, worth: float, noise_floor: float, min_pairs: int = 2
) -> Decision | None:
    """`decide` for a loop that has only to keep its speed: settled when it is known whether its gain is at least
    `slower`; that it is not, from the fourth pair, and by all pairs: those in which the starter was fast were chosen for it.
    worth: the log of the gain, or loss, that is worth all points."""
    views = _views(pairs, 0.1 * worth, noise_floor, min_pairs)
    for view in views:
        if view.gain.lower >= slower or (view is views[0] and view.most < slower and len(view.pairs) >= FEW):
            return Decision(view.gain, view.gain.lower, True, view.pairs)
    return Decision(views[-1].gain, views[-1].gain.lower, False, views[-1].pairs) if views else None


SLOWER_BESIDE = 1.15  # by what factor blocks of one loop differ with nobody to blame, beside what they scatter


def slowed(beside_s: Sequence[float], alone_s: Sequence[float]) -> float:
    """By what factor a loop was slower in its blocks beside another one than in the slowest of its times alone (seconds a step);
    1 where that is no more than chance: SLOWER_BESIDE, and twice what the blocks' mean and one more block scatter by."""
    logs = [math.log(each) for each in beside_s]
    factor = fmean(logs) - math.log(max(alone_s))
    chance = math.log(SLOWER_BESIDE) + 2 * stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return math.exp(factor) if factor > chance else 1.0


SAME = 1.03  # two loops whose speeds differ by less than this factor are as fast as each other
FASTER, EQUAL, SLOWER, UNKNOWN = "faster", "as fast", "slower", "cannot tell"


def direction(found: Gain) -> str:
    """FASTER, EQUAL or SLOWER, where the interval says so; else UNKNOWN."""
    if found.lower >= 1 / SAME and found.upper <= SAME:
        return EQUAL
    return FASTER if found.lower > 1 else SLOWER if found.upper < 1 else UNKNOWN


@dataclass(frozen=True)
class _View:
    """Some of the pairs."""

    pairs: tuple[Pair, ...]
    gain: Gain
    slow: float  # how far (in log) the starter's mean block lies above its fastest one
    fast: float  # the same of the submission

    @property
    def least(self) -> float:
        """The gain's lower end, had the starter always run as in its fastest block."""
        return self.gain.lower * math.exp(-self.slow)

    @property
    def most(self) -> float:
        """The gain's upper end, had the submission always run as in its fastest block."""
        return self.gain.upper * math.exp(self.fast)


def _views(pairs: Sequence[Pair], tolerance: float, noise_floor: float, min_pairs: int) -> list[_View]:
    """All pairs that can count; and, where they are others and not few, those in which neither arm was slowed by more than
    `tolerance` (in log): not the starter, against its fastest block, and not the submission, by what it lost. How fast
    the submission was plays no part: it could choose its pairs."""
    counted = [pair for pair in pairs if not pair.disturbed]
    if len(counted) < max(2, min_pairs):
        return []
    best = min(math.log(pair.starter_s * (1 - pair.starter_lost)) for pair in counted)
    fastest = min(math.log(pair.submission_s * (1 - pair.submission_lost)) for pair in counted)
    quiet = [
        pair
        for pair in counted
        if math.log(pair.starter_s) - best <= tolerance and -math.log(1 - pair.submission_lost) <= tolerance
    ]
    chosen = [counted] + ([quiet] if max(FEW, min_pairs) <= len(quiet) < len(counted) else [])
    views = []
    for some in chosen:
        starter_s, submission_s = [pair.starter_s for pair in some], [pair.submission_s for pair in some]
        slow, fast = fmean(map(math.log, starter_s)) - best, fmean(map(math.log, submission_s)) - fastest
        views.append(_View(tuple(some), gain(starter_s, submission_s, noise_floor), slow, fast))
    return views


def _settled(view: _View, target: float, doubt: float) -> bool:
    found = view.gain
    low, high = fraction(found.lower, target), fraction(found.upper, target)
    if low - fraction(view.least, target) > doubt:
        return False
    if low >= 1:
        return True
    if found.factor >= target:  # more pairs may show that it earns all points
        return False
    if len(view.pairs) < FEW and high > FAR:
        return False
    half = found.upper / found.factor
    if low < 1 - doubt and found.factor * math.exp(view.fast) * half**3 >= target:
        return False
    return (
        high - low <= doubt
        and fraction(found.factor * math.exp(view.fast), target) - fraction(found.factor, target) <= doubt
    )


def target(reference_gain: float, share: float = 0.87) -> float:
    """The gain that earns full points: `share`, in log, of what the reference solution gains on this machine."""
    return reference_gain**share
