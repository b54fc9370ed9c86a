"""NVML's handles, by the names that CUDA_VISIBLE_DEVICES has for GPUs and for slices of one that is divided (MIG), and its meter of energy."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml


def handle(name: str) -> Any:
    """Of a GPU by its index or its UUID, of a whole one by its slice's UUID; None for another kind of name. Raises NVMLError."""
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    if name.startswith("MIG-"):
        return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(pynvml.nvmlDeviceGetHandleByUUID(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name) if name.startswith("GPU-") else None


def seen(gpu: Any, visible: str) -> Any:
    """What CUDA sees of a GPU: where it is divided the slice that is visible, or the first one; else all of it."""
    with contextlib.suppress(pynvml.NVMLError):  # an older driver, or a GPU that cannot be divided
        if visible.startswith("MIG-"):
            return pynvml.nvmlDeviceGetHandleByUUID(visible.split(",")[0].strip())
        if pynvml.nvmlDeviceGetMigMode(gpu)[0]:
            for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                with contextlib.suppress(pynvml.NVMLError):  # nothing is in this place
                    return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
    return gpu


def joules(gpu: Any | None) -> float:
    """The energy of a whole GPU since its driver was loaded, by its own counter; NaN for None. Raises NVMLError before Volta.
    Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html"""
    return math.nan if gpu is None else pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3


@dataclass(frozen=True)
class Used:
    """What some calls took."""

    joules: float  # NaN where there is no counter
    seconds: float
    calls: int

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


LONGEST_TICK_S = 2.0  # a counter that stands still for longer is not waited for


def used(gpu: Any | None, work: Callable[[], object], seconds: float) -> Used:
    """Call `work` for so many seconds at least. It begins and ends where the counter moves, in ticks of some ten milliseconds."""

    def until_a_tick(least_s: float) -> tuple[float, float, int]:
        begin, calls, before = time.perf_counter(), 0, joules(gpu)
        while True:
            work()
            calls, now, passed = calls + 1, joules(gpu), time.perf_counter() - begin
            if passed >= least_s and (now != before or passed >= least_s + LONGEST_TICK_S):
                return now, time.perf_counter(), calls
            before = now

    start, begin, _ = until_a_tick(0)
    end, finish, calls = until_a_tick(seconds)
    return Used(end - start, finish - begin, calls)
