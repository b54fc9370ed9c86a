"""How long each rank waits in collectives for the others, who is to blame for it, and what those do meanwhile."""

from collections.abc import Sequence

import numpy as np

from grader.trace import intervals
from grader.trace.rank import EXPOSED, OWN, WAITING, Rank
from grader.trace.rank_match import Matched

START = "start"  # began its recording later
WHY = (*OWN, START)
HALF = 0.5  # of a lateness, that what is longer in a whole step must explain


class Waits:
    """Of each collective and rank, ns: how long it waited, and how much of the others' waiting is its fault. n: steps."""

    def __init__(self, ranks: Sequence[Rank], m: Matched, n: int):
        self.ranks, self.m, self.n = ranks, m, n
        there = ~np.isnan(m.start)
        filled = np.where(there, m.start, -np.inf)
        self.latest = filled.max(axis=1, initial=-np.inf)
        self.wait = np.where(there, np.clip(self.latest[:, None] - m.start, 0, np.maximum(m.end - m.start, 0)), 0.0)
        self.caused, self.late = self._blame()
        came_last = there & (m.start >= self.latest[:, None]) & (self.wait.max(axis=1, initial=0.0) > 0)[:, None]
        self.last = came_last.sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        self.spans: list[intervals.Intervals] = []  # of each rank, when it waited, since its `zero`
        self.total, self.exposed = self._unions()

    def _blame(self) -> tuple[np.ndarray, np.ndarray]:
        """Shares of all waits, and by how much each comes after the first quarter of the ranks."""
        m = self.m
        order = np.argsort(m.start, axis=1)  # NaN last
        ordered = np.take_along_axis(m.start, order, axis=1)
        count = (~np.isnan(ordered)).sum(axis=1, keepdims=True)
        place = np.arange(ordered.shape[1])[None, :]
        stretch = np.diff(ordered, axis=1, prepend=ordered[:, :1])
        missing = np.maximum(count - place, 1)
        share = np.nan_to_num(np.where(place < count, stretch * place / missing, 0.0))
        caused = np.empty_like(share)
        np.put_along_axis(caused, order, np.cumsum(share, axis=1), axis=1)
        caused[np.isnan(m.start)] = 0.0
        if not len(ordered):
            return caused, caused
        early = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 4, axis=1)
        return caused, np.nan_to_num(np.maximum(m.start - early, 0))

    def _unions(self) -> tuple[np.ndarray, np.ndarray]:
        """Per rank and step, ns: waiting, and waiting while nothing ran beside it."""
        total, exposed = np.zeros((2, len(self.ranks)))
        for r, rank in enumerate(self.ranks):
            mine = np.flatnonzero(self.m.index[:, r] >= 0)
            start = rank.calls.start[self.m.index[mine, r]]
            spans = intervals.union(start, start + self.wait[mine, r].astype(np.int64))
            self.spans.append(spans)
            total[r] = intervals.length(spans) / self.n
            exposed[r] = intervals.length(intervals.difference(spans, rank.busy)) / self.n
        return total, exposed

    def parts(self) -> list[dict[str, float]]:
        """Of each rank, with the waits told apart from communication; ns per step."""
        found = []
        for rank, exposed in zip(self.ranks, self.exposed.tolist(), strict=True):
            scale = (rank.step_ns or 0) / rank.traced_ns if rank.traced_ns else 1.0
            waiting = min(exposed * min(scale, 1.0), rank.parts[EXPOSED])
            found.append({**rank.parts, WAITING: waiting, EXPOSED: rank.parts[EXPOSED] - waiting})
        return found

    @property
    def unseen(self) -> float:
        """Where ranks are missing: by how much collectives took longer than the quickest of their kind and size, after the last
        known rank had come, with nothing beside it; ns per step and rank. Of those whose size is not recorded nobody can tell."""
        m = self.m
        absent = (m.members > (m.index >= 0).sum(axis=1)) & (m.bytes >= 0)
        if not absent.any():
            return 0.0
        length = np.nanmin(m.end, axis=1) - self.latest
        kinds: dict[tuple, list[int]] = {}
        for row in np.flatnonzero(absent).tolist():
            kinds.setdefault((m.kind[row], m.group[row], int(m.bytes[row])), []).append(row)
        more = np.zeros(len(m))
        for rows in kinds.values():
            more[rows] = length[rows] - length[rows].min()
        found = []
        for r, rank in enumerate(self.ranks):
            mine = np.flatnonzero(m.index[:, r] >= 0)
            end = rank.calls.end[m.index[mine, r]]
            spans = intervals.union(end - more[mine].astype(np.int64), end)
            found.append(intervals.length(intervals.difference(spans, rank.busy)))
        return float(np.mean(found)) / self.n

    def why(self, late: Sequence[int], later: bool = False) -> dict[str, float]:
        """By how much longer these ranks take for each thing before the collectives that they come late to; ns per step and rank."""
        m = self.m
        found = dict.fromkeys(WHY, 0.0)
        before = np.full((*m.start.shape, len(OWN)), np.nan)
        follows = np.zeros(m.start.shape, bool)
        for r, rank in enumerate(self.ranks):
            mine = m.index[:, r] >= 0
            before[mine, r] = rank.before[m.index[mine, r]]
            follows[mine, r] = rank.follows[m.index[mine, r]]
        early = (self.late <= 0) & ~np.isnan(m.start)
        usual = np.nanmean(np.where(early[:, :, None], before, np.nan), axis=1) if len(m) else before[:, 0]
        low = np.array([rank.low + rank.zero - self.ranks[0].zero for rank in self.ranks]) - np.nan_to_num(m.offset)
        for r in late:
            rows = (self.late[:, r] > 0) & (m.index[:, r] >= 0) & (follows[:, r] | (not later))
            for name, ns in zip(OWN, np.nansum(before[rows, r] - usual[rows], axis=0).tolist(), strict=True):
                found[name] += ns
            for row in np.flatnonzero(rows & ~follows[:, r]).tolist():
                found[START] += max(0.0, float(low[r] - low[early[row]].mean()))
        found = {name: ns / self.n / max(len(late), 1) for name, ns in found.items()}
        return self._in_a_step(found, late)

    def _in_a_step(self, found: dict[str, float], late: Sequence[int]) -> dict[str, float]:
        """Of no more than what these ranks take longer for in a whole step, if that explains it: others may have done it earlier."""
        mine, others = (
            [rank.parts for r, rank in enumerate(self.ranks) if (r in late) == is_late] for is_late in (True, False)
        )
        if not mine or not others:
            return found
        more = {name: np.mean([each[name] for each in mine]) - min(each[name] for each in others) for name in OWN}
        bounded = {name: min(ns, max(0.0, float(more.get(name, ns)))) for name, ns in found.items()}
        return bounded if sum(bounded.values()) >= HALF * sum(found.values()) else found
