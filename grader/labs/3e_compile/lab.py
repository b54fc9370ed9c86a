from grader.labs import gpt
from grader.labs.lab import AtMost, Lab, Logs, Parity, Throughput, TraceCheck

LENGTHS = 4  # different ones; both forms have as many

# wide enough that kernels outlast their launches, narrow enough that most of the time goes to elementwise work
GPU = gpt.on_gpu(
    options={
        "layers": 4,
        "width": 512,
        "heads": 8,
        "length": 1024,
        "lengths": (512, 640, 768, 1024),
        "batch_size": 32,
        "lr": 3e-5,  # at 1e-4 honest trainings from one seed were 0.0066 apart after 90 steps (NVIDIA H200)
    },
    gpu_memory=24.7e9,
    minimum_gain=1.6,
    noise=0.01,
    parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
)

# Twice 13 million weights at 16 bytes (fp32, gradient, Adam's two moments) and CUDA's half GB are 1.4 GB. The full form has
# 0.73 GB a window beyond that.
SMALLER = (GPU.smaller("small", 7.5e9, {"batch_size": 6}, measured="NVIDIA H200"),)

LAB = Lab(
    name="3e_compile",
    title="A model made to be debugged",
    phase=3,
    goal=(
        "This model is written for people to debug, and torch.compile gives up on it. Turn forward pass and loss into one graph, for windows of "
        "four lengths."
    ),
    cause="memory-bound",
    close=("compute-bound",),  # on an H200 the diagnosis is 55% sure of memory-bound
    forms={
        "cuda": GPU,
        # A CPU compiles for long and gains little that could be relied on: only the training and the logs are compared.
        # What the compiler stumbles over `peek` counts all the same.
        "cpu": gpt.on_cpu(
            options={
                "layers": 1,
                "width": 32,
                "heads": 4,
                "length": 48,
                "lengths": (16, 24, 32, 48),
                "batch_size": 4,
                "lr": 1e-3,
            },
            minimum_gain=None,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.02, held_out=0.1),
        ),
    },
    smaller=SMALLER,
    throughput=Throughput(
        points=40,
        hints=(
            "How often is a tensor read from memory and written back on its way through one normalisation?",
            "`lab.profile()` shows a busy GPU that hardly does matmuls. Which operators are the rest? Compile the loop as it is, and look at "
            "`graph_breaks` of `lab.peek()`. It counts the lines at which the compiler gave up.",
            "Compile the function that computes the loss. With fullgraph=True, torch.compile names the first line that it can't take, and the "
            "reason. Remove these lines one after another. Then make sure that a few graphs are enough for all lengths.",
        ),
    ),
    trace=(
        TraceCheck(
            name="breaks",
            title="One graph without breaks",
            points=10,
            wanted=AtMost("compiled.graph_breaks", 0.0, none_at=5.0),
            says="lines at which torch.compile gave up",
            absent="Nothing was compiled, or hardly any of the forward pass. So there is no graph that could be whole.",
            hints=(
                "Where does this code need a value in Python, while the compiler only plans the tensors?",
                "`torch.compile(..., fullgraph=True)` raises an error at the first break. `torch._logging.set_logs(graph_breaks=True)` at the "
                "top of train(job) prints each break with its line, and `lab.run()` shows it.",
                "Return values for a log as tensors. Replace a branch on a tensor by arithmetic, such as clamp, where, or a factor that may be "
                "1. What numpy computes from a length, torch can compute. Move printing and checks outside.",
            ),
        ),
        TraceCheck(
            name="recompiles",
            title="Compiled no more often than there are lengths",
            points=15,
            wanted=AtMost("compiled.recompiles", LENGTHS - 1.0),
            says="times torch.compile compiled code again",
            absent="Nothing was compiled, or hardly any of the forward pass.",
            hints=(
                "Apart from the tensors' values, which things change from step to step?",
                "`torch._logging.set_logs(recompiles=True)` prints the guard that failed for each recompilation. A guard is an assumption that "
                "no longer held.",
                "The compiler assumes that Python values (a dictionary's key, an object's attribute) stay the same. Four lengths may be four "
                "graphs (dynamic=False), or one for the first length and one for all others (the default). In the lesson both were equally fast. "
                "One graph for all (dynamic=True) was slower.",
            ),
        ),
        TraceCheck(
            name="kernels",
            title="Half of the kernels",
            points=15,
            wanted=AtMost("kernels", 270.0, none_at=540.0),
            says="kernels ran on the GPU per step",
            hints=(
                "Which kernels exist only because each line of Python is a separate operator?",
                "Look at `kernels` of `lab.peek()`. Compiled kernels have names that begin with triton_ and list what was fused.",
                "A graph break in each block keeps the compiler from fusing across it. Compile forward and loss together. The backward pass is "
                "then compiled as well.",
            ),
        ),
        # breaks are seen in what was compiled; what was left outside of it shows here
        TraceCheck(
            name="waits",
            title="Nothing asks for a number",
            points=10,
            wanted=AtMost("syncs", 0.0, none_at=10.0),
            says="times per step the CPU waited for the GPU",
            hints=(
                "Which lines still read a value in the middle of a step, wherever they stand?",
                "`syncs` of `lab.peek()` counts them. Even a function without a break waits if its caller stops to read a value.",
                "A branch on a tensor, `.item()` and `print` each wait. Return the values as tensors from the compiled function, and log those.",
            ),
        ),
    ),
    peek=("graph_breaks", "recompiles", "kernels", "launches"),
    logs=Logs(("loss", "largest")),
)
