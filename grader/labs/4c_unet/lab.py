from grader.labs.lab import Form, Lab, Outcome, Parity, Prediction, Throughput, TraceCheck

BATCH = 64
FLOPS = (
    68.2e9  # of a picture, forward and backward: convolutions and matrix products, as torch.utils.flop_counter has it
)

LAB = Lab(
    name="4c_unet",
    title="A UNet that learns to remove noise",
    phase=4,
    goal="A diffusion model is trained as such loops grow: safe, ported, written out. Train the same model as fast as it goes.",
    cause="compute-bound",
    forms={
        "cuda": Form(
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
        ),
        # one thread, fp32: what is wrong beside precision and compilation shows there too
        "cpu": Form(
            workload="grader.workloads.unet",
            options={"widths": (16, 32), "batch_size": 8, "lr": 3e-4},
            data="pictures 32",
            minimum_gain=1.35,  # 1.50x on two cores of an AMD EPYC (torch 2.14)
            noise=0.03,
            block_s=0.8,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.995, drift=0.02, held_out=0.05),
            threads=1,
            environment={"OMP_NUM_THREADS": "1"},
        ),
    },
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=50,
        hints=(
            "What is the largest part of a step on the GPU, and what does the GPU wait for? Take the larger of the two first.",
            "`lab.profile()` after each change. On the GPU: how long do convolutions take, and how long everything between them? On the "
            "CPU: which line makes the copies, which one waits?",
            "16 bits for forward and loss, and channels last for weights and pictures; one kernel each for attention and normalisation; "
            "all pictures on the GPU, as bytes, and their noise added to a batch at once; optimizer and average over all "
            "parameters at once; then let the compiler fuse what is left between the convolutions, and launch it in CUDA graphs.",
        ),
    ),
    trace=(
        TraceCheck(
            name="waits",
            title="The CPU does not wait for the GPU",
            points=8,
            metric="syncs",
            at_most=1,
            none_at=100,
            says="times a step the CPU waits for the GPU",
            form="cuda",
            hints=(
                "Which numbers does the CPU need before it can go on, and does it?",
                "`syncs` of `lab.peek()` counts the waits: `.item()`, copies to the CPU, `synchronize`. Some are made once a picture, some once a "
                "parameter.",
                "Look the noise levels up with a tensor of indices, on the device. Keep the average there as well. What a step only hands on "
                "it need not wait for.",
            ),
        ),
        TraceCheck(
            name="idle",
            title="The GPU is hardly idle",
            points=8,
            metric="gpu_idle_unprofiled",
            at_most=0.2,
            none_at=0.9,
            says="of a step, measured without the profiler, the GPU had nothing to do",
            form="cuda",
            hints=(
                "What does the CPU do while the GPU has nothing to do?",
                "`gpu_idle_unprofiled` of `lab.profile()`, and the hatched stretches of its timeline.",
                "No work for single pictures or single parameters in Python, no waits, and few launches: fused optimizer, the average by "
                "lists of tensors, a compiled model.",
            ),
        ),
        TraceCheck(
            name="half_precision",
            title="16 bits in convolutions and matrix products",
            points=8,
            metric="half_share",
            at_least=0.9,
            says="of the time in convolutions and matrix products was spent on 16-bit inputs",
            form="cuda",
            hints=(
                "Which units of the GPU multiply, and what do they take?",
                "`half_share` of `lab.peek()`, `tensor_core_share` of `lab.profile()`.",
                "bf16 autocast around the forward pass. The weights, their average and the loss stay in fp32.",
            ),
        ),
        TraceCheck(
            name="flash",
            title="Attention without the matrix of scores",
            points=8,
            metric="flash_share",
            at_least=0.9,
            says="of the time in fused attention kernels was spent in those of the flash kind",
            absent="No fused attention kernel is in the trace: the attention is still made of single operations.",
            form="cuda",
            hints=(
                "How large is what the attention at half the size writes down?",
                "`score_matrices` of `lab.peek()`: batched products whose result is larger than what goes in. `flash_share`: whether a fused kernel runs "
                "in place of them.",
                "torch.nn.functional has the whole attention as one function. No place is hidden from another here: it needs no mask.",
            ),
        ),
        TraceCheck(
            name="layout",
            title="Layouts are not changed back and forth",
            points=8,
            metric="layout_share",
            at_most=0.1,
            says="of the GPU's busy time only changed layouts",
            form="cuda",
            hints=(
                "In which order do pictures, weights and normalisation want their channels?",
                "`layout_share` of `lab.peek()`, and in the trace `contiguous`, `copy_`, and conversions between NCHW and NHWC.",
                "One layout from the stored bytes to the loss. Tensor cores want the channels last, so model and pictures should have them there; "
                "nn.GroupNorm gives them back first on a GPU, compiled or not: one of your own, compiled, need not.",
            ),
        ),
    ),
    peek=("syncs", "h2d_copies", "launches", "kernels", "half_share", "score_matrices", "flash_share", "layout_share"),
    outcome=Outcome(),
)
