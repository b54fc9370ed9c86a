"""What the GPU did: copies by kind, kernels by what they compute and on which units."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.trace import intervals, kernels
from grader.trace.columns import Trace
from grader.trace.events import KERNEL
from grader.trace.host import launching_op

NEXT_TO_NOTHING = 0.02  # of the work of the busiest GPU
COPY_NAME = re.compile(r"(?:Memcpy|Copy)\s*(\w+?)(?:\s*\((\w+) -> (\w+)\))?$")
UNTOLD = re.compile(r"MEMCPY_ASYNC")  # Ascend's, where the direction was not recorded: hardly ever within the device


def by_name(judge: Callable[[str], bool | None], trace: Trace, events: np.ndarray) -> np.ndarray:
    """What `judge` says of each event's name: 1, 0, or -1 for None. Each distinct name is judged once."""
    answers, name = np.full(len(trace.names), -1, np.int8), trace.name[events]
    for code in np.flatnonzero(np.bincount(name)).tolist():  # much faster than np.unique
        answer = judge(trace.names[code])
        answers[code] = -1 if answer is None else int(answer)
    return answers[name]


def devices_of(trace: Trace, events: np.ndarray) -> list[int]:
    """The devices that these events (indices) are on, in order; -1 for those that do not say."""
    return (np.flatnonzero(np.bincount(trace.device[events] + 1)) - 1).tolist()  # much faster than np.unique


def busy_devices(trace: Trace, events: np.ndarray) -> list[int]:
    """`devices_of` these events, without those that had next to nothing to do, as the GPU of another process."""
    spent = np.bincount(trace.device[events] + 1, trace.duration[events])
    return (
        np.flatnonzero((np.bincount(trace.device[events] + 1) > 0) & (spent >= NEXT_TO_NOTHING * spent.max())) - 1
    ).tolist()


def per_device(trace: Trace, events: np.ndarray) -> dict[int, intervals.Intervals]:
    """The union of these events on each device."""
    device = trace.device[events].astype(np.int16)  # sorted by digits, much faster
    order = np.argsort(device, kind="stable")
    groups = np.split(events[order], np.flatnonzero(np.diff(device[order])) + 1)
    return {int(trace.device[g[0]]): trace.spans(g) for g in groups if len(g)}


def union_length(trace: Trace, events: np.ndarray) -> int:
    """Length of the union of these events on each device, summed over devices, ns."""
    return sum(intervals.length(union) for union in per_device(trace, events).values())


def overlap_length(trace: Trace, a: np.ndarray, b: np.ndarray) -> int:
    """Time during which an event of a and one of b ran on the same device, summed over devices, ns."""
    if not len(a) or not len(b):
        return 0
    of_a, of_b = per_device(trace, a), per_device(trace, b)
    return sum(intervals.length(intervals.intersection(of_a[d], of_b[d])) for d in of_a.keys() & of_b.keys())


def copy_kind(name: str) -> str:
    """ "Memcpy HtoD (Pinned -> Device)" -> "HtoD pinned", else "HtoD pageable" or "HtoD other". Other directions keep their code."""
    match = COPY_NAME.match(name)
    if not match:
        return "other"
    direction, source = kernels.direction(name) or match[1], (match[2] or "").lower()
    if direction != "HtoD":
        return direction
    return f"HtoD {source}" if source in ("pinned", "pageable") else "HtoD other"


def between_host_and_device(name: str) -> bool:
    """Whether a copy of this name crosses from host to device or back."""
    return copy_kind(name)[:4] in ("HtoD", "DtoH") or UNTOLD.match(name) is not None


@dataclass(frozen=True)
class Kernels:
    """What the kernels of a trace are: an entry for each event, no and nothing for those that are none."""

    communication: np.ndarray  # bool: a collective, a send or a receive
    matmul: np.ndarray  # bool: a matrix product or a convolution
    core: np.ndarray  # of a matmul, that it runs on tensor cores: 1 yes, 0 no, -1 nothing tells
    half: np.ndarray  # of a matmul, that its inputs are bfloat16, float16 or 8-bit floats; likewise
    fp16: np.ndarray  # float16 alone, by the operator's input types; likewise


def kernels_of(trace: Trace) -> Kernels:
    """Sort the kernels by their names, and by the operators that launched them where names do not tell."""
    k = np.flatnonzero(trace.category == KERNEL)
    communication, matmul = np.zeros((2, len(trace)), bool)
    core, half, fp16 = np.full((3, len(trace)), -1, np.int8)
    communication[k] = by_name(kernels.is_communication, trace, k) == 1
    by_kernel = by_name(kernels.is_matmul_kernel, trace, k)
    op = launching_op(trace, trace.launch_of(k), kernels.MATMUL_OP)
    matmul[k] = product = (by_kernel == 1) | ((by_kernel < 0) & (op >= 0))
    k, op = k[product], op[product]
    typed = np.where(op >= 0, trace.half[op], -1)  # the operator's input types, where they were recorded
    half[k] = np.where(typed >= 0, typed, by_name(kernels.has_half_inputs, trace, k))
    fp16[k] = np.where(op >= 0, trace.fp16[op], -1)
    on_core = by_name(kernels.on_tensor_cores, trace, k)
    # Every recent GPU runs a bf16 or fp16 product on tensor cores, so the input type answers where the name does not.
    core[k] = np.where((on_core < 0) & (half[k] == 1), 1, on_core)
    return Kernels(communication, matmul, core, half, fp16)
