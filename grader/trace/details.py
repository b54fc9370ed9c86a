"""What stands behind a cause: the functions, operators and lines to look at, in sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grader.trace import intervals
from grader.trace.absence import EDGE, Away, Doing, doing
from grader.trace.breakdown import CHANGE_OVER_NS, Breakdown
from grader.trace.catalogue import PARTS, Metrics
from grader.trace.causes import ms
from grader.trace.columns import Trace
from grader.trace.events import CPU_OP, PYTHON
from grader.trace.host import data_waits
from grader.trace.nesting import Ancestry, alike, distinct
from grader.trace.operations import LIBRARY_OP, OPTIMIZER, Operation
from grader.trace.steps import Steps
from grader.trace.windows import FAR_LONGER, LOADING_NS, WAITS
from grader.trace.words import plain, plain_number

MOST_IN = 0.8  # of a cause's time: so much in a few steps is theirs
MUCH = 0.5  # of something: then it is worth a name
FAR_BELOW = 10  # times as long as its bytes or its arithmetic need at the device's peaks
REACHED = 2  # times the least, which a kernel that suits its work comes down to
NO_OPERATORS = (
    "The recording has no operators of the CPU, so it may be those. Record with ProfilerActivity.CPU as well."
)
WARM_UP = "Record steps after a warm-up."
NEVER_WAITS, AS_LONG = 0.95, 0.8  # share of the step that the host is at work; of a cost: as much
MANY_LAUNCHES = 50  # in one call of an operator
# Operators that compute nothing, so what takes long beneath one is Python, as of a tensor subclass, or a thread that was held up.
VIEW = re.compile(
    r"aten::(_?(unsafe_)?(view|split|reshape_alias|squeeze|unsqueeze)(_with_sizes|_as|_dtype)?_?|expand(_as)?|narrow|slice|select|as_strided|t|transpose|permute|detach_?"
    r"|alias|chunk|unbind|unfold|movedim|diagonal|resolve_(conj|neg)|lift_fresh)$"
)
ONLY_A_GPU = re.compile(
    r"aten::_?(cudnn|miopen|thnn_fused|flash_attention_forward|efficient_attention)|.*\b_cuda_synchronize\b"
)
COMPILED = re.compile(r"## Call CompiledFxGraph|Torch-Compiled Region")  # what PyTorch itself marks
BENEATH = ", so either Python ran beneath it, as for a tensor subclass or a fake tensor, or the thread was held up"
SLICE_NS, TURNS, ONE_LENGTH = 500_000, 6, 0.1  # a GPU's turn, from which on; pauses; how far they differ
PAUSE_NS = 100_000  # between two operators: a shorter one is the cost of Python
# Functions of Python in which one thread waits for another, or for a process.
WAITS_FOR_OTHERS = re.compile(
    r"(queue|queues)\.py\(\d+\): get\b|threading\.py\(\d+\): (wait|join)|connection\.py\(\d+\): (recv|poll|wait)|SimpleQueue.{0,200}\bget\b"
)
FOR_OTHERS = "There it waits for another thread or process. If that makes the batches, the step waits for data."
PART = 0.1  # of the step: an operation that costs less is not what holds it back

# What to try first where this was found.
COMPILE_ONCE = (
    "Compile once, and record after that. TORCH_LOGS=recompiles says why torch.compile compiles again, mostly for a new shape: mark "
    "what varies as dynamic (torch._dynamo.mark_dynamic), or pad it to a few sizes.",
)
COLLECT_LESS = (
    "Collect less often, with no gc.collect() in the loop, gc.freeze() after loading, and gc.disable() between steps.",
)
KEEP_MEMORY = (
    "Let PyTorch keep its memory. Unset PYTORCH_NO_CUDA_MEMORY_CACHING, call no torch.cuda.empty_cache() in the loop, and need "
    "less than the GPU has, as a full one frees and asks again at each step.",
)
OWN_GPU = ("See in nvidia-smi who else uses this GPU, and give each process one of its own, or use MPS.",)
PIN_ONCE = ("Pin memory once, and use it again. A DataLoader with pin_memory=True does that in a thread.",)
SEARCH_NO_MORE = (
    "Switch anomaly detection off, torch.autograd.set_detect_anomaly. It searches each gradient for NaN.",
)
RECORD_AGAIN = ("Record again once the loop has warmed up, as with schedule(wait=5, warmup=3, active=5).",)

# The queue is emptied so often that the host never gets ahead: then waits and launches cannot be told apart by what they cost.
# Six recorded loops whose fix removed waits made 3 to 21 launches a wait, and 63 to 1,040 waits a step.
FEW_LAUNCHES, MANY_WAITS = 25, 10


def never_ahead(m: Metrics) -> bool:
    """Whether the host waits for the GPU again after every few launches."""
    return bool(m.syncs and m.launches and m.syncs >= MANY_WAITS and m.launches <= FEW_LAUNCHES * m.syncs)


def covered_by_host(b: Breakdown, cost: float) -> bool:
    """Whether the host has so much to do of its own that it would hold the step for most of what the GPU's waits cost, ns per step."""
    return (b.step_ns or 0.0) - _most_of_host(b) < MUCH * cost


