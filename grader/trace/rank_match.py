"""The same collectives on all ranks, and all ranks on one clock.

The n-th collective of a group in a step is the same on all its members, and ends at about the same time. So ends tell how far two
ranks' clocks are apart, and times from its start to when the last rank came are times of waiting."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grader.trace.collectives import TOGETHER
from grader.trace.rank import Rank

SAME_CLOCK_NS = 5_000_000  # on one host ends differ by less, and clocks by nothing
ROUNDS = 3
DRIFT_ROWS = 16  # collectives that a drift can be read from
DRIFT_NS = 20_000  # over the whole recording; a smaller one is left alone
SIZED = frozenset(("all_reduce", "broadcast", "reduce"))  # of as many bytes on every rank


@dataclass(frozen=True)
class Matched:
    """One row a collective, one column a rank; NaN, and -1 in `index`, for a rank that takes no part in it."""

    start: np.ndarray  # ns, on one clock
    end: np.ndarray
    index: np.ndarray  # into the rank's own `calls`
    kind: list[str]
    group: list[str]
    bytes: np.ndarray
    members: np.ndarray
    label: np.ndarray  # of the step
    differ: int  # rows left out, as ranks did not do the same there
    partial: int  # and as not all ranks recorded as many in that step
    offset: np.ndarray  # ns by which each rank's clock is ahead of the first one's; NaN where nothing tells it
    spread: np.ndarray  # of each rank, ns: by how much its ends are off from those of the others, in the median

    def __len__(self) -> int:
        return len(self.kind)


def match(ranks: Sequence[Rank], labels: np.ndarray) -> Matched:
    """labels: of the steps that all of them counted."""
    rows = _rows(ranks, labels)
    members: dict[str, set[int]] = {}
    for (group, *_), found in rows.items():
        members.setdefault(group, set()).update(found)
    rows = {key: found for key, found in rows.items() if len(members[key[0]]) > 1}
    # Where a rank lacks one, nobody knows which one of the step that is.
    broken = {key[:2] for key, found in rows.items() if len(found) < len(members[key[0]])}
    whole = {key: found for key, found in rows.items() if key[:2] not in broken}
    kept = [(key, found) for key, found in whole.items() if _alike(ranks, found)]
    differ, partial = len(whole) - len(kept), len(rows) - len(whole)
    index = np.full((len(kept), len(ranks)), -1)
    for row, (_, found) in enumerate(kept):
        index[row, list(found)] = list(found.values())
    first = [next(iter(found.items())) for _, found in kept]
    start, end = (_times(ranks, index, name) for name in ("start", "end"))
    kind = [ranks[r].calls.kind[i] for r, i in first]
    offset, drift = _clocks(ranks, end, np.array([k in TOGETHER for k in kind], bool))
    shift = np.where(np.isnan(offset), 0.0, offset) + drift
    start, end = start - shift, end - shift
    middle = _median(end, axis=1)
    return Matched(
        start=start,
        end=end,
        index=index,
        kind=kind,
        group=[key[0] for key, _ in kept],
        bytes=np.array([max(int(ranks[r].calls.bytes[i]) for r, i in found.items()) for _, found in kept], np.int64),
        members=np.array(
            [max(int(ranks[r].calls.members[i]), len(found)) for (_, found), (r, i) in zip(kept, first, strict=True)],
            np.int64,
        ),
        label=np.array([int(ranks[r].step[i]) for r, i in first], np.int64),
        differ=differ,
        partial=partial,
        offset=offset,
        spread=_median(np.abs(end - middle[:, None]), axis=0),
    )


def _rows(ranks: Sequence[Rank], labels: np.ndarray) -> dict[tuple, dict[int, int]]:
    """(group, step, number within it) -> rank -> index of its call; where all ranks number them, by that number."""
    numbered: dict[str, bool] = {}
    for rank in ranks:
        for group, sequence in zip(rank.calls.group, rank.calls.sequence.tolist(), strict=True):
            numbered[group] = numbered.get(group, True) and sequence >= 0
    rows: dict[tuple, dict[int, int]] = {}
    for r, rank in enumerate(ranks):
        count: Counter = Counter()
        for i in np.flatnonzero(np.isin(rank.step, labels)).tolist():
            group = rank.calls.group[i]
            if not group:
                continue
            within = (group, int(rank.calls.sequence[i]) if numbered[group] else int(rank.step[i]))
            rows.setdefault((*within, count[within]), {})[r] = i
            count[within] += 1
    return rows


def _alike(ranks: Sequence[Rank], found: dict[int, int]) -> bool:
    kinds = {ranks[r].calls.kind[i] for r, i in found.items()}
    sizes = {int(ranks[r].calls.bytes[i]) for r, i in found.items()} - {-1}
    return kinds <= {"send", "recv"} or (len(kinds) == 1 and (len(sizes) < 2 or not kinds <= SIZED))


def _times(ranks: Sequence[Rank], index: np.ndarray, name: str) -> np.ndarray:
    """On each rank's own clock, ns since the first one's zero."""
    columns = []
    for r, rank in enumerate(ranks):
        times = np.append(getattr(rank.calls, name) + (rank.zero - ranks[0].zero), 0).astype(float)
        columns.append(np.where(index[:, r] >= 0, times[index[:, r]], np.nan))
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0))


def _clocks(ranks: Sequence[Rank], end: np.ndarray, together: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far each rank's clock is ahead of the first one's, and by how much more at each collective, as clocks drift."""
    n = len(ranks)
    offset, drift = np.full(n, np.nan), np.zeros_like(end)
    if not len(end):
        return offset, drift
    ends = end[together] if together.any() else end
    for root in range(n):  # from one rank to those that it shares a collective with, and on
        if np.isnan(offset[root]):
            offset[root] = 0.0
            _spread_from(root, ends, offset)
    for _ in range(ROUNDS):
        middle = _median(ends - offset, axis=1)
        offset = _median(ends - middle[:, None], axis=0)
        offset = np.where(np.isnan(offset), 0.0, offset)
    offset -= offset[0]
    hosts = {rank.host for rank in ranks}
    if len(hosts) == 1 and None not in hosts and np.abs(offset).max() < SAME_CLOCK_NS:
        return np.zeros(n), drift
    if len(ends) >= DRIFT_ROWS:
        drift = _drift(end - offset, ends - offset)
    return offset, drift


def _spread_from(root: int, ends: np.ndarray, offset: np.ndarray) -> None:
    waiting = [root]
    while waiting:
        one = waiting.pop(0)
        apart = _median(ends - ends[:, [one]], axis=0)
        new = np.flatnonzero(np.isnan(offset) & ~np.isnan(apart))
        offset[new] = offset[one] + apart[new]
        waiting += new.tolist()


def _drift(end: np.ndarray, aligned: np.ndarray) -> np.ndarray:
    """A line through the medians of both halves of each rank's differences from the others."""
    middle = _median(aligned, axis=1)
    order = np.argsort(middle)
    half = len(order) // 2
    off = (aligned - middle[:, None])[order]
    rise = _median(off[half:], axis=0) - _median(off[:half], axis=0)
    run = np.median(middle[order[half:]]) - np.median(middle[order[:half]])
    slope = np.where(np.isnan(rise) | (run <= 0), 0.0, rise / max(run, 1.0))
    span = float(middle[order[-1]] - middle[order[0]])
    slope = np.where(np.abs(slope) * span < DRIFT_NS, 0.0, slope)
    centre = np.median(middle)
    return np.where(slope == 0, 0.0, slope * (np.nan_to_num(end) - centre))


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Without NaN; NaN where there is nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # which says so
        return np.nanmedian(values, axis=axis)
