"""Traces of all ranks of a job whose waits are known, as they are made here: nothing is measured."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kineto import document

US = 1.0
LAUNCH, SYNC = 5.0, 20.0  # us: a launch; from the end of the GPU's work to the end of the step


@dataclass
class Plan:
    """A step: data, the host's own doing, one kernel, one collective. Times in us, one entry a rank."""

    computing: list[float]
    data: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    exchange: float = 200.0
    steps: int = 5
    first: int = 3  # number of the first recorded step
    elements: int = 1_000_000
    collective: str = "allreduce"
    kernel: str = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    backend: str = "nccl"
    clocks: list[float] = field(default_factory=list)  # ahead of the first one's
    drift: list[float] = field(default_factory=list)  # us per us
    kernels: list[int] = field(default_factory=list)  # that `computing` consists of
    metadata: bool = True
    labelled: bool = True  # steps are marked by the profiler
    known: bool = True  # the traces tell their rank
    world: int | None = None
    hosts: list[str] = field(default_factory=list)
    devices: int = 8
    vary: Any = None  # (step, rank) -> more us of computing

    @property
    def ranks(self) -> int:
        return len(self.computing)


def starts(plan: Plan, step: int) -> list[float]:
    """When each rank comes to its collective, us after the step's begin."""
    found = []
    for r in range(plan.ranks):
        more = plan.vary(step, r) if plan.vary else 0.0
        data, host = (column[r] if column else 0.0 for column in (plan.data, plan.host))
        found.append(data + host + LAUNCH + plan.computing[r] + more)
    return found


def waits(plan: Plan) -> list[float]:
    """Of each rank in a step, us, mean over all steps but the first."""
    every = [starts(plan, step) for step in range(1, plan.steps)]
    return [sum(max(step) - step[r] for step in every) / len(every) for r in range(plan.ranks)]


def traces(plan: Plan) -> list[dict[str, Any]]:
    return [_one(plan, r) for r in range(plan.ranks)]


def write(plan: Plan, folder: Path, name: str = "rank{}.json") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name.format(r) for r in range(plan.ranks)]
    for path, trace in zip(paths, traces(plan), strict=True):
        path.write_text(json.dumps(trace))
    return paths


def _one(plan: Plan, r: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    at = 1_000_000.0
    for step in range(plan.steps):
        at = _step(plan, r, step, at, events)
    clock = plan.clocks[r] if plan.clocks else 0.0
    drift = plan.drift[r] if plan.drift else 0.0
    for event in events:
        event["ts"] = round(event["ts"] + clock + drift * (event["ts"] - 1_000_000.0), 3)
        event["dur"] = round(event["dur"], 3)
    more: dict[str, Any] = {}
    if plan.known:
        more["distributedInfo"] = {"backend": plan.backend, "rank": r, "world_size": plan.world or plan.ranks}
    if plan.hosts:
        more["host_name"] = plan.hosts[r]
    return document(events, devices=plan.devices, **more)


def _step(plan: Plan, r: int, step: int, at: float, events: list[dict[str, Any]]) -> float:
    """Adds the events of a step that begins at this time, and returns its end."""
    came = starts(plan, step)
    data, host = (column[r] if column else 0.0 for column in (plan.data, plan.host))
    begin, on_host = came[r], plan.backend == "gloo"
    end = max(came) + plan.exchange

    def add(category: str, name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": at + ts, "dur": dur, "args": args}
        )

    if plan.labelled:
        add("user_annotation", f"ProfilerStep#{plan.first + step}", 0, end + SYNC)
    else:
        add("user_annotation", "train_step", 0, end + SYNC)
    if data:
        add("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, data)
    go = data + host
    length = came[r] - go - LAUNCH
    count = plan.kernels[r] if plan.kernels else 1
    for k in range(count):
        each = length / count
        if on_host:
            add("cpu_op", "aten::mm", go + LAUNCH + k * each, each)
            continue
        number = 1000 * step + 10 + k
        launched = go + k * LAUNCH / count
        add(
            "cpu_op",
            "aten::mm",
            launched,
            LAUNCH / count,
            **{"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]},
        )
        add("cuda_runtime", "cudaLaunchKernel", launched, 0.4 * LAUNCH / count, correlation=number)
        add(
            "kernel",
            "ampere_sgemm_128x64_tn",
            go + LAUNCH + k * each,
            each,
            tid=7,
            device=0,
            stream=7,
            correlation=number,
        )
    said = {
        "Collective name": plan.collective,
        "In msg nelems": plan.elements,
        "Out msg nelems": plan.elements,
        "Group size": plan.world or plan.ranks,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(plan.world or plan.ranks))),
    }
    if on_host:
        shape = {"Input Dims": [[plan.elements]], "Input type": ["float"]}
        add("user_annotation", "gloo:all_reduce", begin, end - begin, tid=2, **shape)
    else:
        number = 1000 * step + 1
        called = go + LAUNCH + 1
        add("cpu_op", "record_param_comms", called, 4, **(said if plan.metadata else {}))
        add("cuda_runtime", "cudaLaunchKernelExC", called + 1, 2, correlation=number)
        more = said if plan.metadata else {}
        add("kernel", plan.kernel, begin, end - begin, tid=20, device=0, stream=20, correlation=number, **more)
        add("cuda_runtime", "cudaStreamSynchronize", called + 6, end - called - 6 + 2, correlation=number + 5)
    return at + end + SYNC