def hidden(saves: float | None, cost: float) -> bool:
    """Whether without the GPU's work of a cause alone a step is hardly any shorter. saves, cost: ns per step, see `replay`."""
    return saves is not None and saves < MUCH * cost


def held_copies(trace: Trace, steps: Steps) -> float:
    """For how long the GPU did nothing but copies that a wait of the host before their launch kept from running beside other work, ns
    per step: those from the host that have a stream of their own and begin as they are launched."""
    copying = (steps.kind == PARTS.index("copies")) & trace.named(r".*HtoD", steps.work)
    copies, others = steps.work[copying], steps.work[~copying]
    stream = alike(trace.device[steps.work], trace.stream[steps.work])
    copies = copies[~np.isin(stream[copying], stream[~copying])]
    launch, ends = trace.launch_of(copies), np.append(-1, trace.end[copies])[:-1]
    first = trace.start[copies] - ends >= CHANGE_OVER_NS  # of those that follow each other
    waits = np.append(-1, np.sort(trace.end[steps.waits]))
    last = waits[np.searchsorted(waits, trace.start[launch], side="right") - 1]
    held = (launch >= 0) & (last > ends) & (trace.start[copies] - trace.end[launch] < CHANGE_OVER_NS)
    held = held[np.maximum.accumulate(np.where(first, np.arange(len(copies)), 0))]
    spans = intervals.clip(trace.spans(copies[held]), *steps.window)
    return intervals.length(intervals.difference(spans, trace.spans(others))) / len(steps)


def _most_of_host(b: Breakdown) -> float:
    return (b.most_host_ns or 0.0) + b.data_ns


def launches_as_long(b: Breakdown, cost: float) -> bool:
    """Whether the host never waits for the GPU, and its other work costs as much as what it does instead of launching: of two things that
    it does one after the other each alone may be what holds the step. cost: of the latter, ns per step."""
    step, busy = b.step_ns or 0.0, sum(b.parts[part] for part in PARTS if not part.startswith("idle"))
    launching = (b.most_host_ns or 0.0) - b.alone
    return _most_of_host(b) >= NEVER_WAITS * step and min(launching, step - busy) >= AS_LONG * cost


def beside(b: Breakdown, cause: str, cost: float, saves: float | None, held: float) -> str:
    """What may hold the step once this cause is gone, or "". cost: of the cause, ns per step; saves: see `replay`; held: see
    `held_copies`."""
    if cause in ("queue", "communication") and covered_by_host(b, cost):
        return (
            f" But the host itself takes up to {ms(_most_of_host(b))} per step under the profiler. Without that wait it may be the "
            "host that holds the step, which is then hardly any shorter."
        )
    if hidden(saves, cost):
        return " But the host works beside most of that, so without it alone the GPU would wait for the host instead."
    if held >= MUCH * cost:
        return (
            " But these copies have a stream of their own, and the host waits for the GPU before it launches them. Without these waits "
            "they could run beside the GPU's other work."
        )
    if cause in ("input", "host") and launches_as_long(b, cost):
        return " The host's launches take as long. It does one after the other, so look at both."
    return ""


