from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput, TraceCheck

LAB = Lab(
    name="3a_precision",
    title="Use the tensor cores: TF32 and bf16",
    phase=3,
    goal="This GPT trains in full fp32. Let its matrix products run on the tensor cores, and train the same model.",
    cause="compute-bound",
    forms={
        "cuda": Form(
            workload="grader.workloads.gpt",
            options={"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch_size": 16, "lr": 1e-4},
            data="text",
            minimum_gain=1.8,
            noise=0.003,
            flops=6 * 85.1e6 * 16 * 1024,  # 2 forward, 4 backward for each weight of a matrix product and each token
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
    },
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=50,
        hint="Which kernels take the step's time, and on which units of the GPU do they run? Two lines change that.",
    ),
    trace=(
        TraceCheck(
            name="tensor_cores",
            title="Matrix products run on tensor cores",
            points=20,
            metric="tensor_core_share.yes",
            at_least=0.9,
            says="of the time in matrix products was spent in tensor-core kernels",
            hint="fp32 products run on the ordinary cores unless torch.set_float32_matmul_precision allows TF32.",
        ),
        TraceCheck(
            name="half_precision",
            title="Forward and backward run in bf16",
            points=20,
            metric="half_share",
            at_least=0.9,
            says="of the time in matrix products was spent on 16-bit inputs",
            hint="torch.autocast around forward and loss chooses the precision of each operation.",
        ),
    ),
    peek=("kernels", "launches", "half_share", "syncs"),
)
