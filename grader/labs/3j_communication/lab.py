from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput, TraceCheck

# few tokens for many weights: a micro-batch is computed in about the time that its gradients need to be averaged. And
# few, wide layers: with six of 1,536 the launches held both loops back. The starter's blocks agree within 1% now, the
# solution's still differ by 5%: it gained 1.30 to 1.47x, what was certain of it 1.25 to 1.35x (five grades, H200, torch 2.11)
GPU = Form(
    workload="grader.workloads.gpt",
    options={"layers": 2, "width": 3072, "heads": 24, "length": 256, "batch_size": 64, "lr": 5e-5},
    data="text",
    # calculated as for the small form below
    gpu_memory=11e9,
    minimum_gain=1.2,
    noise=0.05,
    # 1 - cosine: the solution 0.00001, only one of two layers averaged 0.018 (H200, torch 2.11); gradients sent in bf16 0.00001 (CPU)
    parity=Parity(steps=24, loss=0.003, norm=0.01, cosine=0.998, drift=0.02, held_out=0.05),
    flops=6 * 226e6 * 32 * 256,  # 2 forward, 4 backward for each weight and each of a rank's tokens
    matrix=4 * 3072 * 3072,
    # NVLink multicast can upset a host whose GPUs others share, and two ranks gain nothing from it
    environment={
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    },
    ranks=2,
    exchanged=57_000_000,
    max_tokens_per_forward=1024,
)

# On each GPU twice 102 million weights at 16 bytes (fp32, gradient, Adam's two moments), a tenth more for their copies in bf16,
# 0.2 GB of activations, CUDA's half GB and NCCL's
SMALLER = (
    GPU.smaller(
        "small",
        5.9e9,
        {"width": 2048, "heads": 16},
        flops=6 * 100.7e6 * 32 * 256,
        matrix=4 * 2048 * 2048,
        exchanged=25_400_000,
    ),
)

LAB = Lab(
    name="3j_communication",
    title="Two GPUs, one model",
    phase=3,
    goal="Two ranks train one model. Find out what holds them back, and train the same model faster.",
    cause="communication-bound",
    forms={
        "cuda": GPU,
        # two processes that talk by gloo: what a message costs is larger, what is counted is the same
        "cpu": Form(
            workload="grader.workloads.gpt",
            options={"layers": 4, "width": 96, "heads": 4, "length": 16, "batch_size": 16, "lr": 2e-4},
            data="text",
            minimum_gain=1.8,
            noise=0.05,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.998, drift=0.02, held_out=0.1),
            flops=6 * 466_944 * 8 * 16,
            matrix=4 * 96 * 96,
            threads=1,
            environment={"OMP_NUM_THREADS": "1"},
            ranks=2,
            # a quarter of the gradients: one rank that trains alone, and sends nothing, is faster here than two
            exchanged=118_000,
            max_tokens_per_forward=16,
        ),
    },
    smaller=SMALLER,
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=40,
        hints=(
            "How many times per step does a rank send something? How large is each message, and what does the rank do until it has arrived?",
            "`collectives` of `lab.peek()` is parameters times micro-batches. On GPUs `lab.profile()` shows the communication as a separate "
            "lane. What runs beside it?",
            "Send a few large messages in place of many small ones. Send while the backward pass still computes. Send only the gradients that "
            "the optimizer will use, the sum over the micro-batches. torch.nn.parallel has a wrapper for the first two. Its context manager "
            "skips the messages that nobody needs.",
        ),
    ),
    trace=(
        TraceCheck(
            name="collectives",
            title="Few messages per step",
            points=30,
            metric="collectives",
            at_most=40.0,
            none_at=400.0,
            says="times per step a rank talked to the others",
            hints=(
                "Do the other ranks need a gradient before the last micro-batch is done?",
                "Divide `collectives` of `lab.peek()` by the parameters of the model. How often is each gradient sent?",
                "Average once per optimizer step, after the last micro-batch, and many gradients at a time. A bucket of some megabytes costs as "
                "many messages as one bias.",
            ),
        ),
        TraceCheck(
            name="exposed",
            title="Communication beside the computation",
            points=20,
            metric="comm_exposed",
            at_most=0.12,
            none_at=0.4,
            says="of a step went to communication with nothing beside it",
            hints=(
                "The last layer's gradients are there first. What could you send while the first layers' are computed?",
                "Look at `comm_exposed` of `lab.peek()`. It counts communication kernels beside which no other kernel runs.",
                "Start to average a bucket of gradients on a second stream as soon as all of them are there. Wait for all buckets before the "
                "optimizer's step. The wrapper for data parallel training does that in its backward pass.",
            ),
            form="cuda",
        ),
    ),
    peek=("collectives", "exchanged", "product_flops", "largest_product", "comm_exposed"),
)