def pausing(b: Breakdown, steps: Steps) -> float:
    """How long the GPU waited in pauses between operators, ns per step, that an ordinary loop has as well."""
    if b.away is None:
        return 0.0
    return intervals.length(intervals.intersection(idle_spans(b, "idle_launch"), b.away.brief)) / len(steps)


# --- a step unlike the others --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rare:
    """A cause that is one of a few steps alone."""

    text: str
    usual: Steps  # the longest row of others


def rare(trace: Trace, steps: Steps, b: Breakdown, parts: tuple[str, ...]) -> Rare | None:
    """Whether most of the idle time of these parts lies in few steps, which took many times as long as the others."""
    until = np.append(steps.starts[1:], steps.ends[-1:])  # what is done between two marks takes time as well
    length = until - steps.starts
    odd = length > FAR_LONGER * np.median(length) if len(steps) > 2 else np.zeros(len(steps), bool)
    spans = [idle_spans(b, part) for part in parts if part.startswith("idle")]
    if not odd.any() or not spans:
        return None
    idle = intervals.joined(*spans)
    inside = intervals.length(intervals.intersection(idle, (steps.starts[odd], until[odd])))
    if inside < MOST_IN * intervals.length(idle):
        return None
    first, count = intervals.longest_row(odd)
    took = ms(float(length[odd].mean()))
    many = "One" if odd.sum() == 1 else f"{odd.sum()}"
    said = f"{many} of {len(steps)} steps took {took}, and the others {ms(float(np.median(length[~odd])))}. Most of it lies there."
    return Rare(said, Steps(trace, steps.left_out + first, count))


# --- the host's own doing -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    sentences: list[str]  # the most important first
    inferred: bool = False  # from names and places, not from marks
    starting: bool = False  # most of it was in calls that a GPU needs once
    ways: tuple[str, ...] = ()  # to try before what the cause itself suggests


def idle_spans(b: Breakdown, part: str) -> intervals.Intervals:
    mine = b.gaps.cause == PARTS.index(part)
    return intervals.union(b.gaps.start[mine], b.gaps.end[mine])


def of_host(trace: Trace, steps: Steps, b: Breakdown) -> Told:
    """What the host did while the GPU was idle and it launched nothing."""
    spans = idle_spans(b, "idle_other")
    if not len(spans[0]):
        return Told([])
    total, d = intervals.length(spans) / len(steps), doing(trace, steps, spans)
    if d.allocating >= MUCH * total and d.longest[1]:
        name, took = d.longest
        return Told(
            [f"Most of it is one call, {name} with {ms(took)}, as at the first use of a GPU. {WARM_UP}"],
            inferred=True,
            starting=True,
            ways=RECORD_AGAIN,
        )
    if d.allocating >= MUCH * total:
        calls = ", ".join(f"{name} {plain_number(count)}" for name, count in d.allocations)
        pinning = all("Host" in name for name, _ in d.allocations)
        does = "pins memory of its own" if pinning else "allocates and frees memory of the GPU"
        memory = f"For {ms(d.allocating)} of it per step, the host {does} ({calls} times)."
        return Told([memory, *_where(d)], ways=PIN_ONCE if pinning else KEEP_MEMORY)
    known = bool(d.collecting or d.compiling or d.function or d.mark)
    if not known and not (trace.category == CPU_OP).any():
        return Told([NO_OPERATORS, *_where(d)], inferred=True)
    said = [*(_who(d, total) if known else ()), *_where(d)]
    if d.after_reading >= MUCH * total:
        said.append(
            "Most of it begins where the host has just read values from the GPU. Worked on there, they need no wait."
        )
    said += () if known else _who(d, total)
    long = [(name, ns) for name, ns in d.operators if ns >= 0.2 * total]
    views = [each for each in long if VIEW.match(each[0])]
    cpu = [each for each in long if each not in views]
    for mine, does in ((views, f"only made views{BENEATH}"), (cpu, "worked on tensors of the CPU")):
        if mine:
            most = sum(ns for _, ns in mine) >= MUCH * total
            said.insert(0 if most else len(said), f"Of it {_listed(mine)} {does}.")
    ways = COLLECT_LESS if d.collecting >= MUCH * total else ()
    return Told(said, ways=ways + (COMPILE_ONCE if d.compiling >= MUCH * total else ()))


