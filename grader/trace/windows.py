"""Where the steps of a trace begin and end: as `ProfilerStep` says, or else found by the repetition of the work."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from grader.trace import intervals
from grader.trace.events import CAPTURE_BEGIN, COPY_LAUNCH, CPU_OP, GRAPH_LAUNCH, SYNC_CALL
from grader.trace.intervals import TOUCHING_NS
from grader.trace.loss import launches_of
from grader.trace.words import milliseconds, plain

if TYPE_CHECKING:
    from grader.trace.columns import Trace

OPTIMIZER = re.compile(r"Optimizer\.step#")
# What PyTorch itself marks, many times a step or not at all.
NO_STEP = re.compile(
    r"(nccl|gloo|hccl|xccl|mpi|ucc):|record_param_comms|## Call CompiledFxGraph|Torch-Compiled|TorchDynamo|Pregraph|CompiledFunction"
    r"|Optimizer\.|DistributedDataParallel|FullyShardedDataParallel|FSDP|enumerate\(|PyTorch Profiler|ProfilerStep|load_sample|AOTDispatcher"
    r"|(\S*[\W_])?(?i:epochs?|training|train(ing)?[_ ]loop)[\W\d_]*$"  # and what others write around many steps
)
LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__|data_wait$")
WAITS = re.compile(f"{SYNC_CALL.pattern}|{COPY_LAUNCH.pattern}")
DIGITS = re.compile(r"\d+")
# What serving engines, and some users, write around one.
ONE_STEP = re.compile(r".*(execute|step|iteration|batch|forward|decode|prefill|generat)", re.IGNORECASE)
# What is within one of these belongs to one step; and parts of a step, which are numbered as steps may be.
WHOLE = re.compile(r".*(forward|step|iteration)(?!s)", re.IGNORECASE)
PART = re.compile(r"(layer|block|stage|module|expert|bucket|encoder|decoder)s?[\W_]*\d", re.IGNORECASE)
MOST_TRIED = 40  # lengths of a repetition
MOST_OPERATORS = 500_000
TOO_LONG = 1.5  # times the usual length: then the last one is not all of a repetition
SAME = 0.004  # sequences that are alike but for so much are equally alike
PAUSE = 0.2  # of a usual step: after so long without a mark another row of steps may begin
FAR_LONGER = 5  # times the usual length: a step that warms up, or one in which something else is done
LOADING_NS = 5_000_000  # no call but a wait takes so long once a GPU was started
LARGE = 0.25  # of a recording: a call of that length is what it shows
FEW, SOME = 10, 0.1  # pieces of work, and share of them, that are enough to judge by
UNDIVIDED = 0.6  # how sure it is that all of a recording is one step
SURELY = 0.95  # as much of steps is the same, less of some layers
TWICE = 2  # longer than so many repetitions is what is done before steps
READS = re.compile(r"aten::(item|to|cpu|_local_scalar_dense|copy_|_to_copy|is_nonzero|equal)$")
COMPUTES = re.compile(
    r"aten::\w*(conv\d|_norm|embedding|linear|addmm|attention|_pool)"
)  # as models do, and no preparation
MATCH = 0.8  # share of operators that come again one repetition later
MOST = 0.5  # share of the GPU's work that found steps must hold
SHORT = 0.8  # of the usual length; a step that was cut off is shorter
STEADY = 0.2  # steps whose work differs by less are alike
NEARLY = 0.1  # of a step's work: one launch more or less makes no other step
LEAST_WHOLE = 2  # steps, as the first one is not counted
LOST = 0.005  # share of the launches that may lack their work at any recording's end


@dataclass(frozen=True)
class Windows:
    """The steps, those left out as cut off not among them. Times in ns."""

    starts: np.ndarray
    ends: np.ndarray
    thread: int
    how: str = ""  # they were found, in words; "" by ProfilerStep
    sure: float = 1.0  # that these are the steps, 0 to 1
    cut: int = 0  # steps at the end of the recording that are not whole
    first: int = 0  # position of the first one among the ProfilerStep annotations, where the profiler rested before it
    warm: int = 0  # steps at its beginning that took many times as long as the others
    whole: bool = True  # all that belongs to them was written
    turn: int = 1  # after so many of them the same amounts of work come again, as in a GAN or with no_sync()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def undivided(self) -> bool:
        """Nothing marks or repeats: the step is all that was recorded."""
        return len(self) == 1 and self.sure == UNDIVIDED


def find(trace: Trace) -> Windows:
    """Never raises; without any event there are none."""
    found = _marked(trace) if len(trace.steps) else _found(trace)
    cut = _without_work(trace, found)
    n = len(found) - cut
    found = replace(found, starts=found.starts[:n], ends=found.ends[:n], cut=found.cut + cut)
    if trace.breaks_off:
        found = _written_whole(trace, found)
    return replace(found, warm=_warming_up(found), turn=_turn(_work(_moments(trace), found.starts, found.ends)))


def _turn(work: np.ndarray) -> int:
    """work: of each step. Seen twice at least; the first step may lack some."""
    for seen in (work, work[1:]):
        for every in range(1, min(len(seen) // 2, MOST_TRIED) + 1):
            if (seen[every:] == seen[:-every]).all():
                return every
    return 1


def _written_whole(trace: Trace, found: Windows) -> Windows:
    """The steps that were whole when work of a later one was written, in a file that breaks off."""
    launch = trace.launch_of(trace.gpu)
    n = int((found.ends <= trace.start[launch[launch >= 0]].max(initial=np.iinfo(np.int64).min)).sum())
    if n < LEAST_WHOLE:
        return replace(found, whole=False)
    return replace(found, starts=found.starts[:n], ends=found.ends[:n], cut=found.cut + len(found) - n)


def _warming_up(found: Windows) -> int:
    """How many steps from the first on are far longer than most, up to half of all."""
    long = found.ends - found.starts > FAR_LONGER * np.median(found.ends - found.starts) if len(found) else np.ones(0)
    lead = int(np.append(long, False).argmin())
    return lead if 2 * lead <= len(found) else 0


def _marked(trace: Trace) -> Windows:
    first, n = _longest_row(trace)
    steps = trace.steps[first : first + n]
    starts, ends = trace.start[steps], trace.end[steps]
    cut = _cut_off(trace, starts, ends)
    n -= cut
    return Windows(starts[:n], ends[:n], int(trace.thread[steps[0]]), cut=cut, first=first)


def _longest_row(trace: Trace) -> tuple[int, int]:
    """Of the steps that follow each other: the first one's position, and how many they are. Between two rows the profiler rested, as in
    a file that holds two recordings: then a number does not follow on the one before."""
    steps = trace.steps
    starts, ends = trace.start[steps], trace.end[steps]
    apart = (np.diff(_written(trace, steps)) != 1) & (starts[1:] - ends[:-1] > PAUSE * np.median(ends - starts))
    edges = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(steps)]))
    longest = int(np.argmax(np.diff(edges)))
    return int(edges[longest]), int(edges[longest + 1] - edges[longest])


def step_numbers(trace: Trace) -> np.ndarray:
    """Of a trace's steps: those of `ProfilerStep#7`, or 0, 1, ... where the steps were found."""
    n = len(trace.windows)
    return _written(trace, trace.steps[trace.windows.first :][:n]) if len(trace.steps) else np.arange(n)


