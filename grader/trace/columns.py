"""What a trace is once it is read: columns of integers, and the names of what they hold."""

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from grader.errors import UserError
from grader.trace import intervals
from grader.trace.collective_text import Row
from grader.trace.events import ANNOTATION, CPU_OP, DRIVER, KERNEL, LAUNCHES, MEMCPY, MEMSET, RUNTIME, STEP
from grader.trace.loss import Loss
from grader.trace.loss import find as find_loss
from grader.trace.nesting import Nesting
from grader.trace.windows import Windows, find

MOST_ALONE = 0.9  # share of one kind of GPU work without a launch, from where on launches were not recorded
FEW_ALONE = 0.005  # share of all GPU work that is no kind worth a word


class TraceError(UserError):
    """This is not a trace that can be read. The message says why."""


@dataclass(frozen=True)
class Memory:
    """The allocator's reports (`profile_memory=True`), in order of time. Bytes; device -1 is the CPU."""

    time: np.ndarray  # ns, on the clock of Trace
    device: np.ndarray
    allocated: np.ndarray  # in use after this allocation or release
    reserved: np.ndarray


@dataclass(frozen=True)
class Trace:
    """The complete ("X") events of a trace, one array entry an event, in order of start, an outer event before those within it.

    Times are integer nanoseconds after `base_ns`. -1 stands for "not recorded" in every column but the first five."""

    names: list[str]  # what `name` points into
    threads: list[tuple[int | str | float, int | str | float]]  # (pid, tid), what `thread` points into
    category: np.ndarray  # codes, see `grader.trace.events`
    name: np.ndarray
    thread: np.ndarray
    start: np.ndarray  # ns
    duration: np.ndarray  # ns
    correlation: np.ndarray
    device: np.ndarray
    stream: np.ndarray
    bytes: np.ndarray
    types: np.ndarray  # of a cpu_op's inputs, as JSON: what `texts` holds at this index; -1: not recorded
    dims: np.ndarray  # likewise, its inputs' shapes
    sequence: np.ndarray  # of a cpu_op that takes part in autograd: its backward has the same number
    python: np.ndarray  # a python_function's id, and that of the function that called it
    parent: np.ndarray
    called_from: np.ndarray  # the source line of that call, "file.py:12": index into `texts`; torch >= 2.14 or so
    texts: list[str]
    memory: Memory
    base_ns: int = 0  # Unix time; 0 in old files, whose times are Unix times themselves
    begin: int = 0  # ns, of the recording: where Perfetto's time begins
    devices: list[str] = field(default_factory=list)  # names of the GPUs
    world_size: int | None = None  # of a distributed run, as recorded
    rank: int | None = None
    group_sizes: tuple[int, ...] = ()  # of its process groups, where that was recorded
    host: str | None = None  # name of the machine
    collectives: list[Row] = field(default_factory=list)  # what some events say of them
    reasons: list[str] = field(default_factory=list)  # why it should not be judged by; empty when it is complete
    notes: list[str] = field(default_factory=list)  # what else is odd about it; no evidence for a grade has any
    breaks_off: bool = False  # the file ends before the recording does
    by_operator: bool = False  # no correlation ids: `correlation` is that of the operator around the launches

    @property
    def complete(self) -> bool:
        return not self.reasons

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def end(self) -> np.ndarray:
        return self.start + self.duration

    def named(self, pattern: re.Pattern[str] | str, events: np.ndarray) -> np.ndarray:
        """Mask of these events (indices): those whose name begins with a match. Each distinct name is matched once."""
        match = re.compile(pattern).match
        return np.fromiter((match(name) is not None for name in self.names), bool, len(self.names))[self.name[events]]

    def commonest(self, events: np.ndarray, most: int) -> list[tuple[str, int]]:
        """The names that most of these events (indices) have, and how many have each; the most frequent first."""
        codes, counts = np.unique(self.name[events], return_counts=True)
        order = np.argsort(-counts, kind="stable")[:most].tolist()
        return [(self.names[codes[i]], int(counts[i])) for i in order]

    def spans(self, events: np.ndarray) -> intervals.Intervals:
        """When any of these events (indices) ran."""
        return intervals.union(self.start[events], self.end[events])

    @cached_property
    def half(self) -> np.ndarray:
        """A cpu_op has a bfloat16, float16 or 8-bit float input: 1, has none: 0, its types were not recorded: -1."""
        known = [any(name in text for name in ("BFloat16", "c10::Half", "Float8")) for text in self.texts]
        return np.array([*known, -1], np.int8)[self.types]  # -1 is the last

    @cached_property
    def fp16(self) -> np.ndarray:
        """Likewise, of float16 alone."""
        return np.array([*("c10::Half" in text for text in self.texts), -1], np.int8)[self.types]

    @cached_property
    def is_gpu(self) -> np.ndarray:
        """Mask of GPU work: kernels, copies, memsets. Nothing else keeps a GPU busy."""
        return (self.category == KERNEL) | (self.category == MEMCPY) | (self.category == MEMSET)

    @cached_property
    def is_call(self) -> np.ndarray:
        """Mask of the host's calls into CUDA."""
        return (self.category == RUNTIME) | (self.category == DRIVER)

    @cached_property
    def gpu(self) -> np.ndarray:
        """Indices of all GPU work, in order."""
        return np.flatnonzero(self.is_gpu)

    @cached_property
    def calls(self) -> np.ndarray:
        """Indices of the host's calls into CUDA, in order."""
        return np.flatnonzero(self.is_call)

    @cached_property
    def annotations(self) -> np.ndarray:
        """Indices of what `record_function` named on the host, in order."""
        return np.flatnonzero(self.category == ANNOTATION)

    @cached_property
    def marks(self) -> np.ndarray:
        """Indices of the host's `ProfilerStep#N` annotations, in order."""
        return self.annotations[self.named(STEP, self.annotations)]

    @cached_property
    def steps(self) -> np.ndarray:
        """Those of `marks` that are counted: of the thread with most, where others of its process repeat them, and of those within
        each other the outer ones, but for a single one around all."""
        marks = self._one_thread
        start, end = self.start[marks], self.end[marks]
        latest = np.maximum.accumulate(end)[:-1]
        inner = np.append(False, start[1:] < latest)[: len(marks)]
        twice = (start[1:] == start[:-1]) & (self.name[marks][1:] == self.name[marks][:-1])
        if not inner.any() or twice.any() or (end[1:] > latest)[inner[1:]].any():
            return marks
        return marks[~inner] if (~inner).sum() > 1 else marks[inner]

    @cached_property
    def _one_thread(self) -> np.ndarray:
        marks = self.marks
        threads, count = np.unique(self.thread[marks], return_counts=True)
        if len(threads) < 2 or len({self.threads[thread][0] for thread in threads.tolist()}) > 1:
            return marks
        calls = np.bincount(self.thread[self.calls], minlength=len(self.threads))[threads]
        main = marks[self.thread[marks] == threads[np.lexsort((calls, count))[-1]]]
        return main if np.isin(self.name[marks], self.name[main]).all() else marks

    @cached_property
    def windows(self) -> Windows:
        """Where the steps begin and end, found by what repeats where there are no such annotations."""
        return find(self)

    @cached_property
    def loss(self) -> Loss:
        """GPU work that should be there and is not."""
        return find_loss(self)

    @cached_property
    def operator(self) -> np.ndarray:
        """For each call into CUDA and each operator the innermost operator around it on its thread, else -1; one more for no event."""
        operators = self.nesting(np.flatnonzero(self.category == CPU_OP))
        found = np.full(len(self) + 1, -1)
        found[operators.indices] = np.append(operators.indices, -1)[operators.parents]
        found[self.calls] = operators.around(self.calls)
        return found

    def nesting(self, events: np.ndarray) -> Nesting:
        """To look up which of these events (indices, in order) is around others."""
        return Nesting(self.thread, self.start, self.end, events)

    def launch_of(self, events: np.ndarray) -> np.ndarray:
        """For each of these GPU events (indices) the host call of the same correlation id, or -1. Never by time: clocks differ."""
        return self._launch[events]

    @cached_property
    def is_timed(self) -> np.ndarray:
        """Mask of GPU work of a kind of which hardly any has its launch recorded, as MTIA's copies. It counts to the step it ran in."""
        timed = np.zeros(len(self), bool)
        launched = self.gpu[self._launch[self.gpu] >= 0]
        for kind in (KERNEL, MEMCPY, MEMSET):
            mine = np.flatnonzero(self.category == kind)
            alone = mine[self._launch[mine] < 0]
            # What came before the first may have been launched before the recording.
            began = int(launched[0]) if len(launched) else 0
            later, later_alone = ((events >= began).sum() for events in (mine, alone))
            if later_alone > max(MOST_ALONE * later, FEW_ALONE * len(self.gpu)):
                timed[alone] = True
        if self.by_operator:  # what has no id was launched by no call
            timed[self.gpu[self.correlation[self.gpu] < 0]] = True
        return timed

    @cached_property
    def _launch(self) -> np.ndarray:
        found = np.full(len(self), -1)
        calls = self.calls
        if self.by_operator:  # of all calls that an operator makes
            calls = calls[self.named(LAUNCHES, calls)]
        calls, gpu = (events[self.correlation[events] > 0] for events in (calls, self.gpu))
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        if len(calls):
            ids, wanted = self.correlation[calls], self.correlation[gpu]
            at = np.minimum(np.searchsorted(ids, wanted), len(calls) - 1)
            found[gpu] = np.where(ids[at] == wanted, calls[at], -1)
        return found
