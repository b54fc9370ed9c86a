"""When the host launched nothing because it was busy with something else, and what that was.

PyTorch records its operators and the calls into CUDA. Between two launches an ordinary loop needs some microseconds of Python. Much
more than that is work of another kind: a metric, a drawing, a simulation, garbage collection, or the making of the next batch."""

import re
from dataclasses import dataclass

import numpy as np

from grader.trace import intervals
from grader.trace.columns import Trace
from grader.trace.events import ALLOCATION, ANNOTATION, CPU_OP, PYTHON, STEP
from grader.trace.host import DATA_WAIT, copying_op, data_waits
from grader.trace.lines import own_line
from grader.trace.steps import Steps
from grader.trace.words import plain
from grader.trace.work import by_name, copy_kind

# A pause between two operators is no longer the cost of Python when it is so many times the median one, which is 3 to 15 us.
MANY_GAPS, LEAST_NS, MOST_NS = 20, 100_000, 250_000
# Nor is it launching when there is no call into CUDA for so long, whatever operators there are: they work on the CPU's tensors. The
# same loops had none. An operator that launches can take 0.2 ms to choose its kernel (cuBLAS, sizes not seen before).
NO_LAUNCH_NS = 1_000_000

# Where the backward pass begins, an optimizer, a new step, an ordinary loop pauses as well: 23 recorded ones up to 1.6 ms a step in all,
# and up to a seventh of its length.
ORDINARY_NS, ORDINARY = 2_000_000, 0.25
ALLOCATES = 0.05  # share of the time in calls that allocate memory, from where on they are work of another kind

OWN_PYTHON = re.compile(r"Optimizer\.(step|zero_grad)#")  # PyTorch's own work between launches
LONG_OWN_NS = 10_000_000  # a longer pause in it is work on the CPU, as where an optimizer keeps its state there
SEED = re.compile(r"aten::random_$")  # a DataLoader draws it first of all, and then starts its workers
STARTING = re.compile(
    r"aten::(random_|randperm|item|_local_scalar_dense|empty|resize_|to|_to_copy|copy_|empty_strided)$"
)
WORKS = re.compile(r"\w*(Launch|Memcpy|Memset|Synchronize)")  # calls that put work on the GPU or wait for it
FOREIGN = 10  # operators of a sampler's or a wrapper's own
LOADER = re.compile(r"enumerate\(DataLoader\)#")
# Names of functions, files and marks that say that a batch is being made. A noun ends there: get_image_metrics makes none.
THING = r"((mini[-_]?)?batch|data|sample|example|input|record|shard|item)(e?s)?"
PICTURE = r"(image|img|jpe?g|png|audio|video|frame|file)s?"
ENDS = r"(?![a-z]|_(?!from|async))"
READER = r"pyarrow|zarr|h5py|lmdb|rasterio|nibabel|pydicom|soundfile|openslide|cucim|imageio|skimage|av|decord|torchcodec|tifffile|numpy/lib"
MAKES_BATCH = re.compile(
    r"(?i)(^|/)torch/utils/data/|(^|/)(datasets?|data_?load(er|ing)|webdataset|ffcv|nvidia/dali|streaming|litdata|tf_data|squirrel|spdl)[/.(\d]"
    r"|(^|/)(torchvision/transforms|albumentations|librosa|torchaudio/(_?backend|io))/|PIL/Image(File)?\.py\(\d+\): (open|load)"
    rf"|(^|/)({READER})[/.][^:]*\(\d+\): _*(getitem|next|iter|read|load|open|decode|dcmread|imread)|method read of _io\."
    r"|transformers/tokenization_\w+\.py\(\d+\): (?!\w*(decode|convert))|encode_batch|read_(parquet|csv|table|json|feather)\b"
    rf"|(^|[^a-z])(load|decod|read|fetch|collat|augment|tokeni[sz]|preprocess|prepar|next|get|wait)(e|ing|ting)?([_ ]for)?[_ ]?({THING}|{PICTURE}){ENDS}"
    rf"|(^|[^a-z])(make|build|sample)[_ ]?{THING}{ENDS}|(^|[^a-z])(create|generate|iterate|transform|shuffle)[_ ]?((mini[-_]?)?batch(es)?|data){ENDS}"
    r"|(iterator|loader|fetcher|dataset)\w*(\.py\(\d+\))?[.:]\W*_*(next|iter|getitem|get(?![a-z_]))|(^|[^a-z])next\((\w+_)?(loader|iter|data|batch|gen)\w*\)"
    r"|(^|[^a-z])(loader|dl|data|iter)[_/.]next(?![a-z])|(^|[^a-z])(train|val|valid|test|data)_?loader$|(replay|rollout)\w*(\.py\(\d+\))?[.:]\W*(sample|get)"
    r"|(^|[^a-z])(preprocess\w*|collate\w*|tokenize|augment(s|ations?)?|apply_transforms?|imread|input_fn|data[-_ ]?(fetch|time|wait|next)\w*|train_dataloader_next)\b"
    r"|(^|[^a-z])data[-_ ]?load(er|ing)?(?![a-z]|_state)|(^|[^a-z])(batch|data|input)[_ ](generator|iter(ator)?|pipeline|(pre)?fetch(er)?|reader|queue)\b"
    r"|^(data|(pre)?fetch|load|(fetch|load)[_ ]?next)$"
)
MOST_LAUNCHED = 0.5  # of the launches of a step
COLLECTS = re.compile(r"Python GC$|<built-in function collect>$|gc\.collect$|gc_collect$")
# What torch.compile and Triton mark or call while they compile.
COMPILES = re.compile(
    r"_compile\.|entire_frame_compile|compile_fx|.*\(dynamo_timed\)|torch/_(dynamo/(convert_frame|symbolic_convert)|inductor/)|triton/compiler/"
)
# Operators of layers and optimizers, which nobody calls to make a batch.
OF_A_MODEL = re.compile(
    r"aten::(_?embedding(_bag)?|linear|layer_norm|(native|_native)?_?batch_norm|lstm|gru|scaled_dot_product_attention|_fused_(adamw?|sgd)_)$"
)
HALF = 0.5
MOST = 3  # of anything that is listed
EDGE = "the edge of the recording"  # before the first operator, and after the last


