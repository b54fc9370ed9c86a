from grader.labs.lab import Form, Lab, Logs, Parity, Prediction, Throughput, TraceCheck

LENGTHS = 4  # different ones; both forms have as many

LAB = Lab(
    name="3e_compile",
    title="A model made to be debugged",
    phase=3,
    goal="This model is written for people to debug, and torch.compile gives up on it. Make of forward pass and loss one graph, for windows of four lengths.",
    cause="memory-bound",
    forms={
        # wide enough that kernels outlast their launches, narrow enough that most of the time goes to elementwise work
        "cuda": Form(
            workload="grader.workloads.gpt",
            options={
                "layers": 4,
                "width": 512,
                "heads": 8,
                "length": 1024,
                "lengths": (512, 640, 768, 1024),
                "batch_size": 32,
                "lr": 3e-5,  # at 1e-4 honest trainings from one seed were 0.0066 apart after 90 steps (NVIDIA H200)
            },
            data="text",
            gpu_memory=24.7e9,
            minimum_gain=1.6,
            noise=0.01,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
        # A CPU compiles for long and gains little that could be relied on: only the training and the logs are compared.
        # What the compiler stumbles over `peek` counts all the same.
        "cpu": Form(
            workload="grader.workloads.gpt",
            options={
                "layers": 1,
                "width": 32,
                "heads": 4,
                "length": 48,
                "lengths": (16, 24, 32, 48),
                "batch_size": 4,
                "lr": 1e-3,
            },
            data="text",
            minimum_gain=None,
            noise=0.03,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.02, held_out=0.1),
            threads=1,
            environment={"OMP_NUM_THREADS": "1"},
        ),
    },
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=40,
        hints=(
            "How often is a tensor read from memory and written back on its way through one normalisation?",
            "`lab.profile()`: the GPU is busy, and hardly any of that is matrix products. Which operators are the rest? Compile the "
            "loop as it is, and look with `lab.peek()`: `graph_breaks` says how many lines the compiler gave up at.",
            "torch.compile of the function that computes the loss; with fullgraph=True it names the first line that it cannot "
            "take, with the reason. Remove one after another. Then see that a few graphs do for all lengths.",
        ),
    ),
    trace=(
        TraceCheck(
            name="breaks",
            title="One graph without breaks",
            points=10,
            metric="compiled.graph_breaks",
            at_most=0.0,
            none_at=5.0,
            says="lines at which torch.compile gave up",
            absent="Nothing was compiled, so there is no graph that could be whole.",
            hints=(
                "What in this code needs to be known in Python, now, while the tensors are only being planned?",
                "`torch.compile(..., fullgraph=True)` raises an error at the first break. "
                "`torch._logging.set_logs(graph_breaks=True)` at the top of train(job) prints each with its line; `lab.run()` shows it.",
                "A number for a log stays a tensor and is returned. A branch on a tensor becomes arithmetic: clamp, where, a factor "
                "that may be 1. What numpy computes of a length, torch can compute. Printing and checks belong outside.",
            ),
        ),
        TraceCheck(
            name="recompiles",
            title="Compiled no more often than there are lengths",
            points=15,
            metric="compiled.recompiles",
            at_most=LENGTHS - 1.0,
            says="times torch.compile compiled code again",
            absent="Nothing was compiled.",
            hints=(
                "What is different from step to step, apart from the numbers in the tensors?",
                "`torch._logging.set_logs(recompiles=True)` prints for each recompilation the guard that failed: what was assumed, and "
                "no longer held.",
                "What Python needs as a number (the key of a dictionary, an attribute of an object) is assumed to stay the same. "
                "Four lengths may be four graphs (dynamic=False), the fastest in the lesson. dynamic=True, one for all, was slowest.",
            ),
        ),
        TraceCheck(
            name="kernels",
            title="Half of the kernels",
            points=15,
            metric="kernels",
            at_most=270.0,
            none_at=540.0,
            says="kernels ran on the GPU a step",
            hints=(
                "Which kernels only exist because each line of Python is an operator of its own?",
                "`kernels` of `lab.peek()`: compiled code has kernels whose names begin with triton_, and say what was fused.",
                "A graph break in each block keeps the compiler from fusing across it. Compile forward and loss together, and the backward "
                "pass is compiled as well.",
            ),
            form="cuda",
        ),
        # breaks are seen in what was compiled; what was left outside of it shows here
        TraceCheck(
            name="waits",
            title="Nothing asks for a number",
            points=10,
            metric="syncs",
            at_most=0.0,
            none_at=10.0,
            says="times a step the CPU waited for the GPU",
            hints=(
                "Which lines still need a number in the middle of a step, wherever they stand?",
                "`syncs` of `lab.peek()` counts them. A function that is compiled without a break is no whole graph as long as its "
                "caller stops to read a number.",
                "A branch on a tensor, `.item()` and `print` each wait. Return the numbers as tensors from what is compiled, and log "
                "those.",
            ),
            form="cuda",
        ),
    ),
    peek=("graph_breaks", "recompiles", "kernels", "launches"),
    logs=Logs(("loss", "largest")),
)
