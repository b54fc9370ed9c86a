import math
from statistics import NormalDist

from grader.labs.lab import AtMost, Form, Lab, Parity, Throughput, TraceCheck


def documents(count: int, median: int) -> tuple[int, ...]:
    """Lengths of a batch's documents, longest first: most are short and a few are long, as of web pages or of a chat's turns."""
    normal = NormalDist(math.log(median), 0.9)
    return tuple(round(math.exp(normal.inv_cdf(1 - (n + 0.5) / count))) for n in range(count))


def flops(layers: int, width: int, lengths: tuple[int, ...]) -> float:
    """2 operations forward and 4 backward for each weight of a matmul and each token of a document."""
    return 6 * (12 * layers * width**2 + 256 * width) * sum(lengths)


BATCH, TINY = documents(32, 256), documents(12, 22)

# Two wide layers: a step is long beside its launches, and few activations are kept
GPU = Form(
    workload="grader.workloads.lengths",
    options={
        "layers": 2,
        "width": 1024,
        "heads": 16,
        "length": 4096,
        "documents": BATCH,
        "lr": 3e-5,  # as low as 3a's, and for the same reason
    },
    data="text",
    # calculated: twice 30 million weights at 16 bytes, 1.3 GB for 16,384 padded tokens, twice as much for 12,000 packed ones where
    # their sizes change from step to step, and 0.8 GB of CUDA's own for each loop
    gpu_memory=6.3e9,
    minimum_gain=4.0,  # 6.3x on an H200 (torch 2.11, 2026-11-29)
    noise=0.01,
    block_s=1.0,
    flops=flops(2, 1024, BATCH),
    # on an H200 the solution and two other forms were 0.0017% off, their cosine at least 0.99995; without a hundredth of the tokens the
    # losses were 0.12% off, the cosine 0.9989. fp32 is expected 0.015% off, as in 3f
    parity=Parity(steps=24, loss=0.0005, norm=0.005, cosine=0.999, drift=0.01, held_out=0.03),
)

LAB = Lab(
    name="3n_lengths",
    title="Documents of every length",
    phase=3,
    goal="This GPT trains on documents, and hardly two of them are equally long. Find out what holds it back, and train the same model faster.",
    cause="compute-bound",
    close=("memory-bound",),
    forms={
        "cuda": GPU,
        "cpu": Form(
            workload="grader.workloads.lengths",
            options={"layers": 2, "width": 64, "heads": 4, "length": 256, "documents": TINY, "lr": 1e-3},
            data="text",
            minimum_gain=4.0,
            # bf16 was at most 0.0054% off in six grades, its cosine at least 0.9995 (torch 2.14); without 1% of the tokens the losses
            # were 0.03 and 0.08% off, the cosine 0.9995 and 0.9916 (two)
            parity=Parity(steps=12, loss=0.00015, norm=0.005, cosine=0.999, drift=0.01, held_out=0.1),
            threads=1,
            flops=flops(2, 64, TINY),
        ),
    },
    throughput=Throughput(
        points=60,
        hints=(
            "Count the real tokens of a batch, and then the tokens that the model computes for it. What's the ratio?",
            "In `lab.peek()`, `work` compares the arithmetic of your matmuls with what the real tokens need. `job.dataset.lengths` has the "
            "length of each document. How long is the longest of all, how long the longest of a batch, and how long a usual one? If a step "
            "with less padding is slower, look in `lab.profile()` for an attention that the CPU prepares for each new length.",
            "Lay all documents end to end, without padding, so that each linear layer gets real tokens only. Give each token its place in its "
            "own document, and let attention see nothing beyond its document. Sorted groups, padded only for attention, do that on every GPU. "
            "On a GPU since Ampere, varlen attention and FlexAttention need no padding at all. cuDNN's attention plans for each length that it "
            "has not seen. Give it few lengths, such as multiples of 64, or switch it off.",
        ),
    ),
    trace=(
        TraceCheck(
            name="work",
            title="Matmuls on real tokens only",
            points=30,
            wanted=AtMost("work", 1.25, none_at=6.0),
            says="times the arithmetic that the real tokens need, in the matmuls of a step",
            hints=(
                "Which of the rows that go through a linear layer count in the loss?",
                "`work` in `lab.peek()` is 1 if all rows are real tokens. If you sort the batch and pad each part to its own longest, `work` "
                "falls far already. What's left is the padding inside of each part.",
                "Linear layers, normalisations and the loss don't care which document a row belongs to. So they can take one long row of tokens "
                "without padding. Only attention has to know where a document begins and ends.",
            ),
        ),
    ),
    peek=("work", "kernels", "launches"),
)