@dataclass(frozen=True)
class Away:
    """Stretches in which the host launched nothing because it did something else; disjoint, in order."""

    spans: intervals.Intervals
    starting: intervals.Intervals  # of them, those in which a DataLoader started its workers
    named: intervals.Intervals  # in which a function or mark ran whose name says that it makes a batch
    copied: intervals.Intervals  # at the beginning of a step, until a copy to the GPU: the batch, most likely
    allocating: intervals.Intervals  # in which it asked for the GPU's memory, or gave it back
    brief: intervals.Intervals  # not of them: pauses that an ordinary loop has as well, see ORDINARY_NS


def away(trace: Trace, steps: Steps, mine: np.ndarray, span: tuple[int, int]) -> Away:
    """mine: mask of the events of the threads that launch. span: where to look, ns."""
    active = mine & ((trace.category == CPU_OP) | trace.is_call)
    starts, ends = trace.start[active], trace.end[active]
    outside = intervals.complement(intervals.union(starts, ends), *span)
    typical = float(np.median(outside[1] - outside[0])) if len(outside[0]) else 0.0
    least = int(min(max(MANY_GAPS * typical, LEAST_NS), MOST_NS))
    long = outside[1] - outside[0] >= least
    shorter = long & (outside[1] - outside[0] < NO_LAUNCH_NS)
    if (outside[1] - outside[0])[shorter].sum() > min(ORDINARY_NS * len(steps), ORDINARY * (span[1] - span[0])):
        shorter[:] = False
    long &= ~shorter
    quiet, brief = ((outside[0][some], outside[1][some]) for some in (long, shorter))
    calls = np.flatnonzero(mine & trace.is_call)
    points = np.concatenate((trace.start[calls], trace.end[calls]))
    resting = _between(points, NO_LAUNCH_NS, span) if len(calls) else intervals.EMPTY
    both = intervals.joined(quiet, resting)
    own = trace.annotations[trace.named(OWN_PYTHON, trace.annotations)]
    known = intervals.joined(trace.spans(calls), data_waits(trace, steps.thread))
    spans = intervals.difference(both, known)
    own_time = trace.spans(own)
    begun, ended = intervals.intersection(spans, own_time)
    short = ended - begun < LONG_OWN_NS
    spans = intervals.difference(spans, (begun[short], ended[short]))
    starting = intervals.union(*_loader_starts(trace, steps.thread))
    python = np.flatnonzero(mine & ((trace.category == PYTHON) | (trace.category == ANNOTATION)))
    said = python[trace.named(STEP, python) == 0]
    said = said[by_name(lambda name: bool(MAKES_BATCH.search(name[:300])), trace, said) == 1]
    # What launches most of a step holds more than the making of its batch: "data" may be the name of a disk.
    launched = np.sort(trace.start[steps.launch[steps.launch >= 0]])
    inside = np.searchsorted(launched, trace.end[said]) - np.searchsorted(launched, trace.start[said])
    said = said[inside <= MOST_LAUNCHED * len(launched) / len(steps)]
    named = intervals.intersection(spans, trace.spans(said))
    allocating, copied = _allocating(trace, calls, span), _before_first_copy(trace, steps, spans)
    collected = trace.spans(python[trace.named(COLLECTS, python)])  # no part of a batch, wherever it lies
    layers = np.flatnonzero(mine & (trace.category == CPU_OP))
    layers = layers[trace.named(OF_A_MODEL, layers)]
    named = intervals.difference(named, collected)
    copied = intervals.difference(copied, intervals.joined(collected, trace.spans(layers)))
    spans = intervals.joined(spans, starting, allocating)
    brief = intervals.difference(brief, intervals.joined(known, own_time, spans))
    return Away(spans, starting, named, copied, allocating, brief)


