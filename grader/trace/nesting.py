"""Which operator, annotation or Python frame was open on a thread when something happened there.

Events of a thread nest, mostly; clocks and hand-overs make some overlap only in part. So nothing here relies on
nesting: the answer is always the event that started last among those that have started and not ended."""

from __future__ import annotations

import numpy as np

from grader.trace.read import Trace

MANY_CODES = 4_000_000  # a table of so many entries takes longer to go through than sorting


class Nesting:
    """The events of a mask, prepared so that many look-ups are cheap: n events once n log n, each look-up log n."""

    def __init__(self, trace: Trace, mask: np.ndarray):
        self.trace = trace
        indices = np.flatnonzero(mask)
        thread = trace.thread[indices]
        if len(trace.threads) < 2**15:
            thread = thread.astype(np.int16)  # sorted by digits, much faster
        self.indices = indices[np.argsort(thread, kind="stable")]  # by thread, in order of start
        self.keys = self._key(self.indices)
        levels = [trace.end[self.indices]]  # each level: the latest end of pairs of the level below
        while len(levels[-1]) > 1:
            below = levels[-1]
            if len(below) % 2:
                below = levels[-1] = np.append(below, np.iinfo(np.int64).min)
            levels.append(np.maximum(below[::2], below[1::2]))
        self.levels = levels

    def _key(self, events: np.ndarray) -> np.ndarray:
        return self.trace.thread[events].astype(np.int64) * len(self.trace) + events

    def around(self, events: np.ndarray) -> np.ndarray:
        """For each of these events (indices) the innermost of the mask around its start on its thread: an index, -1
        without one. An event is not around itself; of two that start together the longer is around the other."""
        result = np.full(len(events), -1)
        if not len(self.indices) or not len(events):
            return result
        time = self.trace.start[events]
        # Of all that come before the event the last one that ends after `time`: mostly the last of all. Else first up:
        # the stretch before the event is made of blocks of 1, 2, 4, ... events, and the nearest block with such an end
        # is found. Then down into it.
        node = np.searchsorted(self.keys, self._key(events))
        last = node - 1
        open_still = (last >= 0) & (self.levels[0][last] > time)
        found: list[tuple[np.ndarray, np.ndarray]] = []  # by level: who asked, in which block
        asked = np.flatnonzero(~open_still)
        node, time = node[asked], time[asked]
        for latest in self.levels:
            block = node - 1
            hit = (node & 1).astype(bool) & (latest[block] > time)
            found.append((asked[hit], block[hit]))
            left = np.flatnonzero(~hit & (node > 1))
            asked, node, time = asked[left], node[left] >> 1, time[left]
        asked, block = np.empty(0, np.int64), np.empty(0, np.int64)
        start = self.trace.start
        for level in range(len(self.levels) - 1, -1, -1):
            if len(asked):
                block = 2 * block + 1
                block -= self.levels[level][block] <= start[events[asked]]
            if len(found[level][0]):
                asked, block = np.append(asked, found[level][0]), np.append(block, found[level][1])
        here = np.flatnonzero(open_still)
        asked, block = np.append(asked, here), np.append(block, last[here])
        index = self.indices[block]
        same = self.trace.thread[index] == self.trace.thread[events[asked]]
        result[asked[same]] = index[same]
        return result


def enclosing(trace: Trace, events: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """For each of these events (indices) the innermost event of `mask` around its start on its thread, else -1."""
    return Nesting(trace, mask).around(events)


def alike(*columns: np.ndarray) -> np.ndarray:
    """Numbers from 0 on, the same for rows that are the same in all columns. Columns hold -1 or more."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        code = code * (int(column.max(initial=0)) + 2) + column + 1
        if (size := int(code.max(initial=0)) + 1) < MANY_CODES:  # ranks without sorting
            used = np.zeros(size, bool)
            used[code] = True
            code = (np.cumsum(used) - 1)[code]
        else:
            code = np.unique(code, return_inverse=True)[1]
    return code


def distinct(indices: np.ndarray, size: int) -> np.ndarray:
    """The distinct values in order, -1 as size - 1. Much faster than np.unique for many indices into an array."""
    mark = np.zeros(size, bool)
    mark[indices] = True
    return np.flatnonzero(mark)


class Ancestry:
    """The chains of operators around some host calls, each operator once, so that a chain of any depth costs little."""

    def __init__(self, nesting: Nesting, calls: np.ndarray):
        """calls: indices of events, in any order."""
        innermost = nesting.around(calls)
        found, parents = [], []
        seen = np.zeros(len(nesting.trace) + 1, bool)
        seen[-1] = True
        new = distinct(innermost, len(seen))
        while len(new := new[~seen[new]]):
            seen[new] = True
            found.append(new)
            parents.append(nesting.around(new))
            new = distinct(parents[-1], len(seen))
        self.ops = np.concatenate(found) if found else np.empty(0, np.int64)
        self.position = np.full(len(nesting.trace) + 1, len(self.ops))  # of each event in `ops`; the last, which -1
        self.position[self.ops] = np.arange(len(self.ops))  # points to, stands for no operator
        self.parent = np.append(self.position[np.concatenate(parents)] if found else [], len(self.ops)).astype(np.int64)
        self.of_call = self.position[innermost]  # position in `ops` of each call's innermost operator

    def nearest(self, flag: np.ndarray) -> np.ndarray:
        """For each operator the position of the innermost flagged one among itself and those around it, -1 without
        one. flag: one bool an operator. One entry more than operators, for calls without any."""
        return self._climb(flag, lambda here, above: np.where(here >= 0, here, above))

    def outermost(self, flag: np.ndarray) -> np.ndarray:
        """Likewise the outermost flagged one."""
        return self._climb(flag, lambda here, above: np.where(above >= 0, above, here))

    def _climb(self, flag: np.ndarray, choose) -> np.ndarray:
        none = len(self.ops)
        answer = np.append(np.where(flag, np.arange(none), -1), -1)
        up = self.parent
        while (up < none).any():  # after k rounds an answer covers 2^k operators, its own and those above
            answer = choose(answer, answer[up])
            up = up[up]
        return answer
