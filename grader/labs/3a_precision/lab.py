from grader.labs import gpt
from grader.labs.lab import AtLeast, Lab, Parity, Throughput, TraceCheck

GPU = gpt.on_gpu(
    # a low learning rate: at 1e-4 rounding alone leads the solution elsewhere after a hundred steps (distance 0.1 on an
    # H200), and parity could tell no cheat from it any more; at 3e-5 honest runs stay together (0.0005 after 200)
    options={"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch_size": 16, "lr": 3e-5},
    gpu_memory=21e9,
    minimum_gain=1.8,
    noise=0.003,
    block_s=0.8,
    flops=6 * 85.1e6 * 16 * 1024,  # 2 forward, 4 backward for each weight of a matrix product and each token
    parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
)

# Twice 44 million weights at 16 bytes (fp32, gradient, Adam's two moments), and 0.8 GB of CUDA's own, are 3.0 GB. The full form
# has 1.08 GB a window beyond that, half of it with half the layers.
SMALLER = (
    GPU.smaller("small", 6.4e9, {"layers": 6, "batch_size": 5}, measured="NVIDIA H200", flops=6 * 42.5e6 * 5 * 1024),
)

LAB = Lab(
    name="3a_precision",
    title="A GPT, straight from a tutorial",
    phase=3,
    goal="A GPT trains in a loop as tutorials have it. Find out what holds it back, and train the same model faster.",
    cause="compute-bound",
    forms={"cuda": GPU},
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "The GPU is busy all the time. What is it busy with, and on which of its units?",
            "In `lab.profile()` look at `tensor_core_share` and `half_share`. How much of the matmul time is on tensor cores? How much has "
            "16-bit inputs?",
            "You need two switches. One setting of torch lets fp32 matmuls run as TF32. One context around forward and loss runs them in bf16. A "
            "GPU older than Ampere needs fp16 and a GradScaler instead, with `init_scale=2.0**13`. The weights stay as they are.",
        ),
    ),
    trace=(
        TraceCheck(
            name="tensor_cores",
            title="Matmuls run on tensor cores",
            points=20,
            wanted=AtLeast("tensor_core_share.yes", 0.9),
            says="of the time in matmuls was spent in tensor-core kernels",
            hints=(
                "Which matmuls of this loop may use tensor cores as it is?",
                "By default fp32 matmuls run on the CUDA cores. `lab.profile()` shows how large that part is. The fused attention of fp32 "
                "tensors ignores the switch for TF32.",
                "`torch.set_float32_matmul_precision` allows TF32 for the matmuls that stay in fp32. Autocast moves most of them to bf16, and "
                "there they run on tensor cores.",
            ),
        ),
        TraceCheck(
            name="half_precision",
            title="Forward and backward run in 16 bits",
            points=20,
            wanted=AtLeast("half_share", 0.9),
            hints=(
                "How many bytes does a value need while it is multiplied?",
                "In `lab.peek()`, a `half_share` of 0 means that all matmuls have 32-bit inputs. Don't cast the model itself. Its weights and "
                "updates would lose their small digits, and that isn't the same training.",
                "`torch.autocast` around forward and loss chooses the precision of each operation, and the backward pass follows. Leave "
                "`backward()` and the optimizer outside, and the weights in fp32.",
            ),
        ),
    ),
    peek=("kernels", "launches", "half_share", "syncs"),
)
