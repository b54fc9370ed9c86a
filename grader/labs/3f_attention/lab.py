from grader.labs import gpt
from grader.labs.lab import AtLeast, AtMost, Lab, Parity, Throughput, TraceCheck

LAYERS, WIDTH, LENGTH, BATCH = 8, 768, 2048, 4


def flops(layers: int, batch: int, length: int = LENGTH) -> float:
    """2 operations forward and 4 backward for each weight of a matrix product and each token, and for each of the two products of an
    attention, of which a causal one needs half."""
    return 6 * layers * batch * length * (12 * WIDTH**2 + 256 * WIDTH / layers + length * WIDTH)


GPU = gpt.on_gpu(
    options={
        "layers": LAYERS,
        "width": WIDTH,
        "heads": 12,
        "length": LENGTH,
        "batch_size": BATCH,
        "lr": 3e-5,  # as low as 3a's, and for the same reason
        "bare": True,
    },
    gpu_memory=20.5e9,
    minimum_gain=1.8,
    noise=0.005,
    block_s=0.8,
    flops=flops(LAYERS, BATCH),
    # another attention shows in the direction of the update; honest forms, in bf16 too, stay above 0.9998
    parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.9985, drift=0.01, held_out=0.03),
)

# Twice 17 million weights at 16 bytes (fp32, gradient, Adam's two moments), and 0.8 GB of CUDA's own, are 2.1 GB. A layer of the
# full form has 0.55 GB a window beyond that. Matrices of scores grow with the square of the length: few layers with long windows
# keep the GPU busy with them even where it is fast.
SMALLER = (
    GPU.smaller(
        "small",
        6.7e9,
        {"layers": 2, "length": 3072, "batch_size": 1},
        measured="NVIDIA H200",
        flops=flops(2, 1, 3072),
        minimum_gain=1.5,
    ),
)

LAB = Lab(
    name="3f_attention",
    title="Attention as in a textbook",
    phase=3,
    goal="This GPT writes its attention out, line by line, as in a textbook. Find out what holds it back, and train the same model faster.",
    cause="memory-bound",
    forms={
        "cuda": GPU,
        # one thread, fp32: the fused kernel of the CPU keeps its tiles in the cache, too
        "cpu": gpt.on_cpu(
            options={"layers": 2, "width": 64, "heads": 4, "length": 1024, "batch_size": 1, "lr": 1e-3, "bare": True},
            minimum_gain=2.0,
            parity=Parity(steps=8, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
        ),
    },
    smaller=SMALLER,
    throughput=Throughput(
        points=45,
        hints=(
            "How many values does `scores` hold, how many does the result hold, and how often is each moved?",
            "In `lab.profile()` look at the kernels between the matmuls. Scaling, filling, casts and softmax each read and write a matrix of "
            "length x length for every head. They calculate hardly anything.",
            "torch.nn.functional has all of this as one function. It works through the scores in tiles that stay on the chip. Use its own "
            "argument to say that the attention is causal, and pass no mask.",
        ),
    ),
    trace=(
        TraceCheck(
            name="scores",
            title="No matrix of scores is written",
            points=25,
            wanted=AtMost("score_matrices", 0.0),
            says="score matrices, and gradients of them, are written per step",
            hints=(
                "What is the largest tensor of a step, and which operation needs all of it at once?",
                "`score_matrices` of `lab.peek()` counts batched matmuls whose result is larger than their inputs. Each layer has one in the "
                "forward pass and one in the backward pass.",
                "A fused attention computes a tile of scores, uses it and forgets it, and computes it again for the backward pass. Use the one "
                "of torch.nn.functional. Its backend called MATH isn't fused.",
            ),
        ),
        TraceCheck(
            name="flash",
            title="The flash kernels do it",
            points=20,
            wanted=AtLeast("flash_share", 0.9),
            absent="The trace holds no fused attention kernel. The attention still consists of single operations.",
            hints=(
                "There are several fused kernels. What decides which of them is taken?",
                "Look at the kernels' names in `lab.profile()`. `flash` and `cudnn` are the fast ones, and `fmha` is the memory-efficient one. "
                "Then look at the types, shapes and mask that your attention gets.",
                "FlashAttention and cuDNN take 16-bit inputs, so stay under autocast. FlashAttention takes no mask tensor. cuDNN has to read the "
                "mask and skips nothing. Pass `is_causal` instead. With `torch.nn.attention.sdpa_kernel` you can allow one backend only. If it "
                "can't serve a call, it warns and says why.",
            ),
        ),
    ),
    peek=("score_matrices", "flash_share", "kernels", "launches"),
)
