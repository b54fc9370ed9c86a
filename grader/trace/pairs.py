"""Events that are written as their begin and their end ("B" and "E"), as converters of traces do; torch.profiler writes whole ones."""

from collections import defaultdict

import numpy as np

BEGIN, END = -np.inf, np.inf  # in place of a duration, see `decode`


def close(c: dict[str, np.ndarray], start_ns: np.ndarray) -> tuple[int, list[int]]:
    """Give each begin its duration, in place; an end is of its thread's last open begin. Returns how many pairs, and who is alone."""
    ends = np.isposinf(c["duration"])
    rows = np.flatnonzero(np.isneginf(c["duration"]) | ends)
    if not len(rows):
        return 0, []
    duration = c["duration"] = c["duration"].copy()
    duration[rows] = 0
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    opened: dict[int, list[int]] = defaultdict(list)
    alone: list[int] = []
    for row, thread, end in zip(rows.tolist(), c["thread"][rows].tolist(), ends[rows].tolist(), strict=True):
        if not end:
            opened[thread].append(row)
        elif opened[thread]:
            begin = opened[thread].pop()
            duration[begin] = (start_ns[row] - start_ns[begin]) / 1000
        else:
            alone.append(row)
    for begins in opened.values():
        alone += begins
    return (len(rows) - len(alone)) // 2, alone
