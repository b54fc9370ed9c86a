"""How long the recorded steps would have taken without some of the GPU's work, if the host did everything else as it did."""

import numpy as np

from grader.trace.columns import Trace
from grader.trace.steps import Steps


def saved(trace: Trace, steps: Steps, without: np.ndarray) -> float:
    """How much shorter a step would be without this work of the GPU (indices), ns. The GPU takes one piece of work after the other,
    and the host launches what follows a wait so much sooner as the wait ends sooner."""
    gpu, launch = steps.gpu, steps.launch
    kept = ~np.isin(gpu, without)
    gpu, launch = gpu[kept], launch[kept]
    start, end = trace.start[gpu], trace.end[gpu]
    busy_until = np.maximum.accumulate(np.append(steps.host[0], end))
    adds = (end - np.maximum(start, busy_until[:-1])).clip(0)  # what runs beside others adds what outlasts them
    ready = np.where(launch >= 0, np.minimum(trace.end[launch], start), start)
    order = np.argsort(ready, kind="stable")
    adds, ready = adds[order], ready[order]
    own = steps.waits[steps.of_event[steps.waits] >= 0]
    wait_start, wait_end = trace.start[own], np.maximum.accumulate(trace.end[own])
    bounds = np.searchsorted(ready, wait_start, side="right")
    done = np.concatenate(([0], np.cumsum(adds)))
    sooner, free, first = 0, steps.host[0], 0
    for low, high, last in zip(wait_start.tolist(), wait_end.tolist(), bounds.tolist(), strict=True):
        free = _worked(ready, done, first, last, sooner, free)
        first = max(first, last)
        sooner = max(sooner, high - max(low - sooner, free))
    free = _worked(ready, done, first, len(ready), sooner, free)
    ends = max(steps.host[1], int(trace.end[steps.gpu].max()))
    return max(0.0, (ends - max(steps.host[1] - sooner, free)) / len(steps))


def _worked(ready: np.ndarray, done: np.ndarray, first: int, last: int, sooner: int, free: int) -> int:
    """When the GPU, free from then on, has done the work from `first` to before `last`, each piece ready so much sooner."""
    if last <= first:
        return free
    begun = max(free, int((ready[first:last] - sooner - done[first:last]).max() + done[first]))
    return int(begun + done[last] - done[first])
