"""What is kept of one rank's trace once it was diagnosed: enough to compare it with the other ranks, and little memory."""

import hashlib
import re
from dataclasses import dataclass, field, replace

import numpy as np

from grader.trace import intervals
from grader.trace.analysis import Analysis
from grader.trace.catalogue import PARTS, STEP_PARTS
from grader.trace.collectives import Collectives, annotated, collectives
from grader.trace.columns import Trace
from grader.trace.complete import NO_GPU
from grader.trace.diagnosis import Diagnosis
from grader.trace.events import CPU_OP, KERNEL
from grader.trace.host import data_waits
from grader.trace.intervals import Intervals
from grader.trace.steps import Steps
from grader.trace.timeline import used_devices
from grader.trace.windows import step_numbers

# What a rank does with its time, in the order of the picture; the last two are told apart once all ranks are known.
OWN = ("computing", "copies", "data", "host", "other")
WAITING, EXPOSED = "waiting", "communication"
SHARES = (*OWN[:4], WAITING, EXPOSED, "other")
OF_PART = {
    **dict.fromkeys(("tensor_core", "matmul", "memory"), "computing"),
    **dict.fromkeys(("copies", "idle_transfer"), "copies"),
    "idle_data": "data",
    **dict.fromkeys(("idle_sync", "idle_launch", "idle_other"), "host"),
    "communication": EXPOSED,  # the rest is "other"
}
COLLECTIVE_CALL = re.compile(r"c10d::|record_param_comms|(nccl|gloo|mpi|ucc):|DistributedDataParallel\.")


@dataclass(frozen=True)
class Rank:
    """Times in ns. Those of its collectives are on its own clock, since `zero`."""

    file: str
    rank: int | None
    world_size: int | None
    host: str | None
    device: str | None  # name; None on a CPU
    devices: int  # GPUs that its process saw
    complete: bool
    reasons: list[str]
    notes: list[str]
    breaks_off: bool  # its file ends before the recording does
    zero: int  # Unix time of its first step
    low: int  # where its counted steps begin
    labels: np.ndarray  # of the counted steps: the profiler's numbers of them, else 0, 1, ...
    starts: np.ndarray  # of these steps, since `zero`
    numbered: bool  # by the profiler
    sure: float  # that these are steps
    step_ns: float | None  # without the profiler where that was given
    traced_ns: float | None
    parts: dict[str, float]  # SHARES -> ns per step; all communication that nothing hides is in EXPOSED
    diagnosis: Diagnosis
    calls: Collectives  # all of them
    step: np.ndarray  # label of the step that called each, -1 outside of the counted ones
    before: np.ndarray  # [calls, OWN]: what it did from the start of the collective before each to its start
    follows: np.ndarray  # whether one was recorded before each
    busy: Intervals  # when it computed or copied
    kernels: float  # per step, without collectives
    kernel_ns: float  # their time per step
    shapes: str  # of what all operators of the counted steps worked on; "" where that was not recorded
    fingerprint: str = field(repr=False)  # of its rank, its steps and its events


def rank_of(a: Analysis, file: str) -> Rank:
    """Of a diagnosed trace. file: what it is called, its number is taken from there if the trace does not tell it."""
    trace = a.trace
    # ranks are compared by their collectives, so a loss costs only its step
    left_out = min(a.left_out, max(1, trace.windows.warm))
    steps = Steps(trace, left_out)
    calls = collectives(trace)
    zero = int(trace.windows.starts[0]) if len(trace.windows) else 0
    doing = _doing(a, steps)
    numbered = bool(len(trace.steps))
    labels = step_numbers(trace)[left_out:]
    at = np.searchsorted(steps.starts, calls.called, side="right") - 1
    inside = (at >= 0) & (calls.called < np.append(steps.ends, 0)[at])
    before, follows = _before(calls, doing)
    busy = intervals.joined(doing["computing"], doing["copies"])
    own = steps.gpu[(trace.category[steps.gpu] == KERNEL) & ~steps.kernels.communication[steps.gpu]]
    no_gpu = trace.reasons == [NO_GPU]
    return Rank(
        file=file,
        rank=trace.rank if trace.rank is not None and trace.rank >= 0 else None,
        world_size=trace.world_size,
        host=trace.host,
        device=next((name for name in used_devices(trace) if name != "?"), None) if len(trace.gpu) else None,
        devices=len(trace.devices),
        complete=trace.complete or no_gpu,
        reasons=[] if no_gpu else list(trace.reasons),
        notes=list(a.metrics.notes),
        breaks_off=trace.breaks_off,
        zero=trace.base_ns + zero,
        low=(steps.window[0] if len(steps) else zero) - zero,
        labels=labels,
        starts=steps.starts - zero,
        numbered=numbered,
        sure=a.metrics.steps_sure,
        step_ns=a.step_ns or a.metrics.step_ns_traced,
        traced_ns=a.metrics.step_ns_traced,
        parts=_parts(a, steps, doing),
        diagnosis=a.diagnosis,
        calls=_moved(calls, zero),
        step=np.where(inside, np.append(labels, -1)[np.where(inside, at, -1)], -1),
        before=before,
        follows=follows,
        busy=(busy[0] - zero, busy[1] - zero),
        kernels=len(own) / max(len(steps), 1),
        kernel_ns=float(trace.duration[own].sum()) / max(len(steps), 1),
        shapes=_shapes(trace, steps),
        fingerprint=f"{trace.rank} {_digest(trace.start - zero, trace.duration, trace.category, labels)}",
    )


