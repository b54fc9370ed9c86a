"""Every metric and every part of the step time, declared once: words, unit and direction, colour and hatch."""
# ruff: noqa: RUF009 (`_count` and its like return dataclass fields)

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

import numpy as np

from grader.trace.words import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, YELLOW

Unit = Literal["count", "share", "time", "bytes"]
COUNT: Unit = "count"  # per counted step, unless its words say "in all"
SHARE: Unit = "share"  # 0 to 1
TIME: Unit = "time"  # ns
BYTES: Unit = "bytes"

Number = float | None  # None: this trace cannot tell


@dataclass(frozen=True)
class Metric:
    unit: Unit
    words: str  # they follow its value: "12  times the CPU waited for the GPU to finish"
    short: str = ""  # its name in a table of two traces; "": it stands in none
    better: Literal["lower", "higher", ""] = "lower"
    needs: Literal["", "gpu", "shapes", "step time", "memory", "workload", "torch.compile"] = "gpu"
    entry: str = ""  # of a metric that is a table: the entry that its words are about


def _metric(*about: Any, **more: Any) -> Any:
    """A dataclass field, None by default, that is a `Metric`."""
    return field(default=None, metadata={"metric": Metric(*about, **more)})


_count, _share, _time, _bytes = (partial(_metric, unit) for unit in (COUNT, SHARE, TIME, BYTES))


