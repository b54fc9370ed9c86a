"""Which operator, annotation or Python frame was open on a thread at a moment: of the open ones that which started last."""

from functools import cached_property
from itertools import pairwise

import numpy as np

MANY_CODES = 4_000_000  # a table of so many entries takes longer to go through than sorting
HOPS = 50  # from an event to that around it, before a search that is slower but never slow


class Nesting:
    """Some events of a trace, prepared so that many look-ups are cheap: n events once n log n, each look-up log n."""

    def __init__(self, thread: np.ndarray, start: np.ndarray, end: np.ndarray, events: np.ndarray):
        """thread, start, end: of all events of a trace. events: those to prepare (indices, in order)."""
        self.thread, self.start = thread, start
        self.indices = by_thread(thread, events)
        self.keys = self._key(self.indices)
        self.end = np.append(end[self.indices], np.iinfo(np.int64).max)  # the last, for no event, never ends

    def _key(self, events: np.ndarray) -> np.ndarray:
        return self.thread[events].astype(np.int64) * len(self.thread) + events

    def around(self, events: np.ndarray) -> np.ndarray:
        """For each of these events (indices) the innermost of the prepared ones around its start on its thread: an index,
        -1 without one. An event is not around itself; of two that start together the longer is around the other."""
        if not len(self.indices) or not len(events):
            return np.full(len(events), -1)
        last = np.searchsorted(self.keys, self._key(events)) - 1
        last[self.thread[self.indices[last]] != self.thread[events]] = -1
        return np.append(self.indices, -1)[self._open(last, self.start[events], self.parents)]

    @cached_property
    def parents(self) -> np.ndarray:
        """For each of the prepared events the position (in `indices`) of what `around` finds for it, -1 without."""
        thread, start, end = self.thread[self.indices], self.start[self.indices], self.end[:-1]
        first = np.append(True, thread[1:] != thread[:-1])
        last = np.where(first, -1, np.arange(-1, len(start) - 1))
        bounds = np.append(np.flatnonzero(first), len(start)).tolist()
        for low, high in pairwise(bounds):  # where all have ended, there is none
            last[low + 1 : high][np.maximum.accumulate(end[low : high - 1]) <= start[low + 1 : high]] = -1
        return self._open(last, start, last)

    def _open(self, last: np.ndarray, time: np.ndarray, outwards: np.ndarray) -> np.ndarray:
        """For each position, the last at which an event may be that ends after `time`, the position of the last that does. Changes
        `last`. outwards: from each position to the last before it that may end later than its event begins."""
        asked = np.flatnonzero(self.end[last] <= time)
        time = time[asked]
        for _ in range(HOPS):
            if not len(asked):
                return last
            last[asked] = here = outwards[last[asked]]
            left = np.flatnonzero(self.end[here] <= time)
            asked, time = asked[left], time[left]
        last[asked] = self._search(last[asked], time)
        return last

    def _search(self, last: np.ndarray, time: np.ndarray) -> np.ndarray:
        """The same without hops: by blocks of 1, 2, 4, ... events before each, up to one that ends so, then down."""
        levels = self._levels
        node, asked = last + 1, np.arange(len(last))
        found: list[tuple[np.ndarray, np.ndarray]] = []  # by level: who asked, in which block
        for latest in levels:
            block = node - 1
            hit = (node & 1).astype(bool) & (latest[block] > time[asked])
            found.append((asked[hit], block[hit]))
            left = np.flatnonzero(~hit & (node > 1))
            asked, node = asked[left], node[left] >> 1
        asked, block = found[-1]
        for latest, (others, blocks) in zip(levels[-2::-1], found[-2::-1], strict=True):
            block = 2 * block + 1
            block -= latest[block] <= time[asked]
            asked, block = np.append(asked, others), np.append(block, blocks)
        thread = self.thread[self.indices]
        result = np.full(len(last), -1)
        same = thread[block] == thread[last[asked]]
        result[asked[same]] = block[same]
        return result

    @cached_property
    def _levels(self) -> list[np.ndarray]:
        """The ends, and in each further level the latest of pairs of the level below."""
        levels = [self.end[:-1]]
        while len(levels[-1]) > 1:
            below = levels[-1]
            if len(below) % 2:
                below = levels[-1] = np.append(below, np.iinfo(np.int64).min)
            levels.append(np.maximum(below[::2], below[1::2]))
        return levels


def by_thread(thread: np.ndarray, events: np.ndarray) -> np.ndarray:
    """These events (indices) thread by thread, otherwise in the order they had."""
    threads = thread[events]
    if threads.max(initial=0) < 2**15:
        threads = threads.astype(np.int16)  # sorted by digits, much faster
    return events[np.argsort(threads, kind="stable")]


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
    if 50 * len(indices) < size:
        found = np.sort(indices % size)
        return found[np.append(True, found[1:] != found[:-1])[: len(found)]]
    mark = np.zeros(size, bool)
    mark[indices] = True
    return np.flatnonzero(mark)


class Ancestry:
    """The chains of operators around some host calls, each operator once, so that a chain of any depth costs little."""

    def __init__(self, operator: np.ndarray, calls: np.ndarray):
        """operator: see `Trace.operator`. calls: indices of events, in any order."""
        found, seen = [np.empty(0, np.int64)], np.zeros(len(operator), bool)
        seen[-1] = True
        new = distinct(operator[calls], len(seen))
        while len(new := new[~seen[new]]):
            seen[new] = True
            found.append(new)
            new = distinct(operator[new], len(seen))
        self.ops = np.concatenate(found)
        self.position = np.full(len(operator), len(self.ops))  # of each event in `ops`; the last, which -1 points to,
        self.position[self.ops] = np.arange(len(self.ops))  # stands for no operator
        self.parent = self.position[np.append(operator[self.ops], -1)]
        self.of_call = self.position[operator[calls]]  # position in `ops` of each call's innermost operator

    def nearest(self, flag: np.ndarray) -> np.ndarray:
        """For each operator, and for none, the position of the innermost flagged one among it and those around it, else -1."""
        return self._climb(flag, lambda here, above: np.where(here >= 0, here, above))

    def outermost(self, flag: np.ndarray) -> np.ndarray:
        """Likewise the outermost flagged one."""
        return self._climb(flag, lambda here, above: np.where(above >= 0, above, here))

    def _climb(self, flag: np.ndarray, choose) -> np.ndarray:
        answer = np.append(np.where(flag, np.arange(len(self.ops)), -1), -1)
        for up in self._up:  # after k rounds an answer covers 2^k operators, its own and those above
            answer = choose(answer, answer[up])
        return answer

    @cached_property
    def _up(self) -> list[np.ndarray]:
        """For each operator the position of the one around it, of that 2, 4, 8, ... further out, as long as there is any."""
        steps, up = [], self.parent
        while (up < len(self.ops)).any():
            steps.append(up)
            up = up[up]
        return steps
