from grader.labs import gpt
from grader.labs.lab import AtLeast, AtMost, Lab, Parity, Throughput, TraceCheck

# GPT-2's vocabulary and width, half its layers, so that the head is most of a step
GPU = gpt.on_gpu(
    options={"layers": 6, "width": 768, "heads": 12, "length": 1024, "batch_size": 8, "lr": 1e-4, "vocabulary": 50257},
    gpu_memory=20e9,
    minimum_gain=2.5,
    noise=0.003,
    block_s=0.8,
    # 2 forward, 4 backward for each weight of a matrix product and each token
    flops=6 * (6 * 12 * 768**2 + 50257 * 768) * 8 * 1024,
    parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
)

# Twice 61 million weights at 16 bytes (fp32, gradient, Adam's two moments), and 0.8 GB of CUDA's own, are 3.6 GB. The full form
# has 2.05 GB a window beyond that, 1.8 of it logits, which are there some nine times. A window is shorter here.
SMALLER = (
    GPU.smaller(
        "small",
        7.1e9,
        {"layers": 3, "batch_size": 2, "length": 768},
        measured="NVIDIA H200",
        flops=6 * (3 * 12 * 768**2 + 50257 * 768) * 2 * 768,
    ),
)

LAB = Lab(
    name="3c_shapes",
    title="GPT-2's own sizes",
    phase=3,
    goal="This GPT is in bf16 already, and its step is still longer than it must be. Find out what holds it back, and train the same model faster.",
    cause="memory-bound",
    forms={
        "cuda": GPU,
        # a CPU has no tensor cores to fit: only the training is compared, and `peek` counts what would fit
        "cpu": gpt.on_cpu(
            options={
                "layers": 2,
                "width": 64,
                "heads": 4,
                "length": 64,
                "batch_size": 8,
                "lr": 1e-3,
                "vocabulary": 509,
            },
            minimum_gain=None,
            noise=0.02,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
        ),
    },
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "The GPU is busy, in bf16, on tensor cores. Which matmul is far below what they can do? And how much of the step do matmuls take at "
            "all?",
            "Read the sizes off the code. Three matmuls of a step have the vocabulary among their sizes. What is 50257 divisible by? And what "
            "happens to the logits between the matmul and the loss?",
            "Give the tied weight some more rows, up to the next multiple of 64, and make sure that they take no part in the softmax. Hand the "
            "weight back without them in `job.weights`. Give cross_entropy the logits as a matrix with one row per token, so that nothing has to "
            "be transposed.",
        ),
    ),
    trace=(
        TraceCheck(
            name="aligned",
            title="Matmul sizes fit the tensor cores",
            points=25,
            wanted=AtLeast("aligned_share", 0.99),
            hints=(
                "16 bytes are eight values in bf16. Which size of this model is no multiple of eight?",
                "Look at `aligned_share` of `lab.peek()`, which works on a CPU, too. A large part of the arithmetic has a size that doesn't fit. "
                "Width, heads and length do fit.",
                "The vocabulary can be larger than the text needs. Make a new weight with rows of zeros at its end, before you make the "
                "optimizer. Put it back into the model's embedding, which shares it.",
            ),
        ),
        TraceCheck(
            name="layout",
            title="The logits stay where they are",
            points=15,
            wanted=AtMost("layout_share", 0.035),
            hints=(
                "Which line of the loop moves every logit to a different place and computes nothing?",
                "Look at `layout_share` of `lab.profile()`, the share of copies that keep the type. How many bytes are the logits of one batch "
                "in fp32?",
                "cross_entropy also takes a matrix, (tokens, vocabulary), with one target per row. Flattening doesn't copy. You don't need to "
                "cast either, because autocast computes the loss in fp32 anyway.",
            ),
        ),
    ),
    peek=("aligned_share", "layout_share", "half_share", "kernels", "syncs"),
)
