"""Launches whose GPU work was not recorded, and how to do without it: a kernel that is missing is no idle GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grader.trace.events import CAPTURE_BEGIN, CAPTURE_END, COPY_LAUNCH, GRAPH_LAUNCH, KERNEL_LAUNCH
from grader.trace.intervals import longest_row

if TYPE_CHECKING:
    from grader.trace.columns import Trace
    from grader.trace.windows import Windows

MISSING_TOLERATED = 0.005  # share of launches without GPU work, or the reverse, at the edges of a recording
LATE_TOLERATED = 0.2  # share of launches at the end of a recording whose work begins after it
MOST_LOST = 0.1  # of the launches, or of the GPU work: where more is missing nothing can be judged
UNKNOWN = 0.1  # of the time: less cannot be the cause of anything
LEAST_WHOLE = 2  # steps in a row that are counted rather than those with a loss


@dataclass(frozen=True)
class Loss:
    """Of the launches in the steps that may be counted."""

    launches: np.ndarray  # indices
    missing: np.ndarray  # of those, the ones whose GPU work should be there and is not
    unknown: float  # share of the time in which that work may have run
    run: tuple[int, int] | None  # what to count instead of all steps: the first one's position, and how many

    def much(self, dropped: int = 0) -> bool:
        """Whether it is more than is lost at the edges of any recording. dropped: damaged events that were left out."""
        return len(self.missing) - dropped > MISSING_TOLERATED * len(self.launches)

    @property
    def little(self) -> bool:
        return len(self.missing) <= MOST_LOST * len(self.launches) and self.unknown <= UNKNOWN


def launches_of(trace: Trace) -> np.ndarray:
    """The calls (indices) that give the GPU something to do."""
    kinds = [trace.named(kind, trace.calls) for kind in (KERNEL_LAUNCH, COPY_LAUNCH, GRAPH_LAUNCH)]
    return trace.calls[np.logical_or.reduce(kinds)]


def first_counted(windows: Windows) -> int:
    """When the first step begins that may be counted, ns: the first active one may have lost GPU events, and never is."""
    return int(windows.ends[0] if len(windows) > 1 else windows.starts[0])


def find(trace: Trace) -> Loss:
    windows, launches = trace.windows, launches_of(trace)
    if not len(windows):
        return Loss(launches[:0], launches[:0], 0.0, None)
    begin, end = first_counted(windows), windows.ends[-1]
    launches = launches[(trace.start[launches] >= begin) & (trace.start[launches] < end)]
    lost = _lost(trace, launches)
    loss = Loss(launches, launches[lost], 0.0, None)
    harmful = loss.much() or trace.named(GRAPH_LAUNCH, loss.missing).any()
    late = bool(lost[: lost.sum()].all())  # the GPU's recording began late, and missed no more
    if not harmful or (len(loss.missing) > MOST_LOST * len(launches) and not late):
        return loss
    unknown = _gaps(trace, loss.missing) / max(int(end) - begin, 1)
    run = _longest_whole(windows, trace.start[loss.missing])
    return Loss(launches, loss.missing, unknown, run if run[1] >= (LEAST_WHOLE if unknown <= UNKNOWN else 1) else None)


def _gaps(trace: Trace, missing: np.ndarray) -> int:
    """The time between the GPU work that was launched before and after each of these, ns."""
    launch = trace.launch_of(trace.gpu)
    gpu, launch = trace.gpu[launch >= 0], launch[launch >= 0]
    order = np.argsort(launch, kind="stable")
    gpu, launch = gpu[order], launch[order]
    after = np.unique(np.searchsorted(launch, missing))
    after = after[(after > 0) & (after < len(gpu))]
    return int((trace.start[gpu[after]] - trace.end[gpu[after - 1]]).clip(0).sum())


def _longest_whole(windows: Windows, lost: np.ndarray) -> tuple[int, int]:
    """The longest row of steps without one of these times: its first one's position, and how many they are."""
    bad = np.zeros(len(windows), bool)
    bad[np.searchsorted(windows.starts, lost, side="right") - 1] = True
    bad[0] |= len(windows) > 1
    return longest_row(bad)


def _lost(trace: Trace, launches: np.ndarray) -> np.ndarray:
    """Mask of these launches: those whose GPU work should be there and is not."""
    ids = trace.correlation[launches]
    lost = ~among(ids, trace.correlation[trace.gpu]) & ~captured(trace, launches)
    if (ids > 0).any():  # those without an id have no work that is known
        lost |= ids <= 0
    if not len(trace.steps) and (~lost).any():  # the recording ends before the work does
        late = np.flatnonzero(~lost)[-1] + 1
        lost[late:] &= len(lost) - late > LATE_TOLERATED * len(lost)
    return lost


def captured(trace: Trace, launches: np.ndarray) -> np.ndarray:
    """Mask of the launches that were noted in a CUDA graph, on their thread, and ran nothing."""
    ends = trace.calls[trace.named(CAPTURE_END, trace.calls)]
    begins = trace.calls[trace.named(CAPTURE_BEGIN, trace.calls)]
    if not len(begins) or not len(ends):
        return np.zeros(len(launches), bool)
    counts = [
        np.array([_before(trace, marks, thread, launches) for thread in np.unique(trace.thread[marks]).tolist()])
        for marks in (begins, ends)
    ]
    return counts[0].sum(axis=0) > counts[1].sum(axis=0)


def _before(trace: Trace, marks: np.ndarray, thread: int, events: np.ndarray) -> np.ndarray:
    """For each of these events the number of marks before it, where both are on this thread."""
    times = trace.start[marks[trace.thread[marks] == thread]]
    return np.where(trace.thread[events] == thread, np.searchsorted(times, trace.start[events]), 0)


def among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Mask of the values that are among the others. Ids come nearly sorted, so this is faster than np.isin."""
    if not len(others):
        return np.zeros(len(values), bool)
    others = np.sort(others, kind="stable")
    return others[np.minimum(np.searchsorted(others, values), len(others) - 1)] == values
