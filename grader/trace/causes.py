"""What can hold a training step back: each cause once, with what it costs, how it shows, and what helps."""

from collections.abc import Callable
from dataclasses import dataclass

from grader.trace.catalogue import Metrics
from grader.trace.words import plain_number


@dataclass(frozen=True)
class Cause:
    parts: tuple[str, ...]  # of the step
    reason: str  # follows "launch-bound: "
    meaning: str  # in plain words, for who has never seen it: a line of a table
    lesson: str  # that explains it, below notebooks/
    lab: str  # that teaches it
    advice: tuple[str, ...]
    # the metrics that speak for it, and how; "" where a value says nothing
    metrics: dict[str, Callable[[float, Metrics], str]]
    fix: str = "Without that"  # would take how long
    offered: bool = True  # on pages that ask for a cause


ALL_RANKS = "Diagnose the traces of all ranks together. What looks like communication here may be a wait for a rank that comes late."

# Their parts vanish with them.
STALLS = {
    "input": Cause(
        ("idle_data",),
        "the GPU waits for data",
        "waiting for the next batch to be read, decoded and collated",
        "2_data/2_dataloader",
        "2a_workers",
        (
            "Load in worker processes: num_workers, persistent_workers=True, prefetch_factor.",
            "If workers don't keep up, decode less (smaller files, uint8), cache, or augment on the GPU.",
        ),
        {
            "data_wait": lambda v, m: f"In the recording the host spent {v:.0%} of its time in the DataLoader.",
            "loads_in_main": lambda v, m: (
                f"The training process loaded {plain_number(v)} samples per step itself." if v else ""
            ),
        },
    ),
    "transfer": Cause(
        ("copies", "idle_transfer"),
        "the GPU waits for copies between CPU and GPU",
        "copying batches from the CPU's memory to the GPU's",
        "2_data/3_overlap",
        "2b_transfers",
        (
            "Pin the memory (pin_memory=True) and copy with non_blocking=True.",
            "Copy the next batch on a second stream while this one computes.",
            "Move fewer bytes. Send uint8 instead of float32, and convert on the GPU.",
        ),
        {
            "h2d_pinned": lambda v, m: f"{v:.0%} of the bytes copied to the GPU came from pinned memory.",
            "h2d_overlap": lambda v, m: f"{v:.0%} of the time of these copies had a kernel running beside it.",
        },
    ),
    "sync": Cause(
        ("idle_sync",),
        "the host waits for the GPU again and again, and then the GPU for the host",
        "the CPU stops again and again until the GPU has a result",
        "2_data/6_syncs",
        "2e_syncs",
        (
            "Remove the host's waits: .item(), .cpu(), print(loss), `if tensor`, torch.cuda.synchronize().",
            "Keep sums and checks on the GPU, and read them every hundred steps.",
        ),
        {"syncs": lambda v, m: f"The host waited for the GPU {plain_number(v)} times per step."},
    ),
    "launch": Cause(
        ("idle_launch",),
        "the host does not launch work as fast as the GPU does it",
        "many tiny kernels, each of them done before the CPU has launched the next",
        "3_step/4_launches",
        "3d_tiny_ops",
        (
            "Launch less: fused or foreach optimizer, torch.compile, fewer small operators.",
            "Launch everything at once with a CUDA graph (torch.compile mode='reduce-overhead').",
            "Give each kernel more to do with a larger batch.",
        ),
        {
            "launches": lambda v, m: (
                f"The host launched {plain_number(v)} times per step, for {plain_number(m.kernels or 0)} kernels."
            ),
            "tiny_kernel_share": lambda v, m: f"{v:.0%} of the kernels are shorter than 10 us.",
        },
    ),
    "host": Cause(
        ("idle_other",),
        "the GPU waits while the host does something that PyTorch does not see",
        "the CPU runs other code between the operators, such as metrics, drawing, simulation or garbage collection",
        "1_instrumentation/3_profilers",
        "1b_annotate",
        (
            "Find this code with `py-spy record -- python train.py`. Or record again with with_stack=True, or put record_function around suspects.",
            "Often it is gc.collect(), a metric in numpy, drawing, writing a file, or an environment in Python. Do that less often, "
            "on the GPU's tensors, or in a separate process.",
            "If it prepares the next batch, put it into a Dataset, so that a DataLoader's workers do it meanwhile.",
        ),
        {},
    ),
    "queue": Cause(
        ("idle_queue",),
        "work is queued on the GPU, but it waits for another stream, another GPU or an event",
        "the CPU has launched enough, but queued work waits for another stream, another GPU or an event",
        "2_data/3_overlap",
        "3j_communication",
        (
            "Look for the event that ends just before the work begins, such as a copy or kernel of another stream, or a collective that another GPU joins late.",
            "Wait for less. Call wait_stream and wait_event only where the result is used, and put independent work on a stream that waits for nothing.",
            "With several GPUs, record all ranks and look for the one that comes late.",
        ),
        {},
        offered=False,
    ),
    "communication": Cause(
        ("communication",),
        "the GPU waits for other GPUs with nothing to do beside it",
        "several GPUs exchange gradients, and wait for each other",
        "3_step/10_communication",
        "3j_communication",
        (
            "Overlap it with the backward pass, as DistributedDataParallel does with its buckets.",
            "Communicate less, with bf16 gradients, and no_sync() while gradients accumulate.",
            ALL_RANKS,
        ),
        {"comm_exposed_ns": lambda v, m: f"{ms(v)} of {ms(m.comm_ns or 0)} of communication had no kernel beside it."},
    ),
}
# What is left when the GPU has enough to do: work does not vanish, it gets cheaper (see `diagnosis.what_ifs`).
WORK = {
    "memory": Cause(
        ("memory",),
        "most of the time goes to kernels that move data and compute little",
        "the GPU is busy, mostly moving bytes to and from its own memory",
        "3_step/5_compile",
        "3e_compile",
        (
            "Fuse kernels with torch.compile, scaled_dot_product_attention and fused optimizers.",
            "Move fewer bytes, with bf16, channels_last for convolutions, and no needless .contiguous() and casts.",
        ),
        {
            "copy_kernels": lambda v, m: (
                f"{plain_number(v)} kernels per step only copy, cast or change the layout." if v else ""
            )
        },
        "With these kernels fused",
    ),
    "compute": Cause(
        ("tensor_core", "matmul"),
        "most of the time goes to matmuls and convolutions",
        "the GPU is busy, mostly calculating",
        "3_step/1_roofline",
        "3a_precision",
        (
            "Use the tensor cores, with bf16 autocast, or TF32 for float32 matmuls. A GPU older than Ampere needs fp16 autocast and a GradScaler.",
            "Make sizes multiples of 8 (vocabulary, channels).",
            "On tensor cores already? Then compare with the roofline. Only a better kernel or less work is left.",
        ),
        {
            "tensor_core_share": lambda v, m: f"{v:.0%} of the time in matmuls and convolutions was on tensor cores.",
            "half_share": lambda v, m: f"{v:.0%} of it with 16-bit inputs.",
        },
        "With 16-bit inputs",
    ),
}
CAUSES = STALLS | WORK
ON_CPU = (  # the one cause that a run on the CPU can show
    "Load in worker processes: num_workers, persistent_workers=True, prefetch_factor. They take cores from the training itself, "
    "so measure whether the whole is faster.",
    "Decode less (smaller files, uint8), or cache. That takes no cores from anybody.",
)


def ms(ns: float) -> str:
    return f"{plain_number(ns / 1e6)} ms"
