"""What this machine's GPU reaches at most, as a line for grader/devices.py.

    python -m tests.benchmarks.device_peaks

The fastest of several matrix products of 8192 x 8192 x 8192 on random data (bf16, float32 inputs on tensor cores, float32 on
the CUDA cores), of copies of 2 GiB within the device, read and written, and of 1 GiB from pinned memory of the host. Each
is timed by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from grader import machine

SIDE, REPEATS = 8192, 30
GIB = 1 << 30


def fastest_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest of REPEATS calls that follow three others."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    for _ in range(3):
        work()
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return min(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3


def product(dtype: torch.dtype, tf32: bool = False) -> float:
    """Floating-point operations per second of a matrix product."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * SIDE**3 / fastest_s(lambda: left @ right)


def main() -> None:
    half, tf32, fp32 = product(torch.bfloat16), product(torch.float32, tf32=True), product(torch.float32)
    source, target = (torch.empty(2 * GIB, dtype=torch.uint8, device="cuda") for _ in range(2))
    memory = 2 * 2 * GIB / fastest_s(lambda: target.copy_(source))
    pinned = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    copy = GIB / fastest_s(lambda: target[:GIB].copy_(pinned, non_blocking=True))
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(
        f'"{machine.gpu_name()}": Peaks(half={half / 1e12:.0f}e12, tf32={tf32 / 1e12:.0f}e12, fp32={fp32 / 1e12:.0f}e12, '
        f"memory={memory / 1e12:.2f}e12, pinned_copy={copy / 1e9:.0f}e9, "
        f"capability={torch.cuda.get_device_capability()}),"
    )


if __name__ == "__main__":
    main()
