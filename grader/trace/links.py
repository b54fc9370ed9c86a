"""How fast a collective was, in the words of nccl-tests, and what the link between GPUs can do.

Algorithm bandwidth is size over time. Bus bandwidth is that times a factor for what each link must carry, so that it can be held
against the link whatever the collective and the number of ranks are:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"""

from __future__ import annotations

import re
from dataclasses import dataclass

SMALL = 1 << 20  # bytes; what is smaller takes the time of a few messages, whatever the link


@dataclass(frozen=True)
class Link:
    name: str
    peak: float  # bytes per second in one direction, of all links of a GPU
    source: str


# By the device's name: data sheets of NVIDIA and AMD, which give both directions together; here half of that.
LINKS = tuple(
    (re.compile(device), Link(name, peak, source))
    for device, name, peak, source in (
        (r"V100-SXM", "NVLink 2", 150e9, "NVIDIA V100 data sheet: 300 GB/s both ways"),
        (r"A100-SXM|A100-?PG", "NVLink 3", 300e9, "NVIDIA A100 data sheet: 600 GB/s both ways"),
        (r"A800-SXM", "NVLink 3", 200e9, "NVIDIA A800: 400 GB/s both ways"),
        (r"H800(?!.*PCIe)", "NVLink 4", 200e9, "NVIDIA H800: 400 GB/s both ways"),
        (r"(H100|H200)(?!.*(PCIe|NVL))", "NVLink 4", 450e9, "NVIDIA H100 and H200 data sheets: 900 GB/s both ways"),
        (r"GB?[23]00|B[23]00", "NVLink 5", 900e9, "NVIDIA Blackwell data sheet: 1,800 GB/s both ways"),
        (r"MI300X|MI325X", "Infinity Fabric", 448e9, "AMD MI300X data sheet: 7 links of 128 GB/s both ways"),
        (r"H100 PCIe|RTX 50", "PCIe 5 x16", 63e9, "PCI-SIG: 32 GT/s x 16 lanes"),
        (
            r"A100-PCIE|A100 80GB PCIe|A10G?$|A30$|A40$|L4$|L40S?$|RTX [34]0",
            "PCIe 4 x16",
            31.5e9,
            "PCI-SIG: 16 GT/s x 16 lanes",
        ),
        (r"T4$|V100-PCIE|RTX 20|P100", "PCIe 3 x16", 15.75e9, "PCI-SIG: 8 GT/s x 16 lanes"),
    )
)
WHOLE = frozenset(
    ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
)  # a rank's own share stays where it is


def link(device: str | None) -> Link | None:
    """Between GPUs of this name in one machine; None for one that is not known."""
    return next((link for pattern, link in LINKS if device and pattern.search(device)), None)


def bus_factor(kind: str, members: int) -> float | None:
    """What the algorithm bandwidth is multiplied with; None where nccl-tests define none."""
    if members < 2:
        return None
    if kind == "all_reduce":
        return 2 * (members - 1) / members
    if kind in WHOLE:
        return (members - 1) / members
    return 1.0 if kind in ("broadcast", "reduce", "send", "recv", "send/recv") else None