def _written(trace: Trace, steps: np.ndarray) -> np.ndarray:
    """The 7 of `ProfilerStep#7` for each of these events, whatever follows it."""
    names = (trace.names[code].partition("#")[2] for code in trace.name[steps].tolist())
    return np.array([int(DIGITS.findall(name)[0][:18]) for name in names], np.int64)


def _found(trace: Trace) -> Windows:
    if not len(trace):
        return Windows(trace.start, trace.end, -1)
    moments = _moments(trace)
    for way in (_by_optimizer, _by_annotation, _by_loader, _one_annotated, _by_graph, _by_operators):
        found = way(trace, moments)
        if found is not None and (len(found) > 1 or way is _one_annotated) and _holds_most(found, moments):
            return found
    low, high = int(trace.start.min()), int(trace.end.max())
    begun = _started(trace, moments, low, high)
    how = "nothing in it repeats, so the whole recording is counted as one step"
    if begun > low:
        how = f"nothing in it repeats, so all but its first {milliseconds(begun - low)}, which started the GPU, is counted as one step"
    return Windows(np.array([begun]), np.array([high]), main_thread(trace), how, UNDIVIDED)


def _started(trace: Trace, moments: np.ndarray, low: int, high: int) -> int:
    """When the GPU had been started, ns: after the last call that took a good part of what follows while the GPU was idle."""
    calls = trace.calls[trace.duration[trace.calls] >= LOADING_NS]
    calls = calls[~trace.named(WAITS, calls)]
    busy = trace.spans(trace.gpu)
    for call in calls[np.argsort(-trace.duration[calls], kind="stable")].tolist():
        start, end = int(trace.start[call]), int(trace.end[call])
        if start < low or end - start < LARGE * (high - low):
            continue
        idle = end - start - intervals.length(intervals.clip(busy, start, end))
        left = len(moments) - np.searchsorted(moments, end)
        if idle >= MATCH * (end - start) and left >= max(FEW, SOME * len(moments)):
            low = end
    return low


