from grader.labs.lab import AtLeast, AtMost, Form, Lab, Outcome, Parity, Throughput, TraceCheck

BATCH = 64
FLOPS = (
    68.2e9  # of a picture, forward and backward: convolutions and matrix products, as torch.utils.flop_counter has it
)

GPU = Form(
    workload="grader.workloads.unet",
    options={"widths": (128, 256, 256, 256), "batch_size": BATCH, "lr": 1e-4},
    data="pictures 64",
    gpu_memory=21e9,
    minimum_gain=6.0,
    noise=0.01,
    block_s=1.0,
    flops=BATCH * FLOPS,
    # bf16 on an H200 (torch 2.11): losses 0.0004 to 0.0042 off, by seed, norm 0.002, cosine 0.9992; an average that is a step late: norm 0.01
    parity=Parity(steps=20, loss=0.015, norm=0.005, cosine=0.995, drift=0.03, held_out=0.03),
)

# Twice 18 million weights at 16 bytes (fp32, gradient, Adam's two moments), their averages and CUDA's half GB are 1.7 GB. The full
# form has 0.30 GB a picture beyond that.
SMALLER = (GPU.smaller("small", 7.5e9, {"batch_size": 16}, measured="NVIDIA H200", flops=16 * FLOPS),)

LAB = Lab(
    name="4c_unet",
    title="A UNet that learns to remove noise",
    phase=4,
    goal=(
        "A diffusion model is trained by a loop that grew over time. Parts of it are cautious, parts were ported, parts are written out by hand. "
        "Train the same model as fast as it goes."
    ),
    cause="compute-bound",
    forms={
        "cuda": GPU,
        # one thread, fp32: what is wrong beside precision and compilation shows there too
        "cpu": Form(
            workload="grader.workloads.unet",
            options={"widths": (16, 32), "batch_size": 8, "lr": 3e-4},
            data="pictures 32",
            minimum_gain=1.35,  # 1.50x on two cores of an AMD EPYC (torch 2.14)
            block_s=0.8,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.995, drift=0.02, held_out=0.05),
            threads=1,
        ),
    },
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "What is the largest part of a step on the GPU, and what does the GPU wait for? Take the larger of the two first.",
            "Run `lab.profile()` after each change. How long do convolutions take on the GPU, and how long everything between them? Which line "
            "on the CPU makes the copies, and which one waits?",
            "Use 16 bits for forward and loss, and channels last for weights and pictures. Take one kernel each for attention and normalisation. "
            "Keep all pictures on the GPU, as bytes, and add their noise to a batch at once. Update optimizer and average over all parameters at "
            "once. Then let the compiler fuse the rest between the convolutions, and launch it in CUDA graphs.",
        ),
    ),
    trace=(
        TraceCheck(
            name="waits",
            title="The CPU does not wait for the GPU",
            points=8,
            wanted=AtMost("syncs", 1, none_at=100),
            says="times per step the CPU waited for the GPU",
            hints=(
                "Which values does the CPU read, and does it need them before it goes on?",
                "`syncs` of `lab.peek()` counts the waits: `.item()`, copies to the CPU, `synchronize`. Some come once per picture, some once "
                "per parameter.",
                "Look the noise levels up with a tensor of indices, on the device. Keep the average there as well. If a step only passes a value "
                "on, it need not wait for it.",
            ),
        ),
        TraceCheck(
            name="idle",
            title="The GPU is hardly idle",
            points=8,
            wanted=AtMost("gpu_idle_unprofiled", 0.2, none_at=0.9),
            says="of a step, measured without the profiler, the GPU had nothing to do",
            hints=(
                "What does the CPU do while the GPU has nothing to do?",
                "Look at `gpu_idle_unprofiled` of `lab.profile()`, and at the hatched parts of its timeline.",
                "Do nothing in Python for single pictures or single parameters, wait for nothing, and launch little. Use a fused optimizer, "
                "average by lists of tensors, and compile the model.",
            ),
        ),
        TraceCheck(
            name="half_precision",
            title="Convolutions and matmuls in 16 bits",
            points=8,
            wanted=AtLeast("half_share", 0.9),
            says="of the time in convolutions and matmuls was spent on 16-bit inputs",
            hints=(
                "Which units of the GPU multiply fastest, and which types do they take?",
                "Look at `half_share` of `lab.peek()` and `tensor_core_share` of `lab.profile()`.",
                "Put bf16 autocast around the forward pass. The weights, their average and the loss stay in fp32.",
            ),
        ),
        TraceCheck(
            name="flash",
            title="Attention without the matrix of scores",
            points=8,
            wanted=AtLeast("flash_share", 0.9),
            absent="The trace holds no fused attention kernel. The attention still consists of single operations.",
            hints=(
                "How large is the tensor that the attention at half the size writes?",
                "`score_matrices` of `lab.peek()` counts batched matmuls whose result is larger than their inputs. `flash_share` says whether a "
                "fused kernel runs in their place.",
                "torch.nn.functional has the whole attention as one function. Every place may see every other here, so it needs no mask.",
            ),
        ),
        TraceCheck(
            name="layout",
            title="Layouts are not changed back and forth",
            points=8,
            wanted=AtMost("layout_share", 0.1),
            says="of the GPU's busy time only changed layouts",
            hints=(
                "In which order do pictures, weights and normalisation want their channels?",
                "Look at `layout_share` of `lab.peek()`. In the trace, look for `contiguous`, `copy_`, and conversions between NCHW and NHWC.",
                "Keep one layout from the stored bytes to the loss. Tensor cores want the channels last, so put model and pictures there. On a "
                "GPU nn.GroupNorm returns the channels first, compiled or not. A GroupNorm that you write and compile yourself need not.",
            ),
        ),
    ),
    peek=("syncs", "h2d_copies", "launches", "kernels", "half_share", "score_matrices", "flash_share", "layout_share"),
    outcome=Outcome(),
)
