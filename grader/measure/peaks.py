"""How fast a device can be at most. A rate above it was not measured but forged."""

# Floating-point operations per second of the fastest matrix product measured on the device: bf16, 8192 x 8192 x 8192,
# random data, torch 2.11. A device that is not here is unknown; nobody else's peak is put in its place.
MATMUL_FLOPS = {"NVIDIA H200": 799e12}


def least_step_s(gpu: str | None, flops: float | None) -> float | None:
    """The shortest possible time, in seconds, of a step that must do `flops` operations; None where it is unknown."""
    peak = MATMUL_FLOPS.get(gpu or "")
    return flops / peak if peak and flops else None
