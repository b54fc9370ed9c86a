"""What traces of some accelerators, and of some tools, say in places of their own: devices, streams, and which call launched what."""

from collections import Counter
from typing import Any

import numpy as np

from grader.trace.decode import CANN, OF_OTHERS
from grader.trace.events import (
    ANNOTATION,
    CPU_OP,
    DMA,
    KERNEL,
    MARK,
    MEMCPY,
    MEMSET,
    NO_WORK,
    PYTHON,
    RUNTIME,
    SPAN,
    SYNC,
)
from grader.trace.words import counted

MOST_DEVICES = 256


def settle(
    c: dict[str, np.ndarray], start: np.ndarray, names: list[str], threads: list[tuple[Any, Any]]
) -> tuple[bool, list[str]]:
    """Complete the columns of `decode` in place. start: ns. Returns whether launches are told by operators alone, and what to say."""
    kind = c["category"] = c["category"].copy()
    other = (kind != CPU_OP) & (kind != PYTHON)
    rows = np.flatnonzero(other)
    work = np.isin(kind[rows], (KERNEL, MEMCPY, MEMSET))
    for name in OF_OTHERS:
        c[name] = c[name].copy()
    _sort_device_events(kind, c["name"], rows[work], names)
    work = np.isin(kind[rows], (KERNEL, MEMCPY, MEMSET))
    notes: list[str] = []
    _follow_arrows(c, start, rows, work)
    if any(map(CANN.match, names)):
        _join_threads(c, threads)
    by_operator = _correlate(c["correlation"], work)
    if by_operator:
        notes.append(
            "it has no correlation ids, so launches and kernels are matched by the id of their operator or connection"
        )
    _place(c, work, rows, threads, notes)
    return by_operator, notes


def with_marks(kind: np.ndarray, name: np.ndarray, names: list[str]) -> np.ndarray:
    """The categories, with the marks that releases before 1.11 write as operators as what they are."""
    said = np.fromiter((MARK.match(each) is not None for each in names), bool, len(names))
    return np.where((kind == CPU_OP) & said[name], np.uint8(ANNOTATION), kind) if said.any() else kind


def _sort_device_events(kind: np.ndarray, name: np.ndarray, work: np.ndarray, names: list[str]) -> None:
    """MTIA writes its copies and its waits as events of one category with its kernels."""
    for pattern, code in ((DMA, MEMCPY), (NO_WORK, SYNC)):
        said = np.fromiter((pattern.match(each) is not None for each in names), bool, len(names))
        if said.any():
            mine = work[said[name[work]] & (kind[work] == KERNEL)]
            kind[mine] = code


def _follow_arrows(c: dict[str, np.ndarray], start: np.ndarray, rows: np.ndarray, work: np.ndarray) -> None:
    """Give calls and what they launched the number of the arrow between them, if no GPU work has the id of a call. An arrow that begins
    at no call stands for one that was not recorded. rows: what has a correlation; work: mask of these."""
    correlation, kind = c["correlation"], c["category"][rows]
    arrows, calls = np.flatnonzero((kind == SPAN) & (correlation < -1)), np.flatnonzero(kind == RUNTIME)
    if not len(arrows) or (np.intersect1d(correlation[work], correlation[calls]) != -1).any():
        return
    correlation[work] = correlation[calls] = -1
    places = list(zip(c["thread"][rows].tolist(), start[rows].tolist(), strict=True))
    begun, ended = ({places[row]: row for row in some.tolist()} for some in (calls, np.flatnonzero(work)))
    number: dict[int, int] = {}  # of an arrow: that of the first one from the same call
    for row, arrow in zip(arrows.tolist(), correlation[arrows].tolist(), strict=True):
        if places[row] not in ended:
            call = begun.setdefault(places[row], row)
            c["category"][rows[call]] = RUNTIME
            correlation[call] = arrow if correlation[call] == -1 else correlation[call]
            number[arrow] = int(correlation[call])
    for row, arrow in zip(arrows.tolist(), correlation[arrows].tolist(), strict=True):
        if places[row] in ended:
            correlation[ended[places[row]]] = number.get(arrow, -1)


def _join_threads(c: dict[str, np.ndarray], threads: list[tuple[Any, Any]]) -> None:
    """Ascend writes the calls of a thread as those of a process of its own."""
    kind, thread = c["category"], c["thread"]
    calls, ops = (
        np.unique(thread[np.isin(kind, some)]).tolist() for some in ((RUNTIME,), (CPU_OP, PYTHON, ANNOTATION))
    )
    known = {threads[one][0] for one in ops}
    named = Counter(threads[one][1] for one in ops)
    same = {threads[one][1]: one for one in ops if named[threads[one][1]] == 1}
    other = np.arange(len(threads))
    for one in calls:
        pid, tid = threads[one]
        other[one] = one if pid in known else same.get(tid, one)
    c["thread"] = np.where(kind == RUNTIME, other[thread], thread)


def _correlate(correlation: np.ndarray, work: np.ndarray) -> bool:
    """Take what `decode` found in place of correlation ids, if no GPU work has one."""
    other = correlation < -1
    taken = bool(work.any() and not (correlation[work] > 0).any() and other[work].any())
    correlation[other] = -2 - correlation[other] if taken else -1
    return taken


def _place(
    c: dict[str, np.ndarray], work: np.ndarray, rows: np.ndarray, threads: list[tuple[Any, Any]], notes: list[str]
) -> None:
    """Device and stream, where GPU work does not say them: the profiler writes them as pid and tid, too."""
    device, thread = c["device"], c["thread"][rows]
    known = work & (device >= 0) & (device < MOST_DEVICES)
    if work.any() and not known.any():
        pids = np.array([pid if _is_small(pid) else -1 for pid, _ in threads], np.int64)
        if (pids[thread[work]] >= 0).all():
            device[work] = pids[thread[work]]
        else:
            device[work] = 0
            notes.append("its GPU events do not say on which device they ran, so they count as one device's")
    elif (lost := work & ~known).any() and len(only := np.unique(device[known])) == 1:
        device[lost] = only[0]
        notes.append(
            counted(int(lost.sum()), "GPU event{s} {do} not say on which device; all others ran on the same one")
        )
    if work.any() and (c["stream"][work] < 0).all():
        tids = np.array([tid if isinstance(tid, int) and 0 <= tid < 2**31 else -1 for _, tid in threads], np.int64)
        c["stream"][work] = tids[thread[work]]


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_DEVICES