def main_thread(trace: Trace) -> int:
    """That launched most, or did most where nothing was launched."""
    launch = trace.launch_of(trace.gpu)
    threads = trace.thread[launch[launch >= 0]]
    if not len(threads):
        threads = trace.thread[trace.category == CPU_OP]
    return int(np.bincount(threads if len(threads) else trace.thread).argmax())


def _moments(trace: Trace) -> np.ndarray:
    """When work was handed out, sorted: GPU work by its launch, without a GPU the operators."""
    launch = trace.launch_of(trace.gpu)
    launch = launch[launch >= 0]
    return np.sort(trace.start[launch]) if len(launch) else trace.start[trace.category == CPU_OP]


def _work(moments: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return np.searchsorted(moments, ends) - np.searchsorted(moments, starts)


def _cut_off(trace: Trace, starts: np.ndarray, ends: np.ndarray) -> int:
    """1 where the last step has far less work than any other, as where a recording ends within it."""
    if len(starts) < 2 or (starts[1:] < ends[:-1] - TOUCHING_NS).any():
        return 0
    moments, length = _moments(trace), ends - starts
    work = _work(moments, starts, ends)
    least = int(work[:-1].min())
    calls = _work(trace.start[trace.calls], starts, ends)
    short = length[-1] < SHORT * np.median(length[:-1])
    # its kernels came too late
    late = least > 0 and 2 * work[-1] < calls[-1] and calls[-1] >= SHORT * np.median(calls[:-1])
    # as where the loop had ended
    nothing = not work[-1] and not calls[-1] and length[-1] > FAR_LONGER * np.median(length[:-1])
    return int(work[-1] < 0.5 * least and bool(short or late or nothing))


def _without_work(trace: Trace, found: Windows) -> int:
    """How many steps at the end launched work of which nothing more was recorded."""
    if len(found) < 2 or trace.by_operator or trace.named(CAPTURE_BEGIN, trace.calls).any():
        return 0
    launches = launches_of(trace)
    worked = np.isin(trace.correlation[launches], trace.correlation[trace.gpu])
    last = np.flatnonzero(worked)
    late = launches[last[-1] + 1 :] if len(last) else launches[:0]
    late = late[trace.start[late] < found.ends[-1]]
    if len(late) <= LOST * len(launches):
        return 0
    cut = int((found.ends > trace.start[late[0]]).sum())
    return cut if cut < len(found) else 0


def _holds_most(found: Windows, moments: np.ndarray) -> bool:
    return bool(_work(moments, found.starts[:1], found.ends[-1:])[0] >= MOST * len(moments))


def _by_optimizer(trace: Trace, moments: np.ndarray) -> Windows | None:
    """From the end of one optimizer step to that of the next."""
    steps = trace.annotations[trace.named(OPTIMIZER, trace.annotations)]
    if len(steps) < 2:
        return None
    names, count = np.unique(trace.name[steps], return_counts=True)
    steps = steps[trace.name[steps] == names[count.argmax()]]
    ends = trace.end[steps]
    work = _work(moments, np.append(trace.start[0], ends[:-1]), ends)
    tried = range(1, max(2, min(len(work) // 2, MOST_TRIED) + 1))  # several optimizers of one kind
    match = [(np.abs(work[n:] - work[:-n]) <= NEARLY * work[n:]).mean() for n in tried]
    every = tried[next(i for i, share in enumerate(match) if share >= max(match) - 0.02)]
    ends = np.sort(ends[every - 1 :: every])
    if len(ends) < 2:
        return None
    thread = int(trace.thread[steps[0]])
    low = int(trace.start[trace.thread == thread][0])
    how = f"its steps were found by {_quoted(trace, steps[0])}, which ends {len(ends)} of them"
    return Windows(np.append(low, ends[:-1]), ends, thread, how, 0.95)


def _by_annotation(trace: Trace, moments: np.ndarray) -> Windows | None:
    """From the start of what someone annotated to where it starts again."""
    own = trace.annotations[~trace.named(NO_STEP, trace.annotations)]
    if len(own) < 2:
        return None
    plain_names: dict[str, int] = {}  # "decode 17" and "decode 18" are one
    like = (name if PART.search(name) else DIGITS.sub("#", name) for name in trace.names)
    kinds = np.array([plain_names.setdefault(name, len(plain_names)) for name in like])
    once = own[np.bincount(kinds[trace.name[own]])[kinds[trace.name[own]]] == 1]
    held = _work(moments, trace.start[once], trace.end[once])
    part = np.array([PART.search(trace.names[code]) is not None for code in trace.name[once].tolist()], bool)
    whole = once[part | (trace.named(WHOLE, once) & (held >= MATCH * len(moments)))]
    spans = trace.spans(whole)
    last = np.maximum(trace.end[own] - 1, trace.start[own])
    own = own[~(intervals.contains(spans, trace.start[own]) & intervals.contains(spans, last))]
    if len(own) < 2:
        return None
    group = kinds[trace.name[own]] * len(trace.threads) + trace.thread[own]
    best: tuple[float, int, np.ndarray] | None = None
    _, of, count = np.unique(group, return_inverse=True, return_counts=True)
    time = np.where(count > 1, np.bincount(of, trace.duration[own]), -1)
    for one in np.argsort(-time, kind="stable")[:MOST_TRIED].tolist():
        mine = own[of == one]
        end = np.maximum.accumulate(trace.end[mine])
        mine = mine[np.append(True, trace.start[mine[1:]] >= end[:-1] - TOUCHING_NS)]  # the outermost
        work = _work(moments, trace.start[mine], trace.end[mine])
        # one or a few of them are the step, and the others next to empty
        few = work.max() >= MATCH * work.sum() or np.median(work) * len(work) < (1 - MATCH) * work.sum()
        if len(mine) < 2 or few:
            continue
        inside = work.sum() / max(len(moments), 1)
        rank = (round(float(inside), 1), int(trace.duration[mine].sum()))
        if best is None or rank > best[:2]:
            best = (*rank, mine)
    if best is None:
        return None
    mine = best[2]
    starts, ends = trace.start[mine], trace.end[mine]
    between = int((starts[1:] - ends[:-1]).sum())
    known = between < 0.05 * int(ends[-1] - starts[0]) or len(mine) == 2  # else nobody knows where its step ends
    starts, ends = _from_start_to_start(starts, int(ends[-1]) if known else None)
    work = _work(moments, starts, ends)
    alike = float((np.abs(work - np.median(work)) <= STEADY * np.median(work)).mean())
    if best[0] < 0.1:
        return None
    how = f"its steps were found by {_quoted(trace, mine[0])}, which was recorded {len(mine)} times"
    return Windows(starts, ends, int(trace.thread[mine[0]]), how, round(0.5 + 0.2 * best[0] + 0.2 * alike, 2))


def _by_loader(trace: Trace, moments: np.ndarray) -> Windows | None:
    """From where the loop asks its DataLoader for a batch to where it asks again."""
    asked = trace.annotations[trace.named(LOADER, trace.annotations)]
    if len(asked) < 2:
        return None
    kind = trace.name[asked].astype(np.int64) * len(trace.threads) + trace.thread[asked]
    names, count = np.unique(kind, return_counts=True)
    asked = asked[kind == names[count.argmax()]]
    if len(asked) < 2:
        return None
    starts, ends = _from_start_to_start(trace.start[asked], None)
    how = f"its steps were found by the DataLoader, which was asked for {len(asked)} batches"
    return Windows(starts, ends, int(trace.thread[asked[0]]), how, 0.85)


def _one_annotated(trace: Trace, moments: np.ndarray) -> Windows | None:
    """A step that was annotated, if it was recorded once."""
    own = trace.annotations[~trace.named(NO_STEP, trace.annotations)]
    own = own[trace.named(ONE_STEP, own)]
    held = _work(moments, trace.start[own], trace.end[own])
    if not len(own) or held.max() < MATCH * len(moments):
        return None
    one = own[held.argmax()]  # of those alike the outermost
    low, high = int(trace.start[one]), int(trace.end[one])
    how = f"it has one {_quoted(trace, one)}, which is counted as one step"
    return Windows(np.array([low]), np.array([high]), int(trace.thread[one]), how, 0.7)


def _by_graph(trace: Trace, moments: np.ndarray) -> Windows | None:
    """From the launch of a CUDA graph to where the same one is launched again."""
    calls = trace.calls[trace.named(GRAPH_LAUNCH, trace.calls)]
    if len(calls) < 3:
        return None
    calls = calls[trace.thread[calls] == np.bincount(trace.thread[calls]).argmax()]
    ids, count = np.unique(trace.correlation[trace.gpu], return_counts=True)
    at = np.minimum(np.searchsorted(ids, trace.correlation[calls]), max(len(ids) - 1, 0))
    kernels = np.where(ids[at] == trace.correlation[calls], count[at], 0) if len(ids) else np.zeros(len(calls), int)
    every, match = _period(kernels)
    if match < MATCH:
        return None
    starts, ends = _from_start_to_start(trace.start[calls[::every]], None)
    how = f"its steps were found by the replays of CUDA graphs, {every} in each"
    return Windows(starts, ends, int(trace.thread[calls[0]]), how, round(0.7 * match, 2))


def _by_operators(trace: Trace, moments: np.ndarray) -> Windows | None:
    """From one to the next of the operator, or wait, with the longest pause before it, of the longest repetition."""
    thread = main_thread(trace)
    mine = trace.thread == thread
    ops = np.flatnonzero(mine & (trace.category == CPU_OP))
    waits = trace.calls[mine[trace.calls]]
    waits = waits[trace.named(SYNC_CALL, waits)]
    ops = np.sort(np.append(ops[trace.operator[ops] < 0], waits[trace.operator[waits] < 0]))
    if len(ops) < 4 or len(ops) > MOST_OPERATORS:
        return None
    words = np.unique(trace.name[ops], return_inverse=True)[1]
    pause = np.append(0, trace.start[ops[1:]] - np.maximum.accumulate(trace.end[ops])[:-1]).clip(0)
    handed = np.searchsorted(moments, np.append(trace.start[ops], np.iinfo(np.int64).max))
    found = _repeated(words, pause, handed)
    if found is None:
        return None
    first, alike = found
    length = int(np.median(np.diff(first)))
    if _are_layers(trace, ops, first, alike, handed):
        return None
    left = len(words) - first[-1]
    last = ops[-1] if left < TOO_LONG * length else ops[first[-1] + length - 1]  # or something else comes after it
    starts, ends = _from_start_to_start(trace.start[ops[first]], int(trace.end[last]) if left >= length - 1 else None)
    how = f"its steps were found by a sequence of about {length} operators that comes {len(starts)} times"
    return Windows(starts, ends, thread, how, round(0.7 * alike, 2))


def _are_layers(trace: Trace, ops: np.ndarray, first: np.ndarray, alike: float, handed: np.ndarray) -> bool:
    """Whether what repeats are the layers of one pass, which something else begins or ends. ops: operators and waits, of which `first`
    begin a repetition; handed: how much work was handed out before each, and in all."""
    begins, name = [0, first[0], first[-1], len(ops)], trace.name[ops]
    odd = np.diff(handed) > 0
    odd &= ~trace.named(READS, ops)  # as where the host waits for the last of all steps
    odd &= ~np.isin(name, name[first[0] : first[-1]])
    ends = [bool(odd[low:high].any()) for low, high in ((begins[0], begins[1]), (begins[2], begins[3]))]
    if all(ends):
        return True
    if not any(ends):
        return False
    launches = trace.launch_of(trace.gpu)
    launches = launches[(launches >= ops[first[0]]) & (launches < ops[first[-1]])]
    # no layer is forward and backward
    elsewhere = (trace.thread[launches] != trace.thread[ops[0]]).sum() > SOME * len(launches)
    length = np.median(np.diff(first))
    short = (begins[1] if ends[0] else begins[3] - begins[2]) <= TWICE * length
    stem = (odd & trace.named(COMPUTES, ops))[: begins[1]].any()  # no preparation, however long
    return alike < SURELY or bool((short or stem) and not elsewhere)


def _repeated(words: np.ndarray, pause: np.ndarray, done: np.ndarray) -> tuple[np.ndarray, float] | None:
    """Where a sequence of words begins that comes again and again: the positions of a word that comes once in each, and how much of
    it is the same each time. Of several such words the one with the longest pause before it. done: how much work was handed out
    before each word, and in all; the sequences hold most of it."""
    order = np.argsort(words, kind="stable")
    apart = np.diff(order)
    tried: list[tuple[int, float, np.ndarray]] = []  # length, likeness, positions
    bounds = np.searchsorted(words[order], np.arange(words.max(initial=0) + 2))
    count = np.diff(bounds)
    # Rare words first, as they come once in the longest sequence.
    for word in np.lexsort((bounds[:-1], count))[np.sort(count).searchsorted(3) :][:MOST_TRIED].tolist():
        at, distance = order[bounds[word] : bounds[word + 1]], apart[bounds[word] : bounds[word + 1] - 1]
        length = int(np.median(distance))
        steady = np.append(np.abs(distance - length) <= STEADY * length, True)
        until = np.append(at[1:], min(int(at[-1]) + length, len(words)))
        held = (done[until] - done[at])[steady].sum()
        if length > 1 and steady[:-1].mean() >= MATCH and held >= MOST * done[-1]:
            tried.append((length, _likeness(words, at), at))
    if not tried or (best := max(likeness for _, likeness, _ in tried)) < MATCH:
        return None
    # Layers repeat within a step, and something every few steps; but no layer is like the first and the last.
    shortest = min(length for length, likeness, _ in tried if likeness >= best - SAME)
    fitting = [
        (likeness, at) for length, likeness, at in tried if length <= 1.05 * shortest and likeness >= best - SAME
    ]
    likeness, at = max(fitting, key=lambda one: float(pause[one[1]].mean()))
    return at, likeness


def _likeness(words: np.ndarray, at: np.ndarray) -> float:
    """How much the words from each of these positions to the next have in common, 0 to 1."""
    window = np.searchsorted(at, np.arange(at[0], at[-1]), side="right") - 1
    within, kinds = words[at[0] : at[-1]], int(words.max()) + 1
    pairs, count = np.unique(window.astype(np.int64) * kinds + within, return_counts=True)
    usual = np.rint(np.bincount(within, minlength=kinds) / (len(at) - 1))
    common = np.bincount(pairs // kinds, np.minimum(count, usual[pairs % kinds]))
    return float((common / np.maximum(np.bincount(window), usual.sum())).mean())


def _from_start_to_start(starts: np.ndarray, end: int | None) -> tuple[np.ndarray, np.ndarray]:
    return (starts[:-1], starts[1:]) if end is None else (starts, np.append(starts[1:], end))


def _period(words: np.ndarray) -> tuple[int, float]:
    """After how many numbers they come again, and the share that does. (1, share) where nothing longer fits better."""
    if len(words) < 2:
        return 1, 0.0
    order = np.argsort(words, kind="stable")
    apart = np.diff(order)[words[order[1:]] == words[order[:-1]]]
    lengths, votes = np.unique(apart, return_counts=True)
    fits = 2 * lengths <= len(words)
    lengths, votes = lengths[fits], votes[fits]
    rare = lengths[-MOST_TRIED // 2 :]  # a step has many layers, which are alike
    tried = np.unique(np.concatenate((lengths[np.argsort(-votes, kind="stable")[:MOST_TRIED]], rare, [1])))
    match = np.array([(words[length:] == words[:-length]).mean() for length in tried.tolist()])
    best = np.flatnonzero(match >= match.max() - 0.02)[0]
    return int(tried[best]), float(match[best])


def _quoted(trace: Trace, event: int) -> str:
    return f'"{plain(trace.names[trace.name[event]], 60)}"'