def of_a_gpu(trace: Trace) -> str:
    """What only a GPU runs, or a wait for one, in a recording that has nothing of it; "" without."""
    mine = np.isin(trace.category, (CPU_OP, PYTHON))
    found = np.flatnonzero(mine)[trace.named(ONLY_A_GPU, np.flatnonzero(mine))]
    return plain(trace.names[trace.name[found[0]]], 60) if len(found) else ""


def on_cpu(trace: Trace, steps: Steps) -> list[str]:
    """What the host did while no operator ran, where it worked for no GPU and waited for no data."""
    ops = np.flatnonzero(trace.category == CPU_OP)
    still = intervals.complement(trace.spans(ops), *steps.host)
    spans = intervals.difference(still, data_waits(trace, steps.thread))
    long = spans[1] - spans[0] >= PAUSE_NS
    spans = spans[0][long], spans[1][long]
    total, step = intervals.length(spans) / len(steps), (steps.host[1] - steps.host[0]) / len(steps)
    if not len(ops) or total < PART * step:
        return []
    said = f"For {ms(total)} of a step under the profiler ({total / step:.0%}) no operator of PyTorch ran: the host did something else, or waited for a processor."
    d = doing(trace, steps, spans)
    return [said, *_where(d), *_who(d, total)]


def _who(d: Doing, total: float) -> list[str]:
    """Which function it was, or how to find out."""
    if d.compiling >= MUCH * total:
        return [f"For {ms(d.compiling)} of it per step, torch.compile compiled."]
    if d.collecting >= 0.1 * total:
        return [f"Python's garbage collection took {ms(d.collecting)} of it per step."]
    if d.function:
        said = [f"Most of it was in {d.function}{f', which ran {d.inner}' if d.inner else ''}."]
        return [*said, FOR_OTHERS] if WAITS_FOR_OTHERS.search(f"{d.function} {d.inner}") else said
    if COMPILED.match(d.mark):
        return ["Most of it was in compiled code, where the host prepares launches, as of Triton kernels of your own."]
    if d.mark:
        return [f'Most of it was in "{d.mark}", as record_function named it.']
    if d.stacks:
        return ["The Python functions in the recording took less than half of it."]
    return ["The recording has no Python stacks, so it doesn't name the function."]


def _where(d: Doing) -> list[str]:
    """Between which operators."""
    between = [pause for pause in d.between if pause[0] != pause[1] or pause[0] != EDGE]
    if not between:
        return []
    before, after, count, ns = between[0]
    return [f"The longest pauses lie between {before} and {after}: {plain_number(count)} per step, together {ms(ns)}."]


def of_input(trace: Trace, steps: Steps, b: Breakdown) -> Told:
    """How it is known that the host made a batch, where that was not marked."""
    idle, away = idle_spans(b, "idle_data"), b.away
    if away is None or not len(idle[0]):
        return Told([])
    total, n, said = intervals.length(idle), len(steps), []
    starting, named, copied = (intervals.intersection(idle, spans) for spans in _kinds(away))
    if intervals.length(starting) >= PART * total:
        said.append(f"For {ms(intervals.length(starting) / n)} of it per step, a DataLoader started its workers again.")
    if intervals.length(named) >= PART * total:
        d = doing(trace, steps, named)
        who = d.function or (f'"{d.mark}"' if d.mark else "functions that make a batch, by their names")
        said.append(f"For {ms(intervals.length(named) / n)} of it per step, the host ran {who} itself.")
    if intervals.length(copied) >= PART * total:
        said.append(
            f"For {ms(intervals.length(copied) / n)} of it per step, the host was busy outside of any loader, from the beginning of "
            "the step until it copied to the GPU. Most likely it makes the batch there."
        )
    guessed = intervals.length(named) + intervals.length(copied)
    return Told(said, inferred=guessed >= MUCH * total)


