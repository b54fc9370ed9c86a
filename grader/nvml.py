"""NVML's handles, by the names that CUDA_VISIBLE_DEVICES has for GPUs and for slices of one that is divided (MIG)."""

from __future__ import annotations

import contextlib
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
