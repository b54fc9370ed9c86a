from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput

GPU = Form(
    workload="grader.workloads.nplm",
    options={"context": 64, "features": 64, "width": 8192, "layers": 3, "length": 1024, "batch_size": 16, "lr": 1e-4},
    data="text",
    gpu_memory=13e9,
    minimum_gain=1.0,
    noise=0.003,
    # 2 forward, 4 backward for each weight of a matrix product and each token
    flops=6 * (64 * 64 * 8192 + 2 * 8192**2 + 8192 * 256) * 16 * 1024,
    parity=Parity(steps=16, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
)

# Twice 51 million weights at 16 bytes (fp32, gradient, Adam's two moments) and CUDA's half GB are 2.7 GB. The full form has
# 0.41 GB a window beyond that, 0.235 of it with half the width.
SMALLER = (
    GPU.smaller(
        "small",
        6.7e9,
        {"width": 4096},
        measured="NVIDIA H200",
        flops=6 * (64 * 64 * 4096 + 2 * 4096**2 + 4096 * 256) * 16 * 1024,
    ),
)

LAB = Lab(
    name="3k_healthy",
    title="Is there anything left?",
    phase=3,
    goal="Somebody wants to compile this loop, checkpoint it and change its precision. Say what holds it back, and do no harm.",
    cause="compute-bound",
    forms={
        "cuda": GPU,
        "cpu": Form(
            workload="grader.workloads.nplm",
            options={
                "context": 16,
                "features": 32,
                "width": 768,
                "layers": 2,
                "length": 64,
                "batch_size": 8,
                "lr": 1e-3,
            },
            data="text",
            minimum_gain=1.0,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
            threads=1,
        ),
    },
    smaller=SMALLER,
    prediction=Prediction(points=40),
    throughput=Throughput(
        points=60,
        healthy=True,
        title="No harm done",
        hints=(
            "How far is this loop from the roof of the operation that takes most of its time?",
            "Work out how long the matmuls of a step need at the measured peak of this device. Compare that with a step of the untouched loop. "
            "Without a GPU, the untouched loop's `data_wait` is below 1%. A step divided by `cpu_ops` is a hundred us or more there, and a call "
            "costs only a few.",
            "The untouched loop is a right answer. If nearly all of a step is matmuls at their peak, fusing, recomputing and casting have next "
            "to nothing to win, and each has its price. Take out what you put in.",
        ),
    ),
    trace=(),
    peek=("tensor_core_share", "half_share", "kernels", "launches"),
)
