"""The operations that cost the GPU most: which kernels, which shapes, which line of the source, and why so much.

A kernel leads by its correlation to its launch, and to the operators around that. The operation is the outermost of a library
(`aten::linear`, not the `aten::addmm` within it), a whole optimizer step, or the kernel itself where no operator launched it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grader.devices import Peaks
from grader.safe_text import size_text
from grader.trace import kernels, roofline
from grader.trace.columns import Trace
from grader.trace.events import CPU_OP, GRAPH_LAUNCH, MEMCPY
from grader.trace.lines import Lines
from grader.trace.metrics import SMALL_COPY, TINY_NS
from grader.trace.nesting import Ancestry, alike, distinct
from grader.trace.steps import Steps
from grader.trace.work import by_name

MOST_LISTED = 20  # GPU events of an operation
MOST_KERNELS = 8  # names listed with an operation
MUCH = 0.3  # a share of the time worth a word
ABOVE = 1.1  # times the peak: no kernel of that type is so fast
SLOW = 0.5  # a rate below this share of the peak asks for a reason
MANY = 20  # kernels a step; fewer tiny ones cost little to launch

# An operator of a library, "aten::linear"; not the engine's and the compiler's wrappers around them.
LIBRARY_OP = re.compile(r"(?!autograd::|torch::)\w+::\w+|triton_")
BACKWARD = re.compile(r"autograd::engine::evaluate_function|\w*Backward\d*$")
OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#")
CONVOLUTION_NODE = re.compile(
    r"(?>\w*?Conv)\w*Backward\d*$"
)  # from the first "Conv" alone: each in a long name would be tried
PHASES = ("", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Operation:
    """All calls of one operation with one set of shapes from one line, in the counted steps."""

    name: str  # "aten::mm", or the kernel's name where no operator launched it (a compiled kernel, a graph)
    shapes: str  # its inputs', "[64, 3, 7, 7] [512]"; "" when they were not recorded
    line: str | None  # "train.py:41", the innermost line outside of torch; None without stacks
    function: str | None  # the function that line is in
    phase: str  # "forward", "backward", "optimizer" or ""
    count: float  # calls per step
    gpu_ns: float  # per step, kernels and copies
    share: float  # of the GPU's busy time
    kernels: list[str]  # names, the longest time first
    tensor_cores: bool | None
    flops: float | None  # per step, by the shapes; None where they do not tell
    bytes_moved: float | None  # per step, least possible: each input and output once
    intensity: float | None  # flops / bytes_moved
    bound: str | None  # "compute", "memory", "launch" (tiny kernels) or None (not known)
    why: str  # why it costs what it costs, one sentence
    events: list[int]  # its longest GPU events, at most 20
    launched: float = 0.0  # kernels and copies per step
    least_ns: float | None = None  # per step, what flops and bytes need at the device's peaks; None: not known


def operations(trace: Trace, top: int = 10, skip_first: int = 1, steps: Steps | None = None) -> list[Operation]:
    """The `top` operations by GPU time after the first `skip_first` steps. steps: `Steps(trace, skip_first)`, if it is there."""
    steps = steps or Steps(trace, skip_first)
    if not len(steps) or not len(steps.gpu) or top < 1:
        return []
    work = _Work(trace, steps)
    lines = Lines(trace)
    time = np.bincount(work.group, weights=work.duration)
    ranked = np.argsort(-time, kind="stable")
    taken = 2 * top
    while True:  # a group with several lines falls apart, and then others may cost more than its parts
        rows = _by_line(work, lines, ranked[:taken], top)
        if taken >= len(ranked) or (len(rows) == top and work.duration[rows[-1]].sum() >= time[ranked[taken]]):
            break
        taken *= 4
    return [_operation(work, lines, members, steps.busy) for members in rows]


def _by_line(work: _Work, lines: Lines, groups: np.ndarray, top: int) -> list[np.ndarray]:
    """These groups divided by source line: the `top` most expensive, each as positions in `work.gpu`."""
    members = np.flatnonzero(np.isin(work.group, groups))
    line = lines.of(work.anchor[work.call[members]])
    row = alike(work.group[members], line)
    order = np.argsort(row, kind="stable")
    rows = np.split(members[order], np.flatnonzero(np.diff(row[order])) + 1)
    return sorted(rows, key=lambda members: -work.duration[members].sum())[:top]


class _Work:
    """The GPU work of the counted steps, and the calls that launched it. `gpu`, `call`, `duration`, `group`, `matmul`,
    `core` and `half` have an entry for each GPU event; `launch`, `owner`, `phase`, ... one for each call."""

    def __init__(self, trace: Trace, steps: Steps):
        self.trace, self.n = trace, len(steps)
        self.gpu = steps.gpu
        self.duration = trace.duration[self.gpu].astype(np.float64)
        self.launch = distinct(steps.launch, len(trace))
        self.call = np.searchsorted(self.launch, steps.launch)
        self.around = Ancestry(trace.operator, self.launch)
        numbered = trace.sequence[self.around.ops] >= 0
        k = steps.kernels
        self.matmul, self.core, self.half = (column[self.gpu] for column in (k.matmul, k.core, k.half))

        # The event that is the operation: the optimizer's step, else an operator, else -1.
        outer = self._of_calls(self.around.outermost(self._named(LIBRARY_OP)))
        outer[trace.named(GRAPH_LAUNCH, self.launch)] = -1
        optimizers = trace.annotations[trace.named(OPTIMIZER, trace.annotations)]
        optimizer = trace.nesting(optimizers).around(self.launch)
        self.owner = np.where(optimizer >= 0, optimizer, outer)
        backward = self._named(BACKWARD)
        self.node = self._nearest(backward & numbered)  # the innermost backward operator, with its number
        self.numbered = self.around.nearest(numbered)
        self.phase = np.where(self._of_calls(self.numbered) >= 0, 1, 0)
        self.phase[self._nearest(backward) >= 0] = 2
        self.phase[optimizer >= 0] = 3

        name = np.where(self.owner[self.call] >= 0, trace.name[self.owner[self.call]], trace.name[self.gpu])
        dims, types = (np.where(self.owner >= 0, column[self.owner], -1) for column in (trace.dims, trace.types))
        self.group = alike(name, dims[self.call], types[self.call], self.phase[self.call])

    def _named(self, pattern: re.Pattern[str]) -> np.ndarray:
        """Mask of the operators around calls whose name begins with a match."""
        return self.trace.named(pattern, self.around.ops)

    def _of_calls(self, positions: np.ndarray) -> np.ndarray:
        """For each call an event (index, else -1), from what `Ancestry` gave for each operator."""
        return np.append(self.around.ops, -1)[positions[self.around.of_call]]

    def _nearest(self, flag: np.ndarray) -> np.ndarray:
        return self._of_calls(self.around.nearest(flag))

    @cached_property
    def anchor(self) -> np.ndarray:
        """For each call the event whose line is the operation's: of a backward one that of the forward one with its sequence number."""
        anchor = np.where(self.owner >= 0, self.owner, self.launch)
        backward = np.flatnonzero((self.phase == 2) & (self.node >= 0))
        # Several operators have a number when the earlier ones took no part in autograd, so the last is the one.
        t = self.trace
        numbered = np.flatnonzero((t.category == CPU_OP) & (t.sequence >= 0))
        forward = numbered[~t.named(BACKWARD, numbered)]
        found = _Numbered(t, forward).nearest(self.node[backward], before=True)
        anchor[backward[found >= 0]] = found[found >= 0]
        return anchor

    @cached_property
    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """For each call the innermost known operator around it, else -1; and a mask of products with another within, counted there."""
        known = by_name(roofline.is_known, self.trace, self.around.ops) == 1
        product = by_name(roofline.is_product, self.trace, self.around.ops) == 1
        above = self.around.nearest(product)[self.around.parent[np.flatnonzero(product)]]
        outer = np.zeros(len(self.trace), bool)
        outer[self.around.ops[above[above >= 0]]] = True
        return self._nearest(known), outer

    @cached_property
    def nodes(self) -> _Numbered:
        """The backward nodes of convolutions."""
        t = self.trace
        shaped = np.flatnonzero((t.category == CPU_OP) & (t.dims >= 0))
        return _Numbered(t, shaped[t.named(CONVOLUTION_NODE, shaped)])

    def output_dims(self, ops: np.ndarray) -> np.ndarray:
        """For each forward convolution its backward node's input shapes (index into `texts`), else -1; the first is the output's."""
        forward = np.append(self.around.ops, -1)[self.numbered[self.around.position[ops]]]
        node = self.nodes.nearest(forward, before=False)
        return np.where((forward >= 0) & (node >= 0), self.trace.dims[node], -1)


