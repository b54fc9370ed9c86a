"""What GPUs were measured to reach: the ceilings that rates are held against.

A device that is not here is unknown; nobody else's figures are put in its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    half: float  # floating-point operations per second of a matrix product, bf16 on tensor cores
    tf32: float  # float32 inputs on tensor cores
    fp32: float  # float32 on the ordinary units
    memory: float  # bytes per second of a copy within the device's memory, read and written
    pinned_copy: float  # bytes per second from pinned memory of the host


# Fastest product of 8192 x 8192 x 8192, random data; copy within the device (tests/benchmarks/device_peaks.py); torch 2.11,
# CUDA 13.
PEAKS = {
    "NVIDIA H200": Peaks(half=799e12, tf32=418e12, fp32=51e12, memory=4.25e12, pinned_copy=55e9),
    "NVIDIA H100 80GB HBM3": Peaks(half=795e12, tf32=415e12, fp32=52e12, memory=3.03e12, pinned_copy=55e9),
}