@dataclass
class Metrics:
    """What a trace shows, per counted step unless it says share. None: this trace cannot tell, as of GPU fields without GPU events."""

    steps: int = 0  # counted: those after the first `skip_first`
    step_ns: Number = None  # length of a step without the profiler, as it was given
    step_ns_traced: Number = None  # length of a step under the profiler, see `Steps.window`
    # 95th percentile over median, of `SPREAD_OF` steps or more, see `spread`
    spread: Number = _count("times the median step, which 95% of the steps don't exceed", needs="")

    # 1 - busy / step_ns
    gpu_idle_unprofiled: Number = _share(
        "of the step the GPU had nothing to do", "GPU idle, of a step without the profiler", needs="step time"
    )
    gpu_idle: Number = _share("of the recording the GPU had nothing to do", "GPU idle, of the whole recording")
    # union of kernels, copies and memsets launched in the step; mean over devices
    gpu_busy_ns: Number = _time("of each step the GPU worked", "GPU busy")

    # share of host step time that the main thread spent in the DataLoader's __next__, or in a mark "data_wait"
    data_wait: Number = _share(
        "of the profiled step the training process waited for data",
        "host waiting for data, under the profiler",
        needs="",
    )
    # that time over step_ns, at most 1
    data_wait_unprofiled: Number = _share(
        "of the step, without the profiler, went to waiting for data", needs="step time"
    )
    wait_ns: Number = None  # for data, per step without the profiler, as it was given
    ops_outside_waits: Number = None  # operators that the main thread called outside of a wait for data
    unmarked_reads: Number = None  # reads of the main thread outside of a wait for data, which is unknown then
    # marks "load_sample" of the main process, or what the data set counts, see `count`
    loads_in_main: Number = _count(
        "samples that the training process loaded itself", "samples loaded in the training process", needs=""
    )

    # host-blocking calls, see `blocking_calls`
    syncs: Number = _count("times the CPU waited for the GPU to finish", "waits for the GPU")
    sync_ns: Number = _time("of each step the CPU waited in them")
    sync_lines: dict[str, float] | None = None  # source line -> how many of them it made, most first; needs stacks
    # without any GPU, see `would_wait`
    would_wait: Number = _count(
        "times an operator asked for a value or a size that it would wait for on a GPU",
        "operators that would wait for a GPU",
        needs="",
    )

    cpu_ops: Number = _count(
        "operators called by the CPU, those within others included", "operators called on the host", needs=""
    )
    host_ops: dict[str, float] | None = None  # without any GPU: operator -> `own_time`, ns, the most first
    launches: Number = _count("times the CPU launched GPU work (a CUDA graph is one)", "launches")
    # their kernels are in the trace, their operators are not
    graph_launches: Number = _count("CUDA graphs that were launched", better="")
    kernels: Number = _count("kernels on the GPU", "kernels")
    # shorter than `TINY_NS`
    tiny_kernel_share: Number = _share(
        "of the kernels are shorter than 10 us, about what a launch costs", "kernels under 10 µs"
    )
    tiny_kernel_time: Number = _share("of the GPU's busy time such a kernel ran")
    unknown_kernel_share: Number = _share(
        "of the GPU's busy time ran kernels with names that don't tell their work", better=""
    )
    # contiguous, clone, cast
    copy_kernels: Number = _count("kernels that only move values", "kernels that only copy or cast")
    copy_kernel_share: Number = _share("of the GPU's busy time such a kernel ran")
    layout_share: Number = _share(
        "of the GPU's busy time went to copies that only change a layout", "time in copies that only change a layout"
    )

    copies: dict[str, dict[str, float | None]] | None = None  # kind -> {"count", "bytes", "ns"}
    h2d_copies: Number = _count("copies from the CPU's memory to the GPU's")
    h2d_bytes: Number = _bytes("copied from the CPU's memory to the GPU's in each step", better="")
    # copies of `SMALL_COPY` and more
    h2d_pinned: Number = _share(
        "of the bytes copied to the GPU came from pinned memory", "copied from pinned memory", "higher"
    )
    h2d_overlap: Number = _share(
        "of the time of copies to the GPU had a kernel running beside it", "copied beside kernels", "higher"
    )

    # shares of the time of matrix products and convolutions: {"yes", "no", "unknown"}
    tensor_core_share: dict[str, float] | None = _share(
        "of the time in matmuls was spent on tensor cores", "matmul on tensor cores", "higher", entry="yes"
    )
    # bf16, fp16 or 8 bits
    half_share: Number = _share(
        "of the time in matmuls was spent on 16-bit inputs", "matmul with 16-bit inputs", "higher"
    )
    fp16_share: Number = _share("of the time in matmuls was spent on fp16 inputs", better="higher")
    aligned_share: Number = _share(
        "of the arithmetic in matmuls has sizes that are multiples of 16 bytes",
        "matmul with sizes of whole 16 bytes",
        "higher",
        needs="shapes",
    )
    score_matrices: Number = _count(
        "batched matmuls whose result is larger than their inputs, which are attention scores written out",
        needs="shapes",
    )
    flash_share: Number = _share("of the time in fused attention kernels was spent in flash kernels", better="higher")
    compiled_products: Number = _share("of the forward pass's matmuls were called by compiled code", better="")
    product_flops: Number = _count("floating-point operations of a step's matmuls", better="", needs="shapes")
    work: Number = _count("times the arithmetic that the matmuls of a step need", needs="shapes")  # see `against`
    # they tell how many rows went through its matrix
    largest_product: Number = _count("of them are the largest matmul's", better="", needs="shapes")

    # the union of their times; 0 is known
    comm_ns: Number = _time("of each step a communication kernel ran")
    comm_exposed_ns: Number = _time(
        "of each step went to communication with no other kernel beside it", "communication with nothing beside it"
    )
    # of `step_ns`, or of `step_ns_traced`
    comm_exposed: Number = _share("of the step went to communication with no other kernel beside it")
    # calls of torch.distributed's collectives, sends and receives; 0 is known
    collectives: Number = _count("times a rank talked to the others", needs="")
    exchanged: Number = _count("values that a rank gave to the others", needs="shapes")
    smallest_group: int | None = None  # ranks in the smallest process group of a distributed run

    phases: dict[str, dict[str, float]] | None = None  # phase -> {"host_ns", "gpu_ns"}, see `phase_metrics`
    # the allocator's reports, profile_memory=True; worst device
    peak_memory: Number = _bytes("of GPU memory at the peak, in all", "memory at the peak", needs="memory")
    # of the memory in use at the end of a step
    memory_growth: Number = _bytes("more in use after each step", "memory growth per step", needs="memory")
    counted: dict[str, float] | None = None  # what the workload counts itself, in all processes; not from the trace
    compiled: dict[str, int] | None = None  # graphs, graph_breaks, recompiles in all; not from the trace
    complete: bool = False
    reasons: list[str] = field(default_factory=list)  # why it is not
    notes: list[str] = field(default_factory=list)  # what else to know before relying on it
    steps_sure: float = 1.0  # that the counted steps are steps, 0 to 1: without ProfilerStep they are found
    per_step: dict[str, list[float]] = field(default_factory=dict)  # metric -> its value in each counted step
    # metric -> indices of the trace events that prove it, all of the counted steps, in order of time
    events: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def count(self, counted: dict[str, float]) -> None:
        """Take what the workload counted. A data set that counts its loads knows those of all threads, a trace those of one."""
        self.counted = counted
        self.loads_in_main = counted.get("loads_in_main", self.loads_in_main)

    def against(self, flops: float | None) -> None:
        """Compare the matmuls with the arithmetic that a step cannot do without, where that is known."""
        if flops and self.product_flops is not None:
            self.work = self.product_flops / flops

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON; of `events` only how many there are."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "events"}
        return values | {"events": {name: len(events) for name, events in self.events.items()}}