def _kinds(away: Away) -> list[intervals.Intervals]:
    """Starting, named and copied, each without those before it."""
    named = intervals.difference(away.named, away.starting)
    copied = intervals.difference(intervals.difference(away.copied, away.starting), away.named)
    return [away.starting, named, copied]


# --- work that is queued -------------------------------------------------------------------------------------------


def of_queue(trace: Trace, steps: Steps, b: Breakdown) -> Told:
    """Whether most pauses are of one length, as where the driver gives a GPU to several processes in turns."""
    mine = b.gaps.cause == PARTS.index("idle_queue")
    length = (b.gaps.end - b.gaps.start)[mine]
    alone = len(np.unique(alike(trace.device[steps.gpu], trace.stream[steps.gpu]))) == 1
    one = (
        ["All its work is on one stream, so it waits for no other one here. Another process may use the GPU."]
        if alone
        else []
    )
    turn = float(np.median(length[length >= SLICE_NS])) if (length >= SLICE_NS).any() else 0.0
    of_turn = np.abs(length - turn) <= ONE_LENGTH * turn
    several = len(np.unique(trace.name[b.gaps.after[mine][of_turn]])) > 1  # else the same kernel waits each time
    if not turn or of_turn.sum() < TURNS or length[of_turn].sum() < MOST_IN * length.sum() or not several:
        return Told(one, ways=OWN_GPU if alone else ())
    count = plain_number(of_turn.sum() / len(steps))
    said = f"{count} pauses per step are all about {ms(turn)} long, as where another process has its turn on the GPU."
    return Told([said], ways=OWN_GPU)


# --- launches and waits -------------------------------------------------------------------------------------------


def launching(trace: Trace, steps: Steps) -> list[tuple[str, float]]:
    """What launched most, (operator or optimizer, launches a step), the most first."""
    calls = distinct(steps.launch, len(trace))
    around = Ancestry(trace.operator, calls)
    outer = around.outermost(trace.named(LIBRARY_OP, around.ops))
    op = np.append(around.ops, -1)[outer[around.of_call]]
    optimizers = trace.annotations[trace.named(OPTIMIZER, trace.annotations)]
    optimizer = trace.nesting(optimizers).around(calls)
    owner = np.where(optimizer >= 0, optimizer, op)
    return [(plain(name, 80), count / len(steps)) for name, count in trace.commonest(owner[owner >= 0], 3)]


def of_launches(trace: Trace, steps: Steps, m: Metrics, b: Breakdown) -> Told:
    loading = _loading(trace, steps, b)
    if loading:
        return Told([loading], inferred=True, starting=True, ways=RECORD_AGAIN)
    most = [(name, count) for name, count in launching(trace, steps) if m.launches and count >= PART * m.launches]
    said = [f"{', '.join(f'{name} ({plain_number(count)})' for name, count in most)} launch most."] if most else []
    waits = of_waits(trace, steps) if never_ahead(m) else Told([])
    return replace(waits, sentences=said + waits.sentences)


def _loading(trace: Trace, steps: Steps, b: Breakdown) -> str:
    """Of launches that take so long that their kernels are made or loaded meanwhile, if most of the time goes to them."""
    spans = idle_spans(b, "idle_launch")
    calls = trace.calls[(trace.duration[trace.calls] >= LOADING_NS) & (steps.of_event[trace.calls] >= 0)]
    calls = calls[~trace.named(WAITS, calls)]
    spent = intervals.length(intervals.intersection(trace.spans(calls), spans))
    if not spent or spent < MUCH * intervals.length(spans):
        return ""
    longest = calls[np.argmax(trace.duration[calls])]
    name, n = plain(trace.names[trace.name[longest]], 60), len(steps)
    return (
        f"{ms(spent / n)} of it per step lie in calls of more than {ms(LOADING_NS)}, the longest {name} with "
        f"{ms(trace.duration[longest])}, as where a kernel is loaded or compiled at its first use. {WARM_UP}"
    )


