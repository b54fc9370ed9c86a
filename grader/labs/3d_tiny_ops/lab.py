from grader.labs import gpt
from grader.labs.lab import AtMost, Lab, Parity, Throughput, TraceCheck

# Both forms have as many layers and heads, so that a step calls as many operators in both.
LAYERS = {"layers": 4, "heads": 4}

LAB = Lab(
    name="3d_tiny_ops",
    title="A GPT written out by hand",
    phase=3,
    goal="Everything in this step is written out by hand, the optimizer as well. Find out what holds it back, and train the same model faster.",
    cause="launch-bound",
    forms={
        # a batch so small that a kernel runs for less time than its launch takes
        "cuda": gpt.on_gpu(
            options=LAYERS | {"width": 256, "length": 128, "batch_size": 8, "lr": 1e-4},
            gpu_memory=2.5e9,
            minimum_gain=3.0,
            noise=0.05,
            parity=Parity(steps=24, loss=0.003, norm=0.01, cosine=0.99, drift=0.02, held_out=0.05),
        ),
        # a CPU launches nothing, but it pays for each call of an operator as well
        "cpu": gpt.on_cpu(
            options=LAYERS | {"width": 32, "length": 16, "batch_size": 4, "lr": 1e-3},
            minimum_gain=2.2,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.99, drift=0.02, held_out=0.1),
        ),
    },
    throughput=Throughput(
        points=40,
        hints=(
            "How long does the GPU work on a tensor of 1,024 rows, and how long does Python take to ask for that work?",
            "On a GPU, `lab.profile()` shows idle time for most of the step, and nearly all kernels are shorter than 10 us. Which part of the "
            "loop launches most of them: forward, backward or the optimizer? On a CPU, comment a part out and look at `cpu_ops` of `lab.peek()`. "
            "The difference belongs to that part.",
            "Ask for more work with each call. Take the optimizer of torch.optim that updates all parameters at once. Take the functions of "
            "torch.nn.functional that do a whole normalisation, activation, loss or attention. One call in the forward pass also means fewer "
            "calls in the backward pass.",
        ),
    ),
    trace=(
        TraceCheck(
            name="operators",
            title="A step calls few operators",
            points=20,
            wanted=AtMost("cpu_ops", 3000.0, none_at=8000.0),
            says="operators were called per step, nested ones included",
            hints=(
                "How many calls does one normalisation make? And how many does each parameter need?",
                "Look at `cpu_ops` of `lab.peek()`. Comment a part out (the optimizer, the loss) and look again. The difference is what that "
                "part calls. Views count as well. A split, a permute or a slice is a call, though nothing is computed.",
                "Make one call each for a normalisation, an activation, a loss, the attention of all heads, and the update of all parameters. "
                "Gradients that are None need not be set to zero, and nothing is added to them.",
            ),
        ),
        TraceCheck(
            name="launches",
            title="A fifth of the launches",
            points=15,
            wanted=AtMost("launches", 400.0, none_at=2000.0),
            says="times per step the CPU launched GPU work",
            hints=(
                "The CPU launches one kernel after another. How many are there in a step, and what does one launch cost?",
                "Divide the time of a step by `launches` of `lab.peek()`.",
                "Fused functions and a fused optimizer launch one kernel in place of ten. A CUDA graph launches a whole step with one call.",
            ),
        ),
        TraceCheck(
            name="kernels",
            title="A fifth of the kernels",
            points=15,
            wanted=AtMost("kernels", 400.0, none_at=2000.0),
            says="kernels ran on the GPU per step",
            hints=(
                "You can launch the same kernels faster. Are they all needed?",
                "Compare `kernels` of `lab.peek()` with `launches`. A CUDA graph changes only one of the two.",
                "Each kernel reads its input from memory and writes its result there. A kernel that does a whole normalisation, activation or "
                "update reads and writes once.",
            ),
        ),
    ),
    peek=("cpu_ops", "launches", "kernels", "tiny_kernel_share"),
)