METRICS: dict[str, Metric] = {f.name: f.metadata["metric"] for f in fields(Metrics) if "metric" in f.metadata} | {
    "counted.connections": Metric(
        COUNT, "connections to the database that were opened, by all processes", needs="workload"
    ),
    "counted.drive_reads": Metric(COUNT, "files that were read from the drive, by all processes", needs="workload"),
    "graph_breaks": Metric(
        COUNT, "lines at which torch.compile gave up and began a new graph, in all", needs="torch.compile"
    ),
    "recompiles": Metric(
        COUNT, "times that torch.compile compiled code again for different inputs, in all", needs="torch.compile"
    ),
}

# What the views show, in their order: `lab.peek()` beside the counts of its lab, `lab.profile()`, and a recorded trace.
PEEKED = ("syncs", "launches", "kernels", "graph_breaks", "recompiles", "loads_in_main", "cpu_ops")
RECORDED = (
    *("data_wait", "gpu_busy_ns", "syncs", "h2d_pinned", "h2d_overlap", "launches", "kernels"),
    *("tiny_kernel_share", "tensor_core_share", "half_share"),
)
PROFILED = (
    *("data_wait", "gpu_idle_unprofiled", "gpu_busy_ns", "syncs", "h2d_pinned", "h2d_overlap", "launches"),
    *("tiny_kernel_share", "tensor_core_share", "half_share", "cpu_ops", "loads_in_main", "peak_memory"),
)
# In a table of two traces, by the names that `compare.numbers` gives them.
COMPARED = {f"{name}.{m.entry}" if m.entry else name: m for name, m in METRICS.items() if m.short}


def metric(name: str) -> Metric | None:
    """That of this name, or of an entry of it ("tensor_core_share.yes"); None of what is no metric."""
    return METRICS.get(name) or METRICS.get(name.partition(".")[0])


def unit(name: str) -> Unit | None:
    known = metric(name)
    return known.unit if known else None


def value(metrics: Metrics, name: str) -> float | None:
    """A metric, or an entry of one that is a table ("tensor_core_share.yes", "counted.connections"), by name."""
    table, _, entry = name.partition(".")
    found = getattr(metrics, table)
    return found.get(entry or METRICS[table].entry) if isinstance(found, dict) else found


@dataclass(frozen=True)
class Part:
    """A part of the step time. An idle one has the colour of the lane that shows what the host did meanwhile, and is hatched."""

    short: str
    words: str
    changed: str  # what of it fell or grew from one trace to another
    colour: str
    hatch: str = ""  # matplotlib's; a colour never stands alone


# Kernels first: a copy or a collective that runs beside a kernel costs nothing.
STEP_PARTS = {
    "tensor_core": Part("tensor cores", "matmuls and convolutions on tensor cores", "matmuls on tensor cores", GREEN),
    # or on nobody knows which units
    "matmul": Part(
        "other matmul",
        "matmuls and convolutions on the CUDA cores",
        "matmuls on the CUDA cores",
        "#7FC8B0",
    ),
    # every other kernel: elementwise, normalisation, reduction, layout, optimizer; copies on the device
    "memory": Part("other kernels", "kernels that are bound by memory", "kernels bound by memory", YELLOW),
    "communication": Part(
        "communication", "communication between GPUs with nothing beside it", "communication that nothing hides", PURPLE
    ),
    "copies": Part(
        "copies", "copies between CPU and GPU with nothing beside them", "copies that nothing hides", ORANGE
    ),
    "idle_data": Part(
        "idle: data", "the GPU idle while the host waited for data", "waiting for data", VERMILION, "////"
    ),
    "idle_transfer": Part(
        "idle: copy", "the GPU idle while a blocking copy held the host", "waiting for blocking copies", ORANGE, r"\\\\"
    ),
    "idle_sync": Part(
        "idle: sync", "the GPU idle because the host had waited for it", "idling after synchronisations", INK, "xxxx"
    ),
    "idle_launch": Part(
        "idle: launch", "the GPU idle because the host did not launch fast enough", "waiting for launches", BLUE, "...."
    ),
    "idle_other": Part(
        "idle: host",
        "the GPU idle while the host did something that PyTorch doesn't see",
        "waiting for the host's work outside of PyTorch",
        SKY,
        "----",
    ),
    "idle_between": Part(
        "idle: between",
        "the GPU's own time between two kernels that were both queued",
        "changing over between kernels",
        "#B0B0B0",
        "||||",
    ),
    "idle_queue": Part(
        "idle: queue",
        "the GPU idle with work queued that waited for another stream, another GPU or an event",
        "waiting on the GPU's side",
        FAINT,
        "++++",
    ),
}
PARTS = tuple(STEP_PARTS)
IDLE = tuple(name for name in PARTS if name.startswith("idle"))


def short_name(name: str) -> str:
    """Of a part; any other name is its own."""
    return STEP_PARTS[name].short if name in STEP_PARTS else name
