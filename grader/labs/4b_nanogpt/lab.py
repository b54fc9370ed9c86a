from grader.labs.gpt2 import CPU, flops, on_gpu
from grader.labs.lab import AtLeast, AtMost, Lab, Logs, Outcome, Throughput, TraceCheck

GPU = on_gpu(gpu_memory=37e9, minimum_gain=10.0)

# Twice CUDA's half GB and the weights at 16 bytes (fp32, gradient, Adam's two moments). Of the starter, which takes all of these
# batches at once, four times the logits in fp32 and in each layer three matrices of scores and 16 tensors of the model's width; of
# the solution 0.73 MB a token where it has no products in 8 bits. For the full form that comes to 39 GB.
SMALLER = (
    GPU.smaller("mid", 13.3e9, {"length": 512, "batch_size": 6}, flops=flops(12, 768, 512, 6)),
    GPU.smaller(
        "small",
        7.0e9,
        {"layers": 6, "width": 512, "heads": 8, "length": 512, "batch_size": 4},
        measured="NVIDIA H200",
        flops=flops(6, 512, 512, 4),
    ),
)

LAB = Lab(
    name="4b_nanogpt",
    title="GPT-2, fast: everything is yours",
    phase=4,
    goal="GPT-2 with 124 million weights, slow in many ways at once. Find your own order, keep a log, and train the same model faster.",
    cause="compute-bound",
    forms={"cuda": GPU, "cpu": CPU},
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "A step is some thousands of kernels. Which few take most of its time, and on which units of the GPU do they run?",
            "Run `lab.profile()` after each change, and write a line in your log with step time, most expensive operation and cause. Work out "
            "the least time of a step: 6 operations for each weight and token, at the peak of bf16.",
            "This order works, and its third change gains most. Take matmuls in bf16, an attention that never writes its scores, a head whose "
            "size fits, and one large micro-batch in place of several. Compile forward pass and loss together. Then remove everything that makes "
            "the CPU wait, and fuse the optimizer.",
        ),
    ),
    trace=(
        TraceCheck(
            name="half_precision",
            title="Matmuls in 16 bits",
            points=10,
            wanted=AtLeast("half_share", 0.95),
            says="of the time in matmuls was spent on inputs of 16 bits or fewer",
            hints=(
                "In which number format does this GPU multiply fastest?",
                "In `lab.peek()`, a `half_share` of 0 means that all matmuls have 32-bit inputs.",
                "Put `torch.autocast` around forward and loss. Matmuls then run on 16-bit copies. Weights and optimizer stay in fp32.",
            ),
        ),
        TraceCheck(
            name="flash",
            title="Attention without the matrix of scores",
            points=10,
            wanted=AtLeast("flash_share", 0.9),
            absent="The trace holds no fused attention kernel. The attention still consists of single operations.",
            hints=(
                "What is the largest tensor inside a block, and which operation needs all of it at once?",
                "Look at `score_matrices` and `flash_share` of `lab.peek()`. A mask that is made anew for every layer also shows among the copies.",
                "torch.nn.functional has the whole of attention as one function. Use its own argument to say that it is causal, and pass no mask.",
            ),
        ),
        TraceCheck(
            name="aligned",
            title="Matmul sizes fit the tensor cores",
            points=8,
            wanted=AtLeast("aligned_share", 0.99),
            hints=(
                "16 bytes are eight values in bf16. Which size of this model is no multiple of eight?",
                "Look at `aligned_share` of `lab.peek()`. Three matmuls of a step have the vocabulary among their sizes.",
                "Give the head some more rows, up to the next multiple of 64, and make sure that they take no part in the softmax. The "
                "embedding's own weight can stay as it is, or you hand it back without them in `job.weights`.",
            ),
        ),
        TraceCheck(
            name="kernels",
            title="Few kernels",
            points=7,
            wanted=AtMost("kernels", 700.0, none_at=2500.0),
            says="kernels ran on the GPU per step",
            hints=(
                "Which kernels exist only because each line of Python is a separate operator, for each micro-batch again?",
                "Look at `kernels` of `lab.peek()`. In `lab.profile()`, see what runs between the matmuls, such as casts, sums and normalisations.",
                "Take the whole batch at a time if it fits. Compile forward pass and loss as one function. A fused optimizer is a handful of "
                "kernels.",
            ),
        ),
        TraceCheck(
            name="syncs",
            title="The CPU does not wait",
            points=5,
            wanted=AtMost("syncs", 1.0, none_at=20.0),
            says="times per step the CPU waited for the GPU",
            hints=(
                "Which lines can't go on before the GPU has an answer?",
                "`syncs` of `lab.peek()` counts the waits. Reading a value waits, and so does a copy from pageable memory, such as a mask's.",
                "Sum and log the loss as a tensor. Send batches from pinned memory with non_blocking. Make on the device what you needn't copy, "
                "such as a mask.",
            ),
        ),
    ),
    peek=("kernels", "launches", "syncs", "half_share", "aligned_share", "flash_share", "score_matrices"),
    logs=Logs(("loss",)),
    outcome=Outcome(),
)