def of_waits(trace: Trace, steps: Steps) -> Told:
    """In which operators the host waited, and whether most of it is anomaly detection's."""
    waits = steps.waits[steps.of_event[steps.waits] >= 0]
    op = trace.operator[waits]
    often = trace.commonest(op[op >= 0], 3)
    most = [f"{plain(name, 60)} ({plain_number(count / len(steps))})" for name, count in often]
    said = [f"The host waited in {', '.join(most)}."] if most else []
    # anomaly detection reads whether a gradient has a NaN: torch/csrc/autograd/engine.cpp, isnan(output)._is_any_true().item()
    inside = np.flatnonzero(steps.of_event[: len(trace)] >= 0)
    searches = np.count_nonzero(trace.named("aten::_is_any_true$", inside))
    if not len(waits) or searches < len(waits) / 2:
        return Told(said)
    said.append(f"{plain_number(searches / len(steps))} tensors per step were searched for NaN.")
    return Told(said, ways=SEARCH_NO_MORE)


# --- one operation far below its roof -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Slow:
    """Operations that take many times as long as their bytes or their arithmetic need."""

    first: Operation
    least: float  # ns per step, of the first
    gain: float  # ns per step that better kernels for all of them could win
    cause: str  # "compute" or "memory", by the first


def slow(operations: Sequence[Operation], step: float) -> Slow | None:
    # Without the device's peaks the best rate that an operation of this recording reached stands for them.
    rates = [o.bytes_moved / o.gpu_ns for o in operations if o.bytes_moved and o.gpu_ns]
    rate = max(rates, default=0.0) if len(rates) > 2 else 0.0
    found, gain = [], 0.0
    for o in operations:
        least = o.least_ns or (o.bytes_moved / rate if o.bytes_moved and rate and o.tensor_cores is None else None)
        if least and o.bound != "launch" and o.gpu_ns >= max(PART * step, FAR_BELOW * least):
            found.append((o, least))
            gain += o.gpu_ns - REACHED * least
    if not found:
        return None
    first, least = max(found, key=lambda each: each[0].gpu_ns)
    return Slow(first, least, gain, "memory" if first.tensor_cores is None else "compute")


def of_slow(found: Slow) -> str:
    o = found.first
    where = f" ({o.line})" if o.line else ""
    phase = f", {o.phase}" if o.phase else ""
    return (
        f"One operation stands out: {plain(o.name, 80)}{phase}{where} takes {ms(o.gpu_ns)} per step, {o.gpu_ns / found.least:,.0f} "
        f"times as long as its bytes need."
    )


def for_slow(found: Slow) -> list[str]:
    """What to try with such an operation."""
    name = found.first.name
    if "index_put" in name:
        return [
            "The backward pass of x[index] sorts the indices and adds equal ones one by one. Use index_select, F.embedding or "
            "scatter_add, which add them in parallel.",
        ]
    if "embedding" in name:
        return [
            "Many tokens share a row of the embedding, and their gradients are added one by one. Give padding its padding_idx."
        ]
    if "sort" in name or "topk" in name or "unique" in name:
        return ["Sort less. Sort only the changed part, or fewer columns, or 32-bit keys."]
    return [
        f"Look for a different way to compute the result of {plain(name, 80)}, such as other arguments, layout, type or operator."
    ]


def tiny_operation(operations: Sequence[Operation], m: Metrics) -> Operation | None:
    """One that makes most of the launches, many in each call and each of a tiny kernel: a loop within a library."""
    loops = (o for o in operations if o.bound == "launch" and o.launched >= MANY_LAUNCHES * o.count)
    return next((o for o in loops if m.launches and o.launched >= MUCH * m.launches), None)


def _listed(items: list[tuple[str, float]]) -> str:
    return ", ".join(f"{name} ({ms(ns)})" for name, ns in items)
