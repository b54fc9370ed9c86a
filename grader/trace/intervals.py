"""Sets of half-open intervals [start, end) in integer ns, as int64 arrays (starts, ends); those that only touch do not overlap."""

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]

TOUCHING_NS = 1_000  # events that overlap by less may do so by a clock's steps or a writer's rounding alone
EMPTY: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: np.ndarray, ends: np.ndarray) -> Intervals:
    """The union as disjoint intervals in order; touching ones are joined, empty ones are left out."""
    kept = ends > starts
    if not kept.all():
        starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    ends = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.append(True, starts[1:] > ends[:-1]))  # where a new island begins
    return starts[first], ends[np.append(first[1:] - 1, len(ends) - 1)]


def joined(*sets: Intervals) -> Intervals:
    """The union of several sets."""
    starts, ends = zip(*sets, strict=True)
    return union(np.concatenate(starts), np.concatenate(ends))


def length(intervals: Intervals) -> int:
    """Total length of disjoint intervals, ns."""
    return int((intervals[1] - intervals[0]).sum())


def contains(intervals: Intervals, times: np.ndarray) -> np.ndarray:
    """Mask of the times that lie within disjoint, ordered intervals."""
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(times), bool)
    at = np.searchsorted(starts, times, side="right") - 1
    return (at >= 0) & (times < ends[np.maximum(at, 0)])


def before(intervals: Intervals, times: np.ndarray) -> np.ndarray:
    """How much of disjoint, ordered intervals lies before each of these times, ns."""
    starts, ends = intervals
    if not len(starts):
        return np.zeros(len(times), np.int64)
    total = np.append(0, np.cumsum(ends - starts))
    at = np.searchsorted(starts, times, side="right")
    return total[at] - np.where(at > 0, np.maximum(ends[np.maximum(at - 1, 0)] - times, 0), 0)


def covered(starts: np.ndarray, ends: np.ndarray, intervals: Intervals) -> np.ndarray:
    """How much of each stretch from start to end lies in disjoint, ordered intervals, ns."""
    return before(intervals, ends) - before(intervals, starts)


def clip(intervals: Intervals, low: int, high: int) -> Intervals:
    """The part within [low, high)."""
    starts, ends = np.maximum(intervals[0], low), np.minimum(intervals[1], high)
    kept = ends > starts
    return starts[kept], ends[kept]


def complement(intervals: Intervals, low: int, high: int) -> Intervals:
    """What disjoint, ordered intervals leave free of [low, high)."""
    starts, ends = clip(intervals, low, high)
    starts, ends = np.append(low, ends), np.append(starts, high)
    kept = ends > starts
    return starts[kept], ends[kept]


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What two sets of disjoint, ordered intervals share."""
    if not len(a[0]) or not len(b[0]):
        return EMPTY
    # Outside b = outside of its hull and in its gaps; so a and b = a without the complement of b.
    low, high = int(min(a[0][0], b[0][0])), int(max(a[1][-1], b[1][-1]))
    return difference(a, complement(b, low, high))


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What is in a and not in b (both disjoint and ordered)."""
    if not len(a[0]):
        return EMPTY
    low, high = int(a[0][0]), int(a[1][-1])
    outside = complement(a, low, high)
    return complement(joined(outside, b), low, high)


def close_gaps(intervals: Intervals, shortest: int) -> Intervals:
    """Join neighbours whose gap is shorter than `shortest` ns."""
    starts, ends = intervals
    if not len(starts):
        return intervals
    first = np.flatnonzero(np.append(True, starts[1:] - ends[:-1] >= shortest))
    return starts[first], ends[np.append(first[1:] - 1, len(ends) - 1)]


def longest_row(broken: np.ndarray) -> tuple[int, int]:
    """Of the entries that are not broken (bool) the longest row: its first one's position, and how many they are."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], broken, [True])))).reshape(-1, 2)
    first, end = max(edges.tolist(), key=lambda row: row[1] - row[0], default=(0, 0))
    return first, end - first
