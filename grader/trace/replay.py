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
    done = np.concatenate(([0], np.cumsum(adds)))
    # When the GPU could begin, had it done nothing in between: by so much later it has done what it has done.
    latest = np.maximum.accumulate(np.append(steps.host[0], ready - done[:-1]))
    launched = np.searchsorted(ready, wait_start, side="right")
    sooner, begun = 0, steps.host[0]
    turns = zip(*(each.tolist() for each in (wait_start, wait_end, latest[launched], done[launched])), strict=True)
    for low, high, late, work in turns:
        begun = max(begun, late - sooner)
        sooner = max(sooner, high - max(low - sooner, begun + work))
    free = int(max(begun, latest[-1] - sooner) + done[-1])
    ends = max(steps.host[1], int(trace.end[steps.gpu].max()))
    gained = ends - max(steps.host[1] - sooner, free)
    # Nothing stops the host: the lead that it has won is no gain of a step, which takes it as long as ever.
    if not len(own):
        gained = min(gained, steps.window[1] - steps.window[0] - (steps.host[1] - steps.host[0]))
    return max(0.0, gained / len(steps))
