from grader.labs import gpt
from grader.labs.lab import Lab, Parity, Prediction, Throughput

GPU = gpt.on_gpu(
    # the learning rate is as low as 3a's, and for the same reason
    options={"layers": 8, "width": 1024, "heads": 16, "length": 1024, "batch_size": 16, "lr": 3e-5},
    gpu_memory=15.5e9,
    minimum_gain=1.0,
    noise=0.003,
    flops=6 * 8 * 12 * 1024**2 * 16 * 1024,  # 2 forward, 4 backward for each weight of a matrix product and each token
    # on an H200 (torch 2.11) the untouched loop drifted by 0.4% from itself, and one that adds a pass without gradients by 1.3%
    parity=Parity(steps=16, loss=0.003, norm=0.005, cosine=0.998, drift=0.03, held_out=0.03),
)

# Twice 77 million weights at 16 bytes (fp32, gradient, Adam's two moments), and 0.8 GB of CUDA's own, are 4.1 GB. The full form
# has 0.70 GB a window beyond that, three quarters of it with as many layers.
SMALLER = (
    GPU.smaller(
        "small", 6.7e9, {"layers": 6, "batch_size": 4}, measured="NVIDIA H200", flops=6 * 6 * 12 * 1024**2 * 4 * 1024
    ),
)

LAB = Lab(
    name="2g_healthy",
    title="Is anything wrong here?",
    phase=2,
    goal="Somebody calls this loop slow. Say what holds it back, and what of this phase would help. Do no harm.",
    cause="compute-bound",
    forms={
        "cuda": GPU,
        "cpu": gpt.on_cpu(
            options={"layers": 2, "width": 128, "heads": 4, "length": 64, "batch_size": 8, "lr": 1e-3},
            minimum_gain=1.0,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
        ),
    },
    smaller=SMALLER,
    prediction=Prediction(points=40),
    throughput=Throughput(
        points=60,
        healthy=True,
        title="No harm done",
        hints=(
            "Which of your changes takes something away that the loop was waiting for?",
            "Compare `lab.profile()` of your loop with that of the untouched one. How much of a step was the GPU idle before, and how long "
            "was a step? Without a GPU, the untouched loop's `data_wait` is below 1%, and you can't win more than that by better feeding.",
            "The untouched loop is a right answer. If the device is busy with what it has to do, workers and "
            "prefetchers have nothing to win, and each has its price. Take out what you put in.",
        ),
    ),
    trace=(),
    peek=("syncs", "h2d_pinned", "kernels", "launches"),
)
