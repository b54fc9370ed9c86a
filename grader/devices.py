"""The ceilings that rates are held against, by a GPU's name as torch and nvidia-smi give it, and what a GPU has units for.

Measured ones come first, then data sheets, which no kernel quite reaches. What nobody says is None, and other devices are unknown."""

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.data.cache import cache_dir, whole_file
from grader.errors import UserError

MEASURED = "measured"
# NVLink multicast can upset a host whose GPUs others share, and two ranks gain nothing from it
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
Capability = tuple[int, int]  # as torch.cuda.get_device_capability() gives it


def native(capability: Capability) -> frozenset[str]:
    """What an NVIDIA GPU of this capability has units for: formats, and PyTorch's flash kernels (CUDA C++ Programming Guide, "Compute
    Capabilities"). torch.cuda.is_bf16_supported() counts emulation and is True on a T4, so ask here."""
    since = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "flash": (8, 0), "fp8": (8, 9)}
    return frozenset(what for what, first in since.items() if capability >= first)


# ---------------------------------------------------------------- a GPU that is pretended

PRETEND = "GRADER_PRETEND_DEVICE"  # in the environment of the process that grades: "7.5,16GiB"
NO_MARKS = f"{PRETEND} is set: loops see another GPU than this machine's. These points are no marks."


@dataclass(frozen=True)
class Pretence:
    """An older or smaller GPU that a grade's loops are to see in place of this machine's: for tests and maintainers."""

    capability: Capability
    total: int  # bytes of memory, as NVML calls them

    @property
    def name(self) -> str:
        major, minor = self.capability
        return f"a pretended GPU of capability {major}.{minor} with {self.total / 2**30:.3g} GiB"

    def left(self, free: int, used: int) -> int:
        """Bytes of it that are free: what is in use of the GPU that is here is in use of it, too."""
        return max(0, min(free, self.total - used))


def pretence() -> Pretence | None:
    """What PRETEND asks for; None where it is not set. Raises UserError for what cannot be read."""
    text = os.environ.get(PRETEND, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,2})\.(\d) *, *(\d{1,4}(?:\.\d{1,3})?) *GiB", text, re.ASCII)
    if not found or not float(found[3]):
        raise UserError(f"{PRETEND}={text}: write a compute capability and the memory, as in 7.5,16GiB.")
    return Pretence((int(found[1]), int(found[2])), int(float(found[3]) * 2**30))


@dataclass(frozen=True)
class Peaks:
    """Of matmuls without sparsity, in floating-point operations per second; None: the device has it not, or nobody says."""

    half: float | None  # 16-bit inputs on tensor cores, summed up in fp32
    tf32: float | None  # float32 inputs on tensor cores
    fp32: float  # float32 on the CUDA cores
    memory: float | None  # bytes per second of a copy within the device's memory, read and written
    pinned_copy: float | None = None  # bytes per second from pinned memory of the host
    fp8: float | None = None  # summed up in fp32
    capability: Capability | None = (9, 0)  # None: not NVIDIA's
    source: str = MEASURED  # or the document

    @property
    def bf16(self) -> float | None:
        return self.half if self.capability is None or "bf16" in native(self.capability) else None

    @property
    def measured(self) -> bool:
        return self.source == MEASURED


# Fastest product of 8192 x 8192 x 8192, random data; copy within the device (tests/benchmarks/device_peaks.py); torch 2.11,
# CUDA 13.
PEAKS = {
    "NVIDIA H200": Peaks(half=799e12, tf32=418e12, fp32=51e12, memory=4.25e12, pinned_copy=55e9),
    "NVIDIA H100 80GB HBM3": Peaks(half=795e12, tf32=415e12, fp32=52e12, memory=3.03e12, pinned_copy=55e9),
}


# ---------------------------------------------------------------- data sheets


def _sheet(
    capability: Capability | None, source: str, memory: float | None, fp32: float, *tensor: float | None
) -> Peaks:
    """memory: GB/s. fp32, and of the tensor cores half, tf32 and fp8: TFLOP/s."""
    half, tf32, fp8 = (None if rate is None else rate * 1e12 for rate in (*tensor, None, None, None)[:3])
    bytes_s = None if memory is None else memory * 1e9
    return Peaks(half, tf32, fp32 * 1e12, bytes_s, fp8=fp8, capability=capability, source=source)


def _by_clock(
    capability: Capability, source: str, tensor: int, cores: int, boost: float, memory: float | None
) -> Peaks:
    """From CUDA cores and boost clock (GHz). tensor: how often TF32 is as fast; 16 bits are twice, fp8 four times as fast as TF32."""
    fp32 = 2 * cores * boost / 1000
    fp8 = 4 * tensor * fp32 if "fp8" in native(capability) else None
    return _sheet(capability, source, memory, fp32, 2 * tensor * fp32, tensor * fp32, fp8)


