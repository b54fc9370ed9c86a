from grader.labs import gpt
from grader.labs.lab import AtLeast, Budget, Lab, Parity, Throughput, TraceCheck

GPU = gpt.on_gpu(
    # the learning rate is as low as 3a's, and for the same reason
    options={"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch_size": 10, "lr": 3e-5},
    gpu_memory=7.5e9,
    minimum_gain=4.0,
    noise=0.01,
    block_s=1.0,
    profiled=1,  # the starter takes samples one by one: four steps of twenty were too large a trace to be read
    flops=6 * 85.1e6 * 10 * 1024,  # 2 forward, 4 backward for each weight of a matrix product and each token
    parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
    budget=4 << 30,
)

# CUDA's half GB twice, the starter's 57 million weights at 16 bytes (fp32, gradient, Adam's two moments) and 0.6 GB of
# activations, and the budget. Of the full form's budget 1.4 GB are weights and 0.4 GB each of six samples; here two thirds.
SMALLER = (
    GPU.smaller("small", 6.2e9, {"layers": 8}, measured="NVIDIA H200", flops=6 * 56.7e6 * 10 * 1024, budget=2816 << 20),
)

LAB = Lab(
    name="3h_fit",
    title="Fit it: the same batch in less memory, as fast as it goes",
    phase=3,
    goal="This loop fits into its memory budget in the slowest way. Stay within it, and train the same batches faster.",
    # kernels for one sample are short: on an H200 the GPU idles for a third of the starter's step
    cause="launch-bound",
    close=("compute-bound",),
    forms={
        "cuda": GPU,
        "cpu": gpt.on_cpu(
            options={"layers": 4, "width": 32, "heads": 4, "length": 256, "batch_size": 14, "lr": 1e-3},
            minimum_gain=2.0,
            block_s=0.8,
            parity=Parity(steps=6, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
            budget=70_000_000,
        ),
    },
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "Each of these tricks saves memory and costs time. Once some of them are gone, which do you still need for the budget?",
            "`lab.run()` shows the loop's peak memory. Work out from the shapes how much memory the activations of one sample take, with and "
            "without checkpoints. How many samples fit beside weights, gradients and the optimizer's state?",
            "Let attention choose its own kernel, which never writes the score matrix. Try the blocks without checkpoints. On a GPU run forward "
            "and loss in bf16. Then take the largest micro-batch that fits, and a fused optimizer. If the last micro-batch is smaller, weight it "
            "by its samples.",
        ),
    ),
    memory=Budget(
        points=20,
        hints=(
            "At which line of a step is most of the memory in use, and for what?",
            "`lab.run()` shows the loop's peak memory. The peak comes at the end of a forward pass. A larger micro-batch multiplies it.",
            "Activations grow with the samples that are in memory at a time, and the score matrix grows with the square of the length. Take "
            "fewer samples at a time, or leave attention to `scaled_dot_product_attention` as it is. Weights, gradients and the optimizer's "
            "state stay the same in any case.",
        ),
    ),
    trace=(
        TraceCheck(
            name="half_precision",
            title="Activations in 16 bits",
            points=20,
            wanted=AtLeast("half_share", 0.9),
            hints=(
                "How many bytes does an activation take, and how many does it need?",
                "In `lab.peek()`, a `half_share` of 0 means that all matmuls have 32-bit inputs. Activations of 32 bits then wait for the "
                "backward pass.",
                "Put `torch.autocast` around forward and loss. Matmuls then run on 16-bit copies, and the backward pass keeps those. The weights "
                "stay in fp32.",
            ),
        ),
    ),
    peek=("kernels", "launches", "half_share", "peak_memory"),
)