def _allocating(trace: Trace, calls: np.ndarray, span: tuple[int, int]) -> intervals.Intervals:
    calls = calls[trace.named(ALLOCATION, calls)]
    spent = intervals.clip(trace.spans(calls), *span)
    return spent if intervals.length(spent) >= ALLOCATES * (span[1] - span[0]) else intervals.EMPTY


def _between(points: np.ndarray, least: int, span: tuple[int, int]) -> intervals.Intervals:
    """Stretches of at least so many ns without any of these points in time."""
    points = np.sort(np.append(points, span), kind="stable")
    long = np.flatnonzero(np.diff(points) >= least)
    return intervals.clip((points[long], points[long + 1]), *span)


def _loader_starts(trace: Trace, thread: int) -> intervals.Intervals:
    """From where a DataLoader drew its seed to its first `__next__`, with hardly anything else than its own operators between them."""
    own = np.flatnonzero((trace.thread == thread) & ((trace.category == CPU_OP) | trace.is_call))
    waits = trace.annotations[trace.thread[trace.annotations] == thread]
    waits = trace.start[waits[trace.named(LOADER, waits)]]
    seeds = np.flatnonzero((trace.category[own] == CPU_OP) & trace.named(SEED, own))
    if not len(waits) or not len(seeds):
        return intervals.EMPTY
    other = np.where(
        trace.category[own] == CPU_OP, ~trace.named(STARTING, own), (FOREIGN + 1) * trace.named(WORKS, own)
    )
    foreign = np.append(0, np.cumsum(other))
    begin = trace.start[own[seeds]]
    at = np.searchsorted(waits, begin)
    there = at < len(waits)
    until = waits[np.minimum(at, len(waits) - 1)]
    last = np.searchsorted(trace.start[own], until)
    alone = there & (foreign[last] - foreign[seeds] <= FOREIGN)
    return begin[alone], until[alone]


def _before_first_copy(trace: Trace, steps: Steps, spans: intervals.Intervals) -> intervals.Intervals:
    """What of these stretches lies in a step before anything was launched in it, where the first launch is a copy to the GPU."""
    order = np.argsort(trace.start[steps.launch], kind="stable")
    order = order[steps.launch[order] >= 0]
    if not len(order) or trace.windows.undivided:  # else a model may be made there
        return intervals.EMPTY
    step, first = np.unique(steps.step[order], return_index=True)
    gpu = steps.gpu[order[first]]
    copies = by_name(lambda name: copy_kind(name).startswith("HtoD"), trace, gpu) == 1
    begin, call = steps.starts[step[copies]], steps.launch[order[first[copies]]]
    op = copying_op(trace, call)  # what it does on the host belongs to the copy
    until = trace.start[np.where(op >= 0, op, call)]
    return intervals.intersection(spans, intervals.union(begin, until))


# --- what it was ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Doing:
    """What the host did in some stretches of time; times in ns per step."""

    # operator before, operator after, how often, how long; the longest first
    between: list[tuple[str, str, float, float]]
    mark: str  # record_function around most of it, "" without
    function: str  # Python function that most of it was spent in, "dataset.py(12): decode"; "" without stacks
    inner: str  # the function that this one was waiting for
    operators: list[tuple[str, float]]  # on tensors of the CPU
    collecting: float  # garbage
    compiling: float  # by torch.compile
    allocating: float  # memory of the GPU
    allocations: list[tuple[str, float]]  # the calls that do it, and how many per step; the most frequent first
    longest: tuple[str, int]  # of these calls, and how long it took, if most of the time in all of them was in one
    stacks: bool  # were recorded
    after_reading: float  # what begins where the host has just waited for values from the GPU


