"""What this machine's GPU reaches at most, as JSON on stdout: `python -m grader.workloads.peaks`, in ten seconds.

The fastest of several matrix products of 8192 x 8192 x 8192 on random data (16 bits, float32 inputs on tensor cores, float32 on the
CUDA cores), of copies within the device, read and written, and from pinned memory of the host. Each is timed by CUDA events."""

import json
import time
from collections.abc import Callable

import torch

from grader.devices import native

SIDE, REPEATS, LONGEST_S = 8192, 30, 1.5
GIB = 1 << 30


def fastest_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest of REPEATS calls that follow two others, or of as many as end within LONGEST_S."""
    best, until = float("inf"), 0.0
    for n in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if n == 1:
            until = time.monotonic() + LONGEST_S
        if n > 1:
            best = min(best, begin.elapsed_time(end) / 1e3)
            if time.monotonic() > until:
                break
    return best


def product(dtype: torch.dtype, tf32: bool = False) -> float:
    """Floating-point operations per second of a matrix product."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * SIDE**3 / fastest_s(lambda: torch.mm(left, right, out=out))


def measured() -> dict[str, float | None]:
    """Rates per second by their names in `grader.devices.Peaks`; None for what the GPU has no units for."""
    units = native(torch.cuda.get_device_capability()) if torch.version.hip is None else frozenset({"bf16"})
    half = product(torch.bfloat16 if "bf16" in units else torch.float16) if units & {"bf16", "fp16"} else None
    found = {"half": half, "tf32": product(torch.float32, tf32=True) if "tf32" in units else None}
    found["fp32"] = product(torch.float32)
    size = min(2 * GIB, torch.cuda.mem_get_info()[0] // 4)
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    found["memory"] = 2 * size / fastest_s(lambda: target.copy_(source))
    pinned = torch.empty(size // 4, dtype=torch.uint8, pin_memory=True)
    found["pinned_copy"] = len(pinned) / fastest_s(lambda: target[: len(pinned)].copy_(pinned, non_blocking=True))
    return found


if __name__ == "__main__":
    print(json.dumps(measured()))
