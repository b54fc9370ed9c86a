from grader.labs import gpt
from grader.labs.lab import AtLeast, Lab, Parity, Throughput, TraceCheck

# With 50,304 classes and 8,192 tokens the gradient of a logit begins at 1 / (50304 x 8192) = 2.4e-9; the smallest
# number of fp16 is 6e-8. Without a scale nearly all of them are 0.
GPU = gpt.on_gpu(
    options={"layers": 6, "width": 768, "heads": 12, "length": 1024, "batch_size": 8, "lr": 1e-4, "vocabulary": 50304},
    gpu_memory=21.5e9,
    minimum_gain=2.0,
    noise=0.003,
    block_s=0.8,
    # 2 forward, 4 backward for each weight of a matrix product and each token
    flops=6 * (6 * 12 * 768**2 + 50304 * 768) * 8 * 1024,
    parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
)

# Twice 54 million weights at 16 bytes (fp32, gradient, Adam's two moments), and 0.8 GB of CUDA's own, are 3.3 GB. The full form
# has 2.2 GB a window beyond that, 1.65 of it logits. A window is shorter here. A gradient of a logit begins at 1.3e-8.
SMALLER = (
    GPU.smaller(
        "small",
        6.9e9,
        {"layers": 2, "batch_size": 2, "length": 768},
        measured="NVIDIA H200",
        minimum_gain=1.8,  # 2.0x there
        flops=6 * (2 * 12 * 768**2 + 50304 * 768) * 2 * 768,
    ),
)

LAB = Lab(
    name="3m_fp16",
    title="A GPT that learned too slowly in fp16",
    phase=3,
    goal="This GPT went back to fp32 because it learned too slowly in fp16. Train it in fp16, as on a GPU without bf16, and train the same model.",
    cause="compute-bound",
    forms={
        "cuda": GPU,
        # a CPU multiplies fp16 more slowly than fp32: only the training is compared
        "cpu": gpt.on_cpu(
            options={"layers": 1, "width": 64, "heads": 4, "length": 64, "batch_size": 4, "lr": 1e-3},
            minimum_gain=None,
            noise=0.02,
            # After 48 steps who does not clip has moved 3.2% to 8.7% farther, and bf16 up to 0.28% (60 seeds, fp32 and bf16, torch
            # 2.14). Its cosine was 0.989 from one of these seeds, and 0.9999 in the median: who does not clip has 0.982 to 0.9986.
            parity=Parity(steps=48, loss=0.003, norm=0.01, cosine=0.97, drift=0.01, held_out=0.1),
        ),
    },
    smaller=SMALLER,
    throughput=Throughput(
        points=50,
        hints=(
            "The GPU is busy all the time, on its CUDA cores. How could it use the tensor cores?",
            "autocast takes the type as an argument. Run it with fp16, as somebody did before. Look at the losses that `lab.run()` prints, and "
            "count the values of `parameter.grad` that are exactly 0.",
            "Put autocast to fp16 around forward and loss, and a `torch.amp.GradScaler` around the backward pass. It multiplies the loss, "
            "and divides the gradients again before the optimizer's step. Code that reads gradients in between must call "
            "`scaler.unscale_(optimizer)` first. A scale that is too high at first makes gradients infinite. The scaler then skips that "
            "step, which the starter took. Print `scaler.get_scale()` after the first steps and begin there with `init_scale`.",
        ),
    ),
    trace=(
        TraceCheck(
            name="fp16",
            title="Forward and backward run in fp16",
            points=25,
            wanted=AtLeast("fp16_share", 0.9),
            hints=(
                "Which type did you give to autocast, and is the head inside of it, too?",
                "Look at `fp16_share` of `lab.peek()`. This lab wants fp16, whatever your GPU can do. Lab 3a is about bf16.",
                "Put `torch.autocast` with `torch.float16` around the model and the loss. Leave `backward()` and the optimizer outside, and the "
                "weights in fp32.",
            ),
        ),
        TraceCheck(
            name="tensor_cores",
            title="Matmuls run on tensor cores",
            points=15,
            wanted=AtLeast("tensor_core_share.yes", 0.9),
            says="of the time in matmuls was spent in tensor-core kernels",
            hints=(
                "Which matmuls of this loop may use tensor cores as it is?",
                "By default fp32 matmuls run on the CUDA cores. `lab.profile()` shows how large that part is.",
                "Matmuls in fp16 under autocast run on tensor cores, from Volta on, if their sizes fit. Here they do.",
            ),
        ),
    ),
    peek=("fp16_share", "half_share", "syncs", "kernels", "launches"),
)
