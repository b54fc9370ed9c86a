from grader.labs import gpt
from grader.labs.lab import Growth, Lab, Logs, Parity, Throughput

LAB = Lab(
    name="3g_leak",
    title="A loop that runs out of memory",
    phase=3,
    goal="Each step of this loop leaves memory behind, until there is none. Find every reference that keeps it, and keep the logs.",
    cause="launch-bound",
    forms={
        # a short step on a small model: a grade makes some thousand steps, and the untouched loop has to live through it
        "cuda": gpt.on_gpu(
            options={"layers": 6, "width": 256, "heads": 4, "length": 128, "batch_size": 8, "lr": 1e-4},
            gpu_memory=4e9,
            minimum_gain=1.0,
            block_s=0.5,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
        "cpu": gpt.on_cpu(
            options={"layers": 3, "width": 64, "heads": 4, "length": 64, "batch_size": 8, "lr": 1e-3},
            minimum_gain=1.0,
            block_s=0.5,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
            exact_memory=True,
        ),
    },
    throughput=Throughput(
        points=20,
        healthy=True,
        title="No speed lost",
        hints=(
            "Which of your changes makes the loop do more in each step than before?",
            "`lab.peek()` counts the waits (`syncs`) and the operators of a step. Compare them with the untouched loop's. Reading a value in "
            "each step ends the leak, but it makes the CPU wait.",
            "Keep detached tensors on the device, and a fixed number of them. Take a sum in place of a list, or the last one in place of all. "
            "Leave out lines that only clean up (`empty_cache`, `gc.collect`). They free nothing that something still refers to.",
        ),
    ),
    memory=Growth(
        points=70,
        at_most=40e3,  # honest loops left 3 to 20 KB on a CPU, and the smallest of the four leaks 82
        hints=(
            "Which tensors of a step are still referred to when the next step begins? What refers to them?",
            "`lab.run(100)` says how much memory grows per step. Predict from the shapes how much each list and each average keeps. The logits "
            "are batch x length x 256, the activations batch x length x width, 4 bytes per value. Take one of them out at a time, and look "
            "again. A view keeps the whole tensor that it is cut from.",
            "The loop keeps four things. The running confidence keeps a graph that no backward pass ever frees. The losses keep the nodes of "
            "each step's graph. A view of the logits' last rows keeps all logits, even when it is detached. The hook keeps the activations. Log "
            "detached tensors. Keep ten values where ten are needed (`collections.deque` has a `maxlen`). Compute each in its own step, so that "
            "you needn't keep the tensor that it comes from. Let the hook overwrite what it kept.",
        ),
    ),
    trace=(),
    peek=("syncs", "launches", "cpu_ops"),
    logs=Logs(("loss", "average", "confidence", "accuracy", "activation")),
)
