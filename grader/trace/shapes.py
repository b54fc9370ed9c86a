"""What the recorded shapes of operators tell: the arithmetic of matrix products, attention scores, what ranks exchange."""

import re
from typing import Any

import numpy as np

from grader.trace import roofline
from grader.trace.catalogue import Metrics
from grader.trace.columns import Trace
from grader.trace.events import CPU_OP
from grader.trace.nesting import alike
from grader.trace.steps import Steps

# What comes first in the JSON of dimensions and of types.
NO_SHAPES, TENSOR_LIST = re.compile(r"\s*\[\s*\[\s*\]"), re.compile(rf"\s*\[\s*{roofline.LIST}")
CONVOLUTION = re.compile(r"aten::\w*conv")
BATCHED_PRODUCT = re.compile(r"aten::(bmm|baddbmm)$")


def alignment(m: Metrics, trace: Trace, steps: Steps) -> None:
    """`aligned_share`: of the arithmetic of matrix products, convolutions and attention left out, the part whose sizes are
    all multiples of 16 bytes. None where shapes or types were not recorded."""
    ops = np.flatnonzero((trace.category == CPU_OP) & (trace.dims >= 0) & (steps.of_event[:-1] >= 0))
    ops = ops[trace.named(roofline.MATRIX_PRODUCT, ops)]
    kinds, kind = _kinds(trace, ops)
    work = [(roofline.work(name, tensors).flops, roofline.fits_tensor_cores(tensors)) for name, tensors in kinds]
    if any(None in one for one in work):
        return
    flops, fits = np.array(work, np.float64).reshape(-1, 2)[kind].T
    if flops.any():
        m.aligned_share = float((flops * fits).sum() / flops.sum())
        m.events["aligned_share"] = ops


def _kinds(trace: Trace, ops: np.ndarray) -> tuple[list[tuple[str, Any]], np.ndarray]:
    """Name and inputs of each kind of these operators, which have shapes; and of which kind each of them is."""
    columns = (column[ops].astype(np.int64) for column in (trace.name, trace.dims, trace.types))
    _, first, kind = np.unique(alike(*columns), return_index=True, return_inverse=True)
    kinds = []
    for op in ops[first].tolist():
        types = trace.texts[trace.types[op]] if trace.types[op] >= 0 else None
        kinds.append((trace.names[trace.name[op]], roofline.inputs(trace.texts[trace.dims[op]], types)))
    return kinds, kind


def exchanged(trace: Trace, collectives: np.ndarray, steps: int) -> float | None:
    """The numbers in the tensors given to these events, per step. None without shapes, as of more than 30 tensors (torch 2.15)."""
    total = 0
    for event in collectives:
        dims, types = (trace.texts[at] if at >= 0 else "" for at in (trace.dims[event], trace.types[event]))
        if not dims or (NO_SHAPES.match(dims) and TENSOR_LIST.match(types)):
            return None
        total += roofline.largest_input(dims)
    return total / steps


def products(m: Metrics, trace: Trace, steps: Steps, ops: np.ndarray) -> None:
    """`product_flops`: the arithmetic of those of `ops` that are matrix products. None where not all of it is known: without
    shapes, with a CUDA graph, whose operators are not there, and with a convolution, which can do the same product."""
    made = ops[trace.named(roofline.MATRIX_PRODUCT, ops)]
    if (trace.dims[made] < 0).any() or m.graph_launches or trace.named(CONVOLUTION, ops).any():
        return
    kinds, kind = _kinds(trace, made)
    work = [roofline.work(name, tensors).flops for name, tensors in kinds]
    if None in work:
        return
    flops = np.array(work, np.float64)[kind]
    m.per_step["product_flops"] = np.bincount(steps.of_event[made], flops, minlength=len(steps)).tolist()
    m.product_flops = float(flops.sum() / len(steps))
    m.largest_product = float(flops.max(initial=0.0))
    m.events["product_flops"] = made


def score_matrices(m: Metrics, trace: Trace, steps: Steps, ops: np.ndarray) -> float | None:
    """How many of `ops`, per step, are batched matrix products whose result has more elements than both inputs: in an attention
    that is written out, the scores of all queries with all keys, and their gradient. None as for `products`."""
    products = ops[trace.named(BATCHED_PRODUCT, ops)]
    dims = trace.dims[products]
    if (dims < 0).any() or m.graph_launches:
        return None
    larger = np.array([code for code in np.unique(dims).tolist() if _grows(trace.texts[code])], dims.dtype)
    m.events["score_matrices"] = products[np.isin(dims, larger)]
    return len(m.events["score_matrices"]) / len(steps)


def _grows(dims: str) -> bool:
    shapes = [tensor.shape for tensor in roofline.inputs(dims, None) if tensor and len(tensor.shape) == 3]
    if len(shapes) < 2:
        return False
    (_, rows, inner), (_, _, columns) = shapes[-2:]
    return rows * columns > inner * (rows + columns)