# Each figure was held against a second source (November 2026), named beside the makers' document; what none of these has is None, or
# has no row here.
_LIGHTNING = "; as in PyTorch Lightning, fabric/utilities/throughput.py"
_TITAN = "; matmuls as in torchtitan, tools/utils.py"
_HUB = "; float32 as in NVIDIA_SKUS of huggingface.js"
_GEFORCE = f"cores, boost clock and memory: NVIDIA, Compare GeForce graphics cards{_HUB}; rates by format: "
_GA102 = f"NVIDIA Ampere GA102 GPU architecture white paper, GeForce RTX 3080 and 3090 compared{_LIGHTNING}"
_ADA = f"NVIDIA Ada GPU architecture white paper, appendix A{_LIGHTNING}"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture white paper, appendix A"
_T4 = f"NVIDIA T4 Tensor Core GPU product brief and Turing architecture white paper, Tesla T4{_LIGHTNING}"
_P100 = "NVIDIA Tesla P100 data sheet, specifications"
_V100 = f"NVIDIA V100 Tensor Core GPU data sheet, specifications{_LIGHTNING}"
_A100 = f"NVIDIA A100 Tensor Core GPU data sheet, specifications{_LIGHTNING}"
_H100 = f"NVIDIA H100 Tensor Core GPU data sheet, specifications{_LIGHTNING}; halved where the sheet counts sparsity"
_H200 = f"NVIDIA H200 Tensor Core GPU data sheet, specifications{_TITAN}; halved where the sheet counts sparsity"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip data sheet, specifications; halved where it counts sparsity"
_B200 = f"NVIDIA Blackwell data sheet, HGX B200{_TITAN}; halved where the sheet counts sparsity"
_L4 = f"NVIDIA L4 Tensor Core GPU data sheet, specifications{_LIGHTNING}; halved where the sheet counts sparsity"
_PRO_6000 = f"NVIDIA RTX PRO Blackwell GPU architecture white paper, RTX PRO 6000 Blackwell Workstation Edition{_HUB}"

# memory None: cards of different memory have the same name (3060: 8 or 12 GB, 3080: 10 or 12 GB, the second with 3% more cores;
# 3060 Ti and 4070: GDDR6 or GDDR6X), or no second source was found
_CARDS: dict[str, tuple[int, float, float | None]] = {
    "RTX 3060": (3584, 1.777, None),
    "RTX 3060 Ti": (4864, 1.665, None),
    "RTX 3070": (5888, 1.725, 448),
    "RTX 3070 Ti": (6144, 1.77, 608),
    "RTX 3080": (8704, 1.71, None),
    "RTX 3080 Ti": (10240, 1.665, None),
    "RTX 3090": (10496, 1.695, 936),
    "RTX 3090 Ti": (10752, 1.86, 1008),
    "RTX 4060": (3072, 2.46, 272),
    "RTX 4060 Ti": (4352, 2.535, 288),
    "RTX 4070": (5888, 2.475, None),
    "RTX 4070 SUPER": (7168, 2.475, None),
    "RTX 4070 Ti": (7680, 2.61, 504),
    "RTX 4070 Ti SUPER": (8448, 2.61, None),
    "RTX 4080": (9728, 2.505, 717),
    "RTX 4080 SUPER": (10240, 2.55, 736),
    "RTX 4090": (16384, 2.52, 1008),
    "RTX 5060": (3840, 2.497, 448),
    "RTX 5060 Ti": (4608, 2.572, 448),
    "RTX 5070": (6144, 2.51, 672),
    "RTX 5070 Ti": (8960, 2.452, 896),
    "RTX 5080": (10752, 2.617, 960),
    "RTX 5090": (21760, 2.407, 1792),
}
_SERIES: dict[str, tuple[Capability, str]] = {
    "RTX 3": ((8, 6), _GA102),
    "RTX 4": ((8, 9), _ADA),
    "RTX 5": ((12, 0), _RTX_BLACKWELL),
}


def _geforce(card: str) -> Peaks:
    capability, formats = _SERIES[card[:5]]
    return _by_clock(capability, _GEFORCE + formats, 1, *_CARDS[card])


