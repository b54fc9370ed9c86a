from grader.labs.lab import Form, Growth, Lab, Logs, Parity, Prediction, Throughput

LAB = Lab(
    name="3g_leak",
    title="A loop that runs out of memory",
    phase=3,
    goal="Each step of this loop leaves memory behind, until there is none. Find every reference that keeps it, and keep the logs.",
    cause="launch-bound",
    forms={
        # a short step on a small model: a grade makes some thousand steps, and the untouched loop has to live through it
        "cuda": Form(
            workload="grader.workloads.gpt",
            options={"layers": 6, "width": 256, "heads": 4, "length": 128, "batch_size": 8, "lr": 1e-4},
            data="text",
            gpu_memory=4e9,
            minimum_gain=1.0,
            noise=0.03,
            block_s=0.5,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
        "cpu": Form(
            workload="grader.workloads.gpt",
            options={"layers": 3, "width": 64, "heads": 4, "length": 64, "batch_size": 8, "lr": 1e-3},
            data="text",
            minimum_gain=1.0,
            noise=0.03,
            block_s=0.5,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
            threads=1,
            environment={"OMP_NUM_THREADS": "1"},
            exact_memory=True,
        ),
    },
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=20,
        healthy=True,
        title="No speed lost",
        hints=(
            "Which of your changes makes the loop do more in each step than it did?",
            "`lab.peek()` counts the waits (`syncs`) and the operators of a step: compare them with the untouched loop's. A "
            "number that is read in each step ends the leak, and makes the CPU wait.",
            "Keep numbers as detached tensors on the device, a fixed number of them: a sum in place of a list, the last one in "
            "place of all. Leave out what only cleans up (`empty_cache`, `gc.collect`): it frees nothing that is referred to.",
        ),
    ),
    memory=Growth(
        points=70,
        at_most=24e3,
        hints=(
            "What of a step is still referred to when the next one begins, and by whom?",
            "`lab.run(100)` says by how much memory grows a step. Predict from the shapes what each list and each average keeps: "
            "batch x length x 256 logits, batch x length x width activations, 4 bytes each. Take one of them out at a time, and "
            "look again. A view keeps all of the tensor that it is cut from.",
            "Four things are kept: a graph that no backward pass ever frees, by the running confidence; the nodes of each "
            "step's graph, by the losses; all logits, by a view of their last rows, for which detaching is not enough; the "
            "activations, by the hook. Log detached numbers, keep ten numbers where ten are needed (`collections.deque` has "
            "a `maxlen`), compute each before the tensor it comes from goes, and let the hook overwrite what it kept.",
        ),
    ),
    trace=(),
    peek=("syncs", "launches", "cpu_ops"),
    logs=Logs(("loss", "average", "confidence", "accuracy", "activation")),
)