class _Numbered:
    """Events that have a sequence number, to find the one nearest to another event with the same."""

    def __init__(self, trace: Trace, events: np.ndarray):
        self.trace = trace
        self.numbers, rank = np.unique(trace.sequence[events], return_inverse=True)
        self.keys = np.sort(rank * len(trace) + events)

    def nearest(self, events: np.ndarray, before: bool) -> np.ndarray:
        """For each of these events (indices) the nearest before it, or after it, that has its number, else -1."""
        if not len(self.keys):
            return np.full(len(events), -1)
        keys, sequence = self.keys, self.trace.sequence[events]
        wanted = np.minimum(np.searchsorted(self.numbers, sequence), len(self.numbers) - 1)
        at = np.searchsorted(keys, wanted * len(self.trace) + events) - before
        key = keys[np.clip(at, 0, len(keys) - 1)]
        same = (at >= 0) & (at < len(keys)) & (key // len(self.trace) == wanted) & (self.numbers[wanted] == sequence)
        return np.where(same, key % len(self.trace), -1)


# --- one operation -----------------------------------------------------------------------------------------------


def _operation(work: _Work, lines: Lines, members: np.ndarray, busy: int) -> Operation:
    trace, n = work.trace, work.n
    call = int(work.call[members[0]])  # any will do for what they have in common
    owner, line = int(work.owner[call]), int(lines.of(work.anchor[[call]])[0])
    facts = _Facts(work, members)
    own = work.owner[work.call[members]]
    name = trace.names[trace.name[owner if owner >= 0 else facts.gpu[0]]]
    where, function = list(lines.known)[line] if line >= 0 else (None, None)
    bound = facts.bound
    return Operation(
        name=OPTIMIZER.sub("", name, count=1),
        shapes=_shapes(_text(trace, trace.dims, owner), _text(trace, trace.types, owner)),
        line=where,
        function=function,
        phase=PHASES[int(work.phase[call])],
        count=(len(distinct(own, len(trace))) if owner >= 0 else len(members)) / n,
        gpu_ns=facts.time / n,
        share=facts.time / busy if busy else 0.0,
        kernels=facts.kernels[:MOST_KERNELS],
        tensor_cores=facts.tensor_cores,
        flops=None if facts.flops is None else facts.flops / n,
        bytes_moved=None if facts.bytes is None else facts.bytes / n,
        intensity=facts.flops / facts.bytes if facts.flops is not None and facts.bytes else None,
        bound=bound,
        why=_why(facts, bound),
        events=facts.gpu[np.argsort(-facts.duration, kind="stable")][:MOST_LISTED].tolist(),
        launched=len(members) / n,
        least_ns=None if facts.least is None else facts.least / n,
    )


def _text(trace: Trace, column: np.ndarray, event: int) -> str | None:
    return trace.texts[column[event]] if event >= 0 and column[event] >= 0 else None


def _shapes(dims: str | None, types: str | None) -> str:
    """ "[64, 3, 7, 7] [512]": of the inputs that are tensors; lists of tensors and scalars are left out."""
    tensors = [t for t in roofline.inputs(dims, types) if t and t.shape]
    return " ".join(str(list(t.shape)) for t in tensors[:6]) + (" ..." if len(tensors) > 6 else "")


class _Facts:
    """What is known of the GPU events of one operation, in all counted steps. Times in ns."""

    def __init__(self, work: _Work, members: np.ndarray):
        trace = self.trace = work.trace
        self.n, self.gpu, self.duration = work.n, work.gpu[members], work.duration[members]
        self.time = float(self.duration.sum())
        self.device = _device(trace, self.gpu)
        self.peaks: Peaks | None = roofline.peaks(self.device)
        codes = distinct(trace.name[self.gpu], len(trace.names))
        of_name = np.searchsorted(codes, trace.name[self.gpu])
        times = sorted(zip(np.bincount(of_name, weights=self.duration).tolist(), codes.tolist(), strict=True))
        self.kernels = [trace.names[code] for _, code in reversed(times)]  # the longest time first
        families: dict[str, float] = {}
        for time, code in times:
            family = kernels.family(trace.names[code])
            families[family] = families.get(family, 0) + time
        self.families = sorted(families, key=lambda family: -families[family])  # likewise
        self.copies = bool((trace.category[self.gpu] == MEMCPY).all())
        matmul = work.matmul[members]
        self.has_matmul, self.matmul_time = bool(matmul.any()), float(self.duration[matmul].sum())
        self.half = _majority(work.half[members][matmul], self.duration[matmul])
        self.tensor_cores = _majority(work.core[members][matmul], self.duration[matmul])
        launching = trace.operator[work.launch[work.call[members]]]
        types = (_text(trace, trace.types, op) for op in distinct(launching[launching >= 0], len(trace)).tolist())
        self.lists = any(roofline.LIST in (text or "") for text in types)
        self.flops, self.bytes, self.odd = self._arithmetic(work, members)

    def _arithmetic(self, work: _Work, members: np.ndarray) -> tuple[int | None, int | None, int | None]:
        """Operations and least bytes of all calls; the largest size in a product that is no multiple of 8."""
        trace = self.trace
        if self.copies:
            known = (trace.bytes[self.gpu] >= 0).all()
            return 0, sum(trace.bytes[self.gpu].tolist()) if known else None, None
        units, outer = work.units
        unit = units[work.call[members]]
        ops = distinct(unit[unit >= 0], len(trace))
        of_op = np.searchsorted(ops, unit[unit >= 0])
        products = np.bincount(of_op, weights=work.matmul[members][unit >= 0], minlength=len(ops))
        ops, products = ops[~outer[ops]], products[~outer[ops]]
        flops: int | None = 0
        size: int | None = 0 if (unit >= 0).all() and not self.lists else None
        odd = None
        # A convolution's backward with one product has one gradient: a first layer's input needs none.
        kinds = (trace.name[ops], trace.dims[ops], trace.types[ops], work.output_dims(ops), np.minimum(products, 2))
        columns = [column.astype(np.int64) for column in kinds]
        _, first, count = np.unique(alike(*columns), return_index=True, return_counts=True)
        for op, output, grads, times in zip(
            ops[first].tolist(), *(c[first].tolist() for c in columns[3:]), count.tolist(), strict=True
        ):
            name = trace.names[trace.name[op]]
            tensors = roofline.inputs(_text(trace, trace.dims, op), _text(trace, trace.types, op))
            gradient = roofline.inputs(trace.texts[output], None) if output >= 0 else []
            shape = gradient[0].shape if gradient and gradient[0] else None
            one = roofline.work(name, tensors, shape, grads or 2)
            flops = None if flops is None or one.flops is None else flops + times * one.flops
            size = None if size is None or one.bytes is None else size + times * one.bytes
            if roofline.is_product(name):
                sizes = [s for t in tensors if t and len(t.shape) in (2, 3) for s in t.shape[-2:]]
                odd = max([odd or 0, *(s for s in sizes if s % 8 and s > 8)]) or None
        if self.has_matmul and not flops:
            flops = None  # there is a product in it whose shapes are not known
        return flops, size or None, odd

    @property
    def tiny(self) -> bool:
        return len(self.gpu) >= MANY * self.n and self.time / len(self.gpu) < TINY_NS

    @property
    def units(self) -> tuple[str, float | None]:
        """What the matmuls run on, in words, and its peak."""
        p = self.peaks
        if self.tensor_cores is None:
            return "units unknown from the kernels' names", None
        if not self.tensor_cores:
            return "fp32 on the CUDA cores", p.fp32 if p else None
        if self.half is None:
            return "tensor cores", None
        if self.half:
            return "half precision on tensor cores", p.half if p else None
        return "TF32 on tensor cores", p.tf32 if p else None

    @property
    def least(self) -> float | None:
        """The time, ns, that the arithmetic and the bytes of all calls need at the device's peaks, the longer of the two."""
        peak = self.units[1] if self.has_matmul else None
        if (
            not self.peaks
            or not self.peaks.memory
            or not self.bytes
            or self.copies
            or (self.has_matmul and not (self.flops and peak))
        ):
            return None
        calculating = self.flops / peak if self.flops and peak else 0.0
        return 1e9 * max(calculating, self.bytes / self.peaks.memory)

    @property
    def bound(self) -> str | None:
        if self.families[0] in ("communication", "copy HtoD", "copy DtoH"):
            return None
        if self.tiny:
            return "launch"
        if not self.has_matmul:
            return "memory" if self.families[0] != kernels.UNKNOWN or self.bytes else None
        peak = self.units[1]
        if self.flops and self.bytes and self.peaks and self.peaks.memory and peak:
            return roofline.bound_by(self.flops, self.bytes, peak, self.peaks.memory)
        return None


def _majority(answers: np.ndarray, weights: np.ndarray) -> bool | None:
    """Of answers 1, 0 and -1 (unknown) the one that most of the time has."""
    if not len(answers):
        return None
    sums = [float(weights[answers == value].sum()) for value in (0, 1, -1)]
    return {0: False, 1: True, 2: None}[int(np.argmax(sums))]


def _device(trace: Trace, gpu: np.ndarray) -> str | None:
    """Name of the GPU that these events ran on."""
    if len(set(trace.devices)) == 1:
        return trace.devices[0]
    device = int(trace.device[gpu[0]])
    return trace.devices[device] if 0 <= device < len(trace.devices) else None


# --- why, in a sentence ------------------------------------------------------------------------------------------


def _why(f: _Facts, bound: str | None) -> str:
    here = f"this {f.device.removeprefix('NVIDIA ')}" if f.device else "this GPU"
    if bound == "launch":
        count, each = len(f.gpu) / f.n, f.time / len(f.gpu) / 1000
        return f"{count:.0f} kernels of {each:.1f} µs each, which cost more to launch than to run"
    if f.families[0] == "communication":
        return "exchanges values with other GPUs, and waits for the slowest of them"
    if f.copies:
        return _why_copy(f, here)
    if f.has_matmul:
        return _why_product(f, bound, here)
    if f.bytes and f.time:
        rate = f.bytes / f.time * 1e9
        text = f"moves {size_text(f.bytes / f.n)} per step at {size_text(rate)}/s"
        if f.peaks and f.peaks.memory and rate < SLOW * f.peaks.memory:
            return f"{text}, of the {size_text(f.peaks.memory)}/s {_reaches(f.peaks, here)}, so it moves more than needed, or in bad order"
        return f"{text}, bound by memory. Only fusing it with its neighbours or a smaller type helps"
    if bound == "memory":
        if f.lists:
            return f"{f.families[0]}, bound by memory. Bytes in lists of tensors aren't counted"
        return f"{f.families[0]}, with hardly any arithmetic. Its time goes to reading and writing memory"
    return "neither its kernels' names nor its shapes show why"


def _why_copy(f: _Facts, here: str) -> str:
    if not f.bytes or not f.time:
        return "copies, and their bytes weren't recorded"
    text = f"copies {size_text(f.bytes / f.n)} per step at {size_text(f.bytes / f.time * 1e9)}/s"
    if "Pageable" in f.kernels[0] and f.bytes / len(f.gpu) >= SMALL_COPY:
        reached = f", with {size_text(f.peaks.pinned_copy)}/s to {here}" if f.peaks and f.peaks.pinned_copy else ""
        return f"{text}, and the host waits because its memory is pageable. Pinned memory is faster{reached}"
    return text


def _why_product(f: _Facts, bound: str | None, here: str) -> str:
    text, peak = f.units
    rate = f.flops / f.matmul_time * 1e9 if f.flops and f.matmul_time else None
    if rate is not None and peak and rate > ABOVE * peak:
        text += ", faster than they are with its inputs' type. It computes in fewer bits, as fp8"
        rate = None
    if rate is not None:
        text += f": {rate / 1e12:.3g} TFLOP/s" + (
            f" of the {peak / 1e12:.3g} {_reaches(f.peaks, here)}" if f.peaks and peak else ""
        )
    rest = next((name for name in f.families if not name.startswith(("gemm", "conv", "attention"))), None)
    if rest and f.matmul_time < (1 - MUCH) * f.time:
        return f"{text}, and {1 - f.matmul_time / f.time:.0%} of its time isn't the matmul itself but {rest}"
    if f.tensor_cores is False:
        return text + _tensor_cores_gain(f.peaks)
    if bound == "memory":
        return f"{text}, bound by memory. It has too little arithmetic for the {size_text((f.bytes or 0) / f.n)} it moves per step"
    if rate is not None and peak and rate < SLOW * peak:
        if f.half and f.odd:
            return f"{text}. A size of {f.odd} is no multiple of 8, which the fast kernels want"
        return f"{text}. Its sizes don't fill the tensor cores"
    return text


def _reaches(peaks: Peaks, here: str) -> str:
    return f"{here} reaches" if peaks.measured else f"of {here}'s data sheet"


def _tensor_cores_gain(peaks: Peaks | None) -> str:
    """What a float32 matmul on the CUDA cores would gain."""
    if not peaks:
        return "; tensor cores would do it several times faster, in TF32 already"
    if not peaks.half:
        return "; this GPU has no tensor cores"
    if peaks.tf32 and peaks.tf32 > 1.5 * peaks.fp32:  # not on GeForce cards
        return f"; tensor cores would do it about {peaks.tf32 / peaks.fp32:.0f}x faster, in TF32 already"
    kind = "bf16" if peaks.bf16 else "fp16 with a GradScaler"
    return f"; tensor cores would do it about {peaks.half / peaks.fp32:.0f}x faster, in {kind}"