def _moved(calls: Collectives, zero: int) -> Collectives:
    times = {name: getattr(calls, name) - zero for name in ("called", "start", "end")}
    return replace(calls, **times)


def _doing(a: Analysis, steps: Steps) -> dict[str, Intervals]:
    """When the rank did what, disjoint; communication is none of it."""
    trace = a.trace
    if not len(steps):
        return dict.fromkeys(OWN, intervals.EMPTY)
    if not len(steps.gpu):
        return _on_cpu(trace, steps)
    gpu = steps.work
    kernel, communication = trace.category[gpu] == KERNEL, steps.kernels.communication[gpu]
    computing = trace.spans(gpu[kernel & ~communication])
    other_work = trace.spans(gpu[~kernel])
    copies = intervals.difference(other_work, computing)
    found = {"computing": computing, "copies": copies}
    kinds = np.array([OWN.index(OF_PART.get(part, "other")) if part.startswith("idle") else 0 for part in PARTS])
    cause = kinds[a.gaps.cause] if len(a.gaps.cause) else a.gaps.cause
    for i, name in enumerate(OWN):
        mine = cause == i
        gap = intervals.union(a.gaps.start[mine], a.gaps.end[mine])
        found[name] = intervals.joined(found.get(name, intervals.EMPTY), gap)
    return found


def _on_cpu(trace: Trace, steps: Steps) -> dict[str, Intervals]:
    """Of a job without a GPU: its operators compute, the rest is the host's own, with data where it waits for them."""
    ops = np.flatnonzero(trace.category == CPU_OP)
    ops = ops[~trace.named(COLLECTIVE_CALL, ops)]
    annotations = annotated(trace)
    exchanging = trace.spans(annotations)
    data = intervals.union(*data_waits(trace, steps.thread))
    computing = intervals.difference(trace.spans(ops), data)
    known = intervals.joined(data, computing, exchanging)
    host = intervals.complement(known, *steps.window)
    return {"computing": computing, "copies": intervals.EMPTY, "data": data, "host": host, "other": intervals.EMPTY}


def _before(calls: Collectives, doing: dict[str, Intervals]) -> tuple[np.ndarray, np.ndarray]:
    """What the rank did from the start of the collective before to that of each, ns; and whether there was one. What runs beside a
    collective counts: a rank that waits there long has then less to do afterwards."""
    order = np.argsort(calls.start, kind="stable")
    last = np.append(-1, calls.start[order][:-1]) if len(order) else calls.end
    done = np.empty(len(calls), np.int64)
    done[order] = last
    follows = np.ones(len(calls), bool)
    follows[order[:1]] = False
    done = np.minimum(np.where(follows, done, np.iinfo(np.int64).min), calls.start)
    columns = [intervals.covered(done, calls.start, doing[name]) for name in OWN]
    return np.stack(columns, axis=1).astype(float) if len(calls) else np.zeros((0, len(OWN))), follows


def _parts(a: Analysis, steps: Steps, doing: dict[str, Intervals]) -> dict[str, float]:
    parts = dict.fromkeys(SHARES, 0.0)
    if a.breakdown:
        for name in STEP_PARTS:
            parts[OF_PART.get(name, "other")] += a.breakdown.get(name, 0.0)
    elif len(steps):
        low, high = steps.window
        for name in OWN:
            parts[name] = intervals.length(intervals.clip(doing[name], low, high)) / len(steps)
        parts[EXPOSED] = max(0.0, steps.length - sum(parts.values()))
    return parts


def _shapes(trace: Trace, steps: Steps) -> str:
    """A digest: the same operators on the same shapes give the same."""
    ops = np.flatnonzero((trace.category == CPU_OP) & (steps.of_event[:-1] >= 0) & (trace.dims >= 0))
    if not len(ops):
        return ""
    kinds, count = np.unique(trace.name[ops] * np.int64(len(trace.texts)) + trace.dims[ops], return_counts=True)
    name, dims = (side.tolist() for side in np.divmod(kinds, len(trace.texts)))
    told = [f"{trace.names[n]} {trace.texts[d]} {c}" for n, d, c in zip(name, dims, count.tolist(), strict=True)]
    return hashlib.sha256("\n".join(sorted(told)).encode("utf-8", "replace")).hexdigest()


def _digest(*columns: np.ndarray) -> str:
    found = hashlib.sha256()
    for column in columns:
        found.update(np.ascontiguousarray(column).tobytes())
    return found.hexdigest()
