"""The order of a trace's events, and those that are in it twice."""

import numpy as np

from grader.trace.decode import OF_OPS, OF_OTHERS, OF_PYTHON
from grader.trace.events import ANNOTATION, CPU_OP, PYTHON
from grader.trace.vendors import MOST_DEVICES

MOST = {"device": MOST_DEVICES, "stream": 2**31}  # from where on a number counts as not recorded
Table = dict[str, np.ndarray]


def in_order(c: Table, of_all: Table, kept: np.ndarray) -> tuple[Table, int]:
    """The columns of `Trace` for these events (indices), and how many are left out as doubles. c: columns of `decode`; of_all: of some."""
    at = kept[by_start(of_all["start"][kept], of_all["duration"][kept])]
    of_all = of_all | {name: c[name] for name in ("name", "thread")}
    columns = {name: column[at] for name, column in of_all.items()} | _of_some(c, at)
    twice = doubles(columns)
    if twice.any():
        columns = {name: column[~twice] for name, column in columns.items()}
    return columns, int(twice.sum())


def without_strays(columns: Table, apart: int, most: float) -> tuple[Table, int]:
    """The columns, in order of start, without the few events that a pause of more than `apart` ns divides from all others, and how
    many they were; where they are more than a share `most` of all, everything stays."""
    start = columns["start"]
    edges = np.concatenate(([0], np.flatnonzero(np.diff(start) > apart) + 1, [len(start)]))
    longest = int(np.argmax(np.diff(edges)))
    kept = slice(int(edges[longest]), int(edges[longest + 1]))
    strays = len(start) - (kept.stop - kept.start)
    if not strays or strays > most * len(start):
        return columns, 0
    return {name: column[kept] for name, column in columns.items()}, strays


def by_start(start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """By start, of those that start together the longer first. A stable sort: files are sorted in long stretches."""
    order = np.argsort(start, kind="stable")
    times = start[order]
    same = times[1:] == times[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same)) if len(order) else order
    order[tied] = order[tied][np.lexsort((-duration[order[tied]], times[tied]))]
    return order


def doubles(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Mask of the events that are the same as one before in every column, as in merged files. columns: in order of start and duration.
    Operators without ids can be alike by chance, so one event at least must be a call, GPU work or a mark."""
    start, duration = columns["start"], columns["duration"]
    twice = np.zeros(len(start), bool)
    same = (start[1:] == start[:-1]) & (duration[1:] == duration[:-1])
    if not same.any():
        return twice
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    sure = (columns["correlation"][tied] > 0) | (columns["category"][tied] == ANNOTATION)
    if len(_again(columns, tied[sure])):
        twice[_again(columns, tied)] = True
    return twice


def _again(columns: dict[str, np.ndarray], events: np.ndarray) -> np.ndarray:
    """Those of these events (indices) that are the same as one of them before."""
    keys = np.stack([column[events].astype(np.int64) for column in columns.values()])
    order = np.lexsort(keys[::-1])
    alike = (keys[:, order[1:]] == keys[:, order[:-1]]).all(axis=0)
    return events[order[np.append(False, alike)[: len(order)]]]


def _of_some(c: dict[str, np.ndarray], order: np.ndarray) -> dict[str, np.ndarray]:
    """The columns that only events of some categories have, for the events in `order`; -1 for all others."""
    kind = c["category"]
    place = np.full(len(kind), -1)
    place[order] = np.arange(len(order))
    is_op, is_python = kind == CPU_OP, kind == PYTHON
    columns = {}
    for group, rows in ((OF_OPS, is_op), (OF_PYTHON, is_python), (OF_OTHERS, ~(is_op | is_python))):
        places = place[rows]
        for name in group:
            value = np.where(c[name] < MOST.get(name, 2**63 - 1), np.maximum(c[name], -1), -1)
            column = np.full(len(order) + 1, -1)  # the last is for what is left out
            column[places] = value
            columns[name] = column[:-1]
    return columns
