"""Recordings of simulated training loops, whose true causes and true step time without each of them are known."""

import json
import random
from collections.abc import Iterable, Mapping
from typing import Any

from grader import trace
from tests import kineto

US = 1000
PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"
MAIN, BACKWARD = 100, 200
GEMM, POINTWISE = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "void at::native::vectorized_elementwise_kernel<4>",
)
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Recording:
    """Writes events the way Kineto does. Times in ns, written as microseconds with a fraction."""

    def __init__(self):
        self.events = []
        self.correlation = 0

    def event(self, cat, name, start, duration, tid=MAIN, **args):
        args = {key.replace("_", " ") if key.startswith(("External", "Input")) else key: v for key, v in args.items()}
        times = {"ts": start / 1000, "dur": duration / 1000}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args})
        return self

    def step(self, number, start, end):
        return self.event("user_annotation", f"ProfilerStep#{number}", start, end - start)

    def work(self, cat, name, launched, start, duration, call=None, tid=MAIN, device=0, stream=7, **args):
        self.correlation += 1
        default = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}[cat]
        self.event("cuda_runtime", call or default, launched, 1, tid, correlation=self.correlation)
        args |= {"device": device, "stream": stream, "correlation": self.correlation}
        return self.event(cat, name, start, duration, stream, **args)

    def document(self, **more):
        return kineto.document(self.events, **more)

    def read(self, **options):
        return trace.read_bytes(json.dumps(self.document()).encode(), **options)


class Loop:
    """One host thread that launches, one GPU that works in order; times in ns.

    Per step: wait for data, copy a batch (blocking or not), launch kernels, synchronise after some of them, communicate."""

    def __init__(
        self,
        kernels,
        launch=8 * US,
        data=0,
        copy=0,
        sync_after=(),
        comm=0,
        absent=0,
        stretch=1.0,
        name=GEMM,
        data_ops=0,
        late=0,
        pauses=None,
    ):
        self.kernels, self.launch, self.data, self.copy = kernels, int(launch * stretch), data, copy
        self.sync_after, self.comm, self.absent, self.name = set(sync_after), comm, absent, name
        self.data_ops = data_ops  # operators that are recorded while data is fetched
        self.late = late  # a step's last kernel begins so much after it could have: it waits on the GPU's side
        self.pauses: Mapping[int, int] = pauses or {}  # after this kernel the host does something else for so long

    def record(self, steps=5):
        r, host, gpu = Recording(), 0, 0
        ends = []
        for number in range(steps):
            begin = host
            if self.data:
                r.event(
                    "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", host, self.data
                )
                for i in range(self.data_ops):
                    r.event("cpu_op", "aten::select", host + i * self.data // self.data_ops, self.data // self.data_ops)
                host += self.data
            if self.absent:
                host += self.absent
            if self.copy:
                start = max(host + 5 * US, gpu)
                r.event("cpu_op", "aten::copy_", host, start + self.copy + 4 * US - host)
                r.work("gpu_memcpy", PAGEABLE, host + US, start, self.copy, bytes=1 << 24)
                gpu = start + self.copy
                r.event("cuda_runtime", "cudaStreamSynchronize", host + 2 * US, gpu + US - host)
                host = gpu + 5 * US
            for i, duration in enumerate(self.kernels):
                r.event("cpu_op", "aten::mm" if self.name == GEMM else "aten::mul", host, self.launch)
                start = max(host + self.launch, gpu) + self.late * (i == len(self.kernels) - 1)
                r.work("kernel", self.name, host + self.launch // 2, start, duration)
                gpu, host = start + duration, host + self.launch
                if i in self.sync_after:
                    r.event("cpu_op", "aten::item", host, max(gpu - host, 0) + 6 * US)
                    r.event("cpu_op", "aten::_local_scalar_dense", host + US, max(gpu - host, 0) + 4 * US)
                    r.event("cuda_runtime", "cudaStreamSynchronize", host + 2 * US, max(gpu - host, 0) + 2 * US)
                    host = max(gpu, host) + 6 * US
                host += self.pauses.get(i, 0)
            if self.comm:
                start = max(host + self.launch, gpu)
                r.work("kernel", NCCL, host + 1, start, self.comm)
                gpu, host = start + self.comm, host + self.launch
            host += 2 * US
            r.step(number, begin, host)
            ends.append(max(host, gpu))
        return r, (ends[-1] - ends[0]) / (steps - 1)

    def length(self):
        return self.record(12)[1]


WITHOUT: dict[str, dict[str, Any]] = {  # what a loop is given in place of each cause
    "input": {"data": 0},
    "transfer": {"copy": 0},
    "sync": {"sync_after": ()},
    "launch": {"launch": 1},
    "host": {"absent": 0, "pauses": None},
    "queue": {"late": 0},
    "communication": {"comm": 0},
}


def some_loop(rng: random.Random) -> dict[str, Any]:
    """What `Loop` takes: kernels and launches of any size, and one or two causes of any strength."""
    count = rng.randint(20, 120)
    kernel = rng.choice([5, 20, 60, 200]) * US
    options: dict[str, Any] = {"kernels": [kernel] * count, "launch": rng.choice([6, 10, 15]) * US}
    busy = max(kernel, options["launch"]) * count
    for cause in rng.sample(
        ["input", "transfer", "sync", "host", "pauses", "queue", "communication"], rng.choice([0, 1, 1, 2])
    ):
        much = int(busy * rng.uniform(0.1, 3))
        if cause == "sync":
            options["sync_after"] = range(0, count, rng.choice([1, 2, 5, 10]))
        elif cause == "pauses":
            at = rng.sample(range(count), rng.randint(1, min(count, 12)))
            options["pauses"] = dict.fromkeys(at, max(much // len(at), 300 * US))
        else:
            name = {"input": "data", "transfer": "copy", "host": "absent", "queue": "late", "communication": "comm"}[
                cause
            ]
            options[name] = much
    return options


def gains(options: Mapping[str, Any]) -> dict[str, float]:
    """For each cause what its absence wins, a share of the step."""
    length = Loop(**options).length()
    changed = {cause: Loop(**{**options, **change}).length() for cause, change in WITHOUT.items()}
    return {cause: 1 - without / length for cause, without in changed.items()}


def accepted(won: Mapping[str, float]) -> Iterable[str]:
    """Causes that are right of a loop of which each cause's absence wins so much: those that win nearly the most; where none wins
    much, what the GPU does."""
    most = max(won.values())
    if most < 0.15:
        return ["memory", "compute", *(cause for cause, gain in won.items() if gain > 0.12)]
    right = [cause for cause, gain in won.items() if gain >= 0.85 * most]
    return right if most > 0.18 else [*right, "memory", "compute"]
