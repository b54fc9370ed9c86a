"""How fast a collective was, in the words of nccl-tests, and what the link between GPUs can do.

Algorithm bandwidth is size over time. Bus bandwidth is that times a factor for what each link must carry, so that it can be held
against the link whatever the collective and the number of ranks are:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"""

import re
from dataclasses import dataclass

SMALL = 1 << 20  # bytes; what is smaller takes the time of a few messages, whatever the link


@dataclass(frozen=True)
class Link:
    name: str
    peak: float  # bytes per second in one direction, of all links of a GPU
    source: str


# By the device's name, half of what vendors give for both directions together. A device whose page nobody has looked up has none.
NVLINK = "nvidia.com/data-center/nvlink: {} GB/s both ways"
PCIE = "PCIe {}: {} GT/s x 16 lanes, 128 of 130 bits"
LINKS = tuple(
    (re.compile(device), Link(name, peak, source))
    for device, name, peak, source in (
        (r"V100-SXM", "NVLink 2", 150e9, NVLINK.format("300")),
        (r"A100-SXM", "NVLink 3", 300e9, NVLINK.format("600")),
        (r"(H100|H200)(?!.*(PCIe|NVL))", "NVLink 4", 450e9, NVLINK.format("900")),
        (r"GB?[23]00|B[23]00", "NVLink 5", 900e9, NVLINK.format("1,800")),
        (r"H100 PCIe", "PCIe 5 x16", 63e9, PCIE.format("5.0", 32)),
        (r"A100-PCIE|A100 80GB PCIe", "PCIe 4 x16", 31.5e9, PCIE.format("4.0", 16)),
        (r"V100-PCIE|P100-PCIE", "PCIe 3 x16", 15.75e9, PCIE.format("3.0", 8)),
    )
)
# a rank's own share stays where it is
WHOLE = frozenset(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"))


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
