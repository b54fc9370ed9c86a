"""What the GPU did: copies by kind, kernels by what they compute and on which units."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.trace import kernels
from grader.trace.host import launching_op
from grader.trace.read import KERNEL, Trace

COPY_NAME = re.compile(r"(?:Memcpy|CopyHostToDevice|Copy)\s*(\w+?)(?:\s*\((\w+) -> (\w+)\))?$")


def by_name(judge: Callable[[str], bool | None], trace: Trace, events: np.ndarray) -> np.ndarray:
    """What `judge` says of each event's name: 1, 0, or -1 for None. Each distinct name is judged once."""
    answers = np.full(len(trace.names), -1, np.int8)
    for code in np.flatnonzero(np.bincount(trace.name[events])).tolist():  # much faster than np.unique
        answer = judge(trace.names[code])
        answers[code] = -1 if answer is None else int(answer)
    return answers[trace.name[events]]


def copy_kind(name: str) -> str:
    """ "Memcpy HtoD (Pinned -> Device)" -> "HtoD pinned". Other directions keep their code; a host-to-device copy whose
    source is neither pinned nor pageable is "HtoD other"."""
    match = COPY_NAME.match(name)
    if not match:
        return "other"
    direction, source = match[1], (match[2] or "").lower()
    if direction != "HtoD":
        return direction
    return f"HtoD {source}" if source in ("pinned", "pageable") else "HtoD other"


@dataclass(frozen=True)
class Kernels:
    """All kernels of a trace; arrays of the same length. 1: yes, 0: no, -1: nothing tells."""

    index: np.ndarray  # of the event
    communication: np.ndarray  # bool: a collective, a send or a receive
    matmul: np.ndarray  # bool: a matrix product or a convolution
    core: np.ndarray  # of a matmul: it runs on tensor cores
    half: np.ndarray  # of a matmul: its inputs are bfloat16 or float16


def kernels_of(trace: Trace) -> Kernels:
    """Sort the kernels by their names, and by the operators that launched them where names do not tell."""
    k = np.flatnonzero(trace.category == KERNEL)
    op = launching_op(trace, trace.launch_of(k), kernels.MATMUL_OP)
    by_kernel = by_name(kernels.is_matmul_kernel, trace, k)
    matmul = (by_kernel == 1) | ((by_kernel < 0) & (op >= 0))
    typed = np.where(op >= 0, trace.half[op], -1)  # the operator's input types, where they were recorded
    half = np.where(typed >= 0, typed, by_name(kernels.has_half_inputs, trace, k))
    core = by_name(kernels.on_tensor_cores, trace, k)
    # Every recent GPU runs a bf16 or fp16 product on tensor cores, so the input type answers where the name does not.
    core = np.where((core < 0) & (half == 1), 1, core)
    return Kernels(k, by_name(kernels.is_communication, trace, k) == 1, matmul, core, half)