def doing(trace: Trace, steps: Steps, spans: intervals.Intervals) -> Doing:
    """spans: disjoint, in order."""
    n = len(steps)
    threads = np.zeros(len(trace.threads), bool)
    threads[trace.thread[steps.launch[steps.launch >= 0]]] = threads[steps.thread] = True
    mine = threads[trace.thread] & (trace.end > steps.host[0]) & (trace.start < steps.host[1])
    frames = np.flatnonzero(mine & (trace.category == PYTHON))
    marks = np.flatnonzero(mine & (trace.category == ANNOTATION))
    marks = marks[~trace.named(STEP, marks) & ~trace.named(DATA_WAIT, marks)]
    yours = frames[by_name(lambda name: own_line(name) is not None, trace, frames) == 1]  # of no library
    function, inner = _most(trace, yours, spans), _most(trace, frames, spans)
    gc = np.append(frames, marks)
    gc = gc[trace.named(COLLECTS, gc)]
    makes = np.flatnonzero(mine & np.isin(trace.category, (PYTHON, ANNOTATION, CPU_OP)))
    makes = makes[trace.named(COMPILES, makes)]
    asked = trace.calls[mine[trace.calls]]
    asked = asked[trace.named(ALLOCATION, asked)]
    longest = asked[trace.duration[asked] >= HALF * trace.duration[asked].sum()][:1].tolist()
    return Doing(
        allocating=intervals.covered(*trace.spans(asked), spans).sum() / n,
        allocations=[(plain(name, 40), count / n) for name, count in trace.commonest(asked, MOST)],
        longest=(plain(trace.names[trace.name[longest[0]]], 40), int(trace.duration[longest[0]]))
        if longest
        else ("", 0),
        between=_between_operators(trace, steps, mine, spans),
        mark=_most(trace, marks, spans),
        function=function or inner,
        inner=inner if function and inner != function else "",
        operators=_on_cpu(trace, mine, spans, n),
        compiling=intervals.covered(*trace.spans(makes), spans).sum() / n,
        collecting=intervals.covered(*trace.spans(gc), spans).sum() / n,
        stacks=len(frames) > 0,
        after_reading=_after(np.sort(trace.end[steps.waits]), spans) / n,
    )


def _after(waits: np.ndarray, spans: intervals.Intervals) -> float:
    """The length of those spans, ns, before which one of these ends of waits lies, and nearer than an ordinary pause is long."""
    last = np.searchsorted(waits, spans[0], side="right") - 1
    near = (last >= 0) & (spans[0] - np.append(waits, 0)[last] < MOST_NS)
    return float((spans[1] - spans[0])[near].sum())


def _most(trace: Trace, events: np.ndarray, spans: intervals.Intervals) -> str:
    """The name of the events that were open for most of these spans, and for the least time besides; "" without."""
    total = intervals.length(spans)
    if not len(events) or not total:
        return ""
    inside = np.bincount(trace.name[events], intervals.covered(trace.start[events], trace.end[events], spans))
    whole = np.bincount(trace.name[events], trace.duration[events])
    most = np.flatnonzero(inside >= 0.5 * total)
    if not len(most):
        return ""
    # of a caller and what it calls the inner one, which is shorter; recursion adds up, so the outermost is not always longer
    return plain(trace.names[most[np.argmin(whole[most])]], 100)


def _between_operators(
    trace: Trace, steps: Steps, mine: np.ndarray, spans: intervals.Intervals
) -> list[tuple[str, str, float, float]]:
    n = len(steps)
    ops = np.flatnonzero(mine & (trace.category == CPU_OP))
    ops = ops[trace.operator[ops] < 0]
    if not len(ops) or not len(spans[0]):
        return []
    by_end = ops[np.argsort(trace.end[ops], kind="stable")]
    last = np.searchsorted(trace.end[by_end], spans[0], side="right") - 1
    first = np.searchsorted(trace.start[ops], spans[1], side="left")
    before = np.where(last >= 0, trace.name[by_end[np.maximum(last, 0)]], -1)
    after = np.where(first < len(ops), trace.name[ops[np.minimum(first, len(ops) - 1)]], -1)
    pairs, of_pair = np.unique(np.stack((before, after)), axis=1, return_inverse=True)
    time = np.bincount(of_pair.ravel(), spans[1] - spans[0])
    count = np.bincount(of_pair.ravel())
    names = [*trace.names, EDGE]
    return [
        (plain(names[pairs[0, i]], 80), plain(names[pairs[1, i]], 80), count[i] / n, time[i] / n)
        for i in np.argsort(-time, kind="stable")[:MOST].tolist()
    ]


def _on_cpu(trace: Trace, mine: np.ndarray, spans: intervals.Intervals, n: int) -> list[tuple[str, float]]:
    """Operators that launch nothing in these spans, by the time that they took in it, the longest first."""
    ops = np.flatnonzero(mine & (trace.category == CPU_OP))
    ops = ops[trace.operator[ops] < 0]
    launches = np.unique(trace.launch_of(trace.gpu))
    ops = ops[~np.isin(ops, trace.nesting(ops).around(launches[launches >= 0]))]
    time = np.bincount(trace.name[ops], intervals.covered(trace.start[ops], trace.end[ops], spans), minlength=1)
    return [(plain(trace.names[i], 80), time[i] / n) for i in np.argsort(-time, kind="stable")[:MOST] if time[i]]
