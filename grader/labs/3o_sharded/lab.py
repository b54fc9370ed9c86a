from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput, TraceCheck

# few tokens for many weights: a micro-batch is computed in less time than its weights and gradients need to travel
GPU = Form(
    workload="grader.workloads.gpt",
    options={"layers": 2, "width": 3072, "heads": 24, "length": 256, "batch_size": 32, "lr": 5e-5},
    data="text",
    # calculated: twice 228 million weights at 16 bytes on each GPU, a tenth more for messages, CUDA's half GB and NCCL's
    gpu_memory=9.5e9,
    minimum_gain=1.6,
    noise=0.05,
    parity=Parity(steps=24, loss=0.003, norm=0.01, cosine=0.998, drift=0.02, held_out=0.05),
    flops=6 * 226e6 * 16 * 256,  # 2 forward, 4 backward for each weight and each of a rank's tokens
    matrix=4 * 3072 * 3072,
    # NVLink multicast can upset a host whose GPUs others share, and two ranks gain nothing from it
    environment={
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    },
    measured="",
    ranks=2,
    exchanged=57_000_000,
    max_tokens_per_forward=512,
)

# calculated likewise
SMALLER = (
    GPU.smaller(
        "small",
        5.9e9,
        {"width": 2048, "heads": 16},
        flops=6 * 100.7e6 * 16 * 256,
        matrix=4 * 2048 * 2048,
        exchanged=25_400_000,
    ),
)

LAB = Lab(
    name="3o_sharded",
    title="Half a model on each of two GPUs",
    phase=3,
    goal="Two ranks share one model's weights. Find out what holds them back, and train the same model faster.",
    cause="communication-bound",
    forms={
        "cuda": GPU,
        # two processes that talk by gloo: what a message costs is larger, what is counted is the same
        "cpu": Form(
            workload="grader.workloads.gpt",
            options={"layers": 2, "width": 128, "heads": 4, "length": 16, "batch_size": 16, "lr": 2e-4},
            data="text",
            # 146 ms of processor time became 57, half fixes had 112 and 91; the clock's time was never seen without other programs
            minimum_gain=2.0,
            noise=0.05,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.999, drift=0.02, held_out=0.1),
            flops=6 * 425_984 * 8 * 16,
            matrix=4 * 128 * 128,
            threads=1,
            environment={"OMP_NUM_THREADS": "1"},
            ranks=2,
            # a quarter of the gradients: one rank that trains alone, and sends nothing, is faster here than two
            exchanged=107_000,
            max_tokens_per_forward=16,
        ),
    },
    smaller=SMALLER,
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=60,
        hints=(
            "How often does each weight travel in a step, and how often its gradient? Which of these messages does the optimizer need?",
            "`collectives` of `lab.peek()` is a sum over groups and micro-batches. Count it yourself. A group is gathered for its forward "
            "pass, gathered again for its backward pass, and then its gradients are scattered. Between which of them do weights change?",
            "Gather each group once per step, and keep its weights until the last backward pass is over. Add up whole gradients on each "
            "rank, and scatter their sum once. `fully_shard` has an argument for the first, and the sharded model has two setters. Call both "
            "before each micro-batch. On a GPU, let weights travel in bf16 as well, by the policy of lesson 3.14.",
        ),
    ),
    trace=(
        TraceCheck(
            name="collectives",
            title="Few messages per step",
            points=30,
            metric="collectives",
            at_most=20.0,
            none_at=60.0,
            says="times per step a rank talked to the others",
            hints=(
                "The weights change once per step. How often must a rank gather them?",
                "Compare `collectives` of `lab.peek()` with the number of groups. With one gather and one scatter for each group, it would be "
                "twice that number.",
                "Free the gathered weights after the last backward pass only. Send gradients after the last backward pass only. Both are "
                "switched off for all other micro-batches.",
            ),
        ),
    ),
    peek=("collectives", "exchanged", "product_flops", "largest_product", "comm_exposed"),
)
