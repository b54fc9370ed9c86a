"""The steps of a trace that are counted, and the GPU work that belongs to them."""

from functools import cached_property

import numpy as np

from grader.trace import intervals
from grader.trace.catalogue import PARTS
from grader.trace.columns import Trace
from grader.trace.events import MEMCPY
from grader.trace.host import blocking_calls
from grader.trace.nesting import alike
from grader.trace.work import Kernels, between_host_and_device, by_name, kernels_of, union_length

IDLE_STARTS_NS = 100_000
LITTLE = 0.01  # of the work of a stream: so much on other streams is beside it
BESIDE = 0.5  # of a step: so much of the host's own work fits beside the GPU's of the step before


class Steps:
    """The steps after the first `skip_first`, as the profiler can lose events of its first active one; none that was cut off."""

    def __init__(self, trace: Trace, skip_first: int = 1, count: int | None = None):
        windows = trace.windows
        self.trace = trace
        self.starts, self.ends = windows.starts[skip_first:][:count], windows.ends[skip_first:][:count]
        self.left_out = skip_first
        self.thread = windows.thread if len(self.starts) else -1
        self.pid = trace.threads[self.thread][0] if len(self.starts) else None

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def of_event(self) -> np.ndarray:
        """For each event the position of the counted step in which it starts, by time alone, -1 for none; and one -1 for no event."""
        # Not by thread: backward kernels are launched by the autograd thread.
        found = np.full(len(self.trace) + 1, -1)
        first, end = (np.searchsorted(self.trace.start, times) for times in (self.starts, self.ends))
        end = np.minimum(end, np.append(first[1:], len(self.trace)))
        for position, (low, high) in enumerate(zip(first.tolist(), end.tolist(), strict=True)):
            found[low:high] = position
        return found

    @cached_property
    def host(self) -> tuple[int, int]:
        """From the start of the first counted step to the end of the last, ns."""
        return int(self.starts[0]), int(self.ends[-1])

    @cached_property
    def _own(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        launch = self.trace.launch_of(self.trace.gpu)
        step = self.of_event[np.where(self.trace.is_timed[self.trace.gpu], self.trace.gpu, launch)]
        own = step >= 0
        return self.trace.gpu[own], launch[own], step[own]

    @property
    def gpu(self) -> np.ndarray:
        """Indices of the GPU work that was launched in the counted steps."""
        return self._own[0]

    @property
    def launch(self) -> np.ndarray:
        """For each of `gpu` the index of the host call that launched it, -1 where that is not recorded, see `Trace.is_timed`."""
        return self._own[1]

    @property
    def step(self) -> np.ndarray:
        """For each of `gpu` the position of its step."""
        return self._own[2]

    @cached_property
    def foreign(self) -> np.ndarray:
        """Mask of `Trace.gpu`: work of a step before, without a launch and before any of these steps on its stream."""
        trace, gpu = self.trace, self.trace.gpu
        if not len(self.gpu):
            return np.zeros(len(gpu), bool)
        stream, own = alike(trace.device[gpu], trace.stream[gpu]), np.isin(gpu, self.gpu)
        first = np.full(stream.max() + 1, trace.start[self.gpu[0]])
        first[stream[own][::-1]] = trace.start[gpu[own][::-1]]  # in order, so the first one stays
        unknown = (trace.launch_of(gpu) < 0) & ~trace.is_timed[gpu]
        return unknown & (trace.start[gpu] < first[stream])

    @cached_property
    def work(self) -> np.ndarray:
        """All GPU work (indices) that may fill the window: without what is of a step before, unless that stands for as much of the
        counted steps' own work that ran after their window, as where the GPU always lags behind."""
        lags = len(self.gpu) and int(self.trace.end[self.gpu].max()) > self.window[1]
        return self.trace.gpu if lags else self.trace.gpu[~self.foreign]

    @cached_property
    def busy(self) -> int:
        """The time that `gpu` kept each device busy, summed over devices, ns."""
        return union_length(self.trace, self.gpu)

    @cached_property
    def kernels(self) -> Kernels:
        """What the kernels of the trace are, counted or not."""
        return kernels_of(self.trace)

    @cached_property
    def kind(self) -> np.ndarray:
        """For each of `work` the part of the step time to which it belongs (index into PARTS)."""
        trace, gpu, k = self.trace, self.work, self.kernels
        kind = np.full(len(gpu), PARTS.index("memory"))
        matmul = k.matmul[gpu]
        kind[matmul] = np.where(k.core[gpu[matmul]] == 1, PARTS.index("tensor_core"), PARTS.index("matmul"))
        kind[k.communication[gpu]] = PARTS.index("communication")
        copies = np.flatnonzero(trace.category[gpu] == MEMCPY)
        kind[copies[by_name(between_host_and_device, trace, gpu[copies]) == 1]] = PARTS.index("copies")
        return kind

    @cached_property
    def waits(self) -> np.ndarray:
        """Indices of all host calls that made the host wait for the GPU, in counted steps or not."""
        return blocking_calls(self.trace)

    @cached_property
    def window(self) -> tuple[int, int]:
        """The time that belongs to the counted steps, ns: from the end of the last GPU work before theirs to the end of the last
        launched in them; the host's time where that is longer, or there is no such work."""
        # A host that queues work and runs ahead finishes its steps in a fraction of the time that they take.
        low, high = self.host
        own, before = self.trace.end[self.gpu], self.trace.end[self._before]
        if self.begun is not None:
            return self.begun, max(high, int(own.max()))
        if len(own) and not len(before):
            return low, max(high, int(own.max()))
        if len(own):
            begun = max(int(before.max()), low)  # what it idled before that is not of these steps
            if int(own.max()) - begun >= high - low:
                return begun, int(own.max())
        return low, high

    @cached_property
    def _before(self) -> np.ndarray:
        """Indices of the GPU work of steps before these."""
        gpu = self.trace.gpu
        launch = self.trace.launch_of(gpu)
        return gpu[np.where(launch >= 0, self.trace.start[launch] < self.host[0], self.foreign)]

    @cached_property
    def begun(self) -> int | None:
        """When the GPU began with these steps, ns, if it was busy before with work of a step whose launches were not recorded."""
        trace = self.trace
        if not len(self.gpu) or (trace.launch_of(self._before) >= 0).any():
            return None
        low, high = self.host
        stream = alike(trace.device[self.gpu], trace.stream[self.gpu])
        busiest = self.gpu[stream == np.bincount(stream, trace.duration[self.gpu]).argmax()]
        firsts = self.gpu[np.sort(np.unique(stream, return_index=True)[1])]  # of each stream
        first = next(filter(self._late, firsts.tolist()), None)
        if first is None:
            return None
        begun = int(trace.start[first])
        if trace.duration[self.gpu[trace.start[self.gpu] < begun]].sum() > LITTLE * trace.duration[busiest].sum():
            return None
        # The host did little before but wait for that work, else it is the host that takes longer.
        waits = trace.spans(self.waits)
        own = begun - low - intervals.length(intervals.clip(waits, low, max(low, min(begun, high))))
        end = max(high, int(trace.end[self.gpu].max()))
        return begun if own <= max(end - high, BESIDE * (end - begun)) else None

    def _late(self, work: int) -> bool:
        """Whether this was launched long before. An idle GPU starts it within microseconds, and a stream works in order."""
        launch = int(self.trace.launch_of(np.array([work]))[0])
        return launch >= 0 and int(self.trace.start[work]) - int(self.trace.end[launch]) > IDLE_STARTS_NS

    @property
    def length(self) -> float:
        """Mean length of a counted step in the trace, ns."""
        low, high = self.window
        return (high - low) / len(self)
