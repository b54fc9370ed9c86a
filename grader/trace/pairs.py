"""Events that are written as their begin and their end ("B" and "E"), as converters of traces do; torch.profiler writes whole ones."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from grader.trace.events import SPAN

BEGIN, END = -np.inf, np.inf  # in place of a duration, see `decode`


def close(c: dict[str, np.ndarray], start_ns: np.ndarray) -> tuple[int, int]:
    """Give each begin its duration, in place; an end belongs to the last open begin of its thread. Returns how many pairs there
    are, and how many begins or ends are alone and left out."""
    ends = np.isposinf(c["duration"])
    rows = np.flatnonzero(np.isneginf(c["duration"]) | ends)
    if not len(rows):
        return 0, 0
    duration, category = c["duration"].copy(), c["category"].copy()
    c["duration"], c["category"] = duration, category
    duration[rows] = 0
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    opened: dict[int, list[int]] = defaultdict(list)
    pairs, lost = 0, 0
    for row, thread, end in zip(rows.tolist(), c["thread"][rows].tolist(), ends[rows].tolist(), strict=True):
        if not end:
            opened[thread].append(row)
        elif opened[thread]:
            begin = opened[thread].pop()
            duration[begin] = (start_ns[row] - start_ns[begin]) / 1000
            pairs += 1
        else:
            lost += 1
    for begins in opened.values():
        category[begins] = SPAN
        lost += len(begins)
    return pairs, lost