# memory, fp32, half, TF32, fp8
DATA_SHEETS = {
    **{f"NVIDIA GeForce {card}": _geforce(card) for card in _CARDS},
    "Tesla P100-PCIE-12GB": _sheet((6, 0), _P100, 549, 9.3),
    "Tesla P100-PCIE-16GB": _sheet((6, 0), _P100, 732, 9.3),
    "Tesla P100-SXM2-16GB": _sheet((6, 0), _P100, 732, 10.6),
    **dict.fromkeys(("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"), _sheet((7, 0), _V100, 900, 14, 112)),
    **dict.fromkeys(("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"), _sheet((7, 0), _V100, 900, 15.7, 125)),
    "Tesla V100S-PCIE-32GB": _sheet((7, 0), _V100, None, 16.4, 130),
    "Tesla T4": _sheet((7, 5), _T4, 320, 8.1, 65),
    "NVIDIA A10": _sheet(
        (8, 6), f"NVIDIA A10 Tensor Core GPU data sheet, specifications{_LIGHTNING}", 600, 31.2, 125, 62.5
    ),
    "NVIDIA A10G": _sheet((8, 6), "NVIDIA A10G Tensor Core GPU data sheet (AWS, February 2022)", 600, 31.5, 70, 35),
    "NVIDIA A100-PCIE-40GB": _sheet((8, 0), _A100, 1555, 19.5, 312, 156),
    "NVIDIA A100-SXM4-40GB": _sheet((8, 0), _A100, 1555, 19.5, 312, 156),
    "NVIDIA A100 80GB PCIe": _sheet((8, 0), _A100, 1935, 19.5, 312, 156),
    "NVIDIA A100-SXM4-80GB": _sheet((8, 0), _A100, 2039, 19.5, 312, 156),
    "NVIDIA L4": _sheet((8, 9), _L4, 300, 30.3, 121, 60, 242.5),
    "NVIDIA L40S": _sheet((8, 9), f"NVIDIA L40S data sheet, specifications{_TITAN}", 864, 91.6, 362, 183, 733),
    "NVIDIA RTX A6000": _by_clock((8, 6), f"NVIDIA RTX A6000 in: {_GA102}", 2, 10752, 1.80, 768),
    "NVIDIA RTX 6000 Ada Generation": _by_clock((8, 9), f"NVIDIA RTX 6000 Ada in: {_ADA}", 2, 18176, 2.505, 960),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": _by_clock((12, 0), _PRO_6000, 2, 24064, 2.617, 1792),
    "NVIDIA H100 80GB HBM3": _sheet((9, 0), _H100, 3350, 67, 989.5, 494.5, 1979),
    "NVIDIA H100 PCIe": _sheet((9, 0), _H100, 2000, 51, 756.5, 378, 1513),
    "NVIDIA H200": _sheet((9, 0), _H200, 4800, 67, 989.5, 494.5, 1979),
    "NVIDIA GH200 480GB": _sheet((9, 0), _GH200, None, 67, 989.5, 494.5, 1979),
    "NVIDIA GH200 144G HBM3e": _sheet((9, 0), _GH200, 4900, 67, 989.5, 494.5, 1979),
    "NVIDIA B200": _sheet((10, 0), _B200, 7700, 75, 2250, 1100, 4500),
    "AMD Instinct MI300X": _sheet(
        None, f"AMD Instinct MI300X data sheet, peak performance{_TITAN}", 5300, 163.4, 1307.4, 653.7, 2614.9
    ),
}


# ---------------------------------------------------------------- measured on this machine


def _kept() -> Path:
    return cache_dir() / "peaks.json"


def keep(device: str, capability: Capability, rates: dict[str, float | None]) -> Path:
    """Keep what `grader.workloads.peaks` measured of this machine's GPU; returns the file. Raises OSError, UserError."""
    kept, path = _read(), _kept()
    kept[device] = {"capability": list(capability), **rates}
    with whole_file(path) as part:
        part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path


def _read() -> dict[str, Any]:
    try:
        found = json.loads(_kept().read_text(encoding="utf-8"))
    except (OSError, ValueError, UserError):
        return {}
    return found if isinstance(found, dict) else {}


def measured_here(device: str) -> Peaks | None:
    """What `keep` kept of a GPU; None where that is nothing, or damaged."""
    kept: Any = _read().get(device)
    try:
        major, minor = kept["capability"]
        rates: Any = {
            name: kept[name] and float(kept[name]) for name in ("half", "tf32", "fp32", "memory", "pinned_copy")
        }
    except (KeyError, TypeError, ValueError):
        return None
    if not rates["fp32"] or not all(rate is None or 0 < rate < math.inf for rate in rates.values()):
        return None
    return Peaks(**rates, capability=(int(major), int(minor)))


def peaks(device: str | None) -> Peaks | None:
    """What this GPU reaches at most: measured by us or on this machine, else by its data sheet. None for a device that is not known."""
    name = device or ""
    return PEAKS.get(name) or measured_here(name) or DATA_SHEETS.get(name)
