"""How fast a device can be at most. A rate above it was not measured but forged."""

from grader.devices import PEAKS

# Floating-point operations per second of the fastest matrix product measured on the device.
MATMUL_FLOPS = {name: peaks.half for name, peaks in PEAKS.items()}


def least_step_s(gpu: str | None, flops: float | None) -> float | None:
    """The shortest possible time, in seconds, of a step that must do `flops` operations; None where it is unknown."""
    peak = MATMUL_FLOPS.get(gpu or "")
    return flops / peak if peak and flops else None
