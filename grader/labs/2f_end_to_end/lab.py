from grader.labs.lab import AtMost, Form, Lab, Logs, Parity, Throughput, TraceCheck

LAB = Lab(
    name="2f_end_to_end",
    title="All of phase 2 at once",
    phase=2,
    goal="Everything that phase 2 is about is wrong here. Choose your order, and leave the GPU nothing to wait for.",
    cause="input-bound",
    forms={
        # the model is wide enough to keep the GPU busy for longer than it takes to launch a step
        "cuda": Form(
            workload="grader.workloads.tiles",
            options={"bands": 3, "size": 128, "width": 256, "batch_size": 64, "lr": 1e-4},
            data="tiles 128",
            gpu_memory=4e9,
            minimum_gain=10.0,
            parity=Parity(steps=24, loss=0.01, norm=0.015, cosine=0.985, drift=0.05, held_out=0.2),
        ),
        "cpu": Form(
            workload="grader.workloads.tiles",
            options={"bands": 3, "size": 64, "width": 8, "batch_size": 16, "lr": 3e-4},
            data="tiles 64",
            minimum_gain=1.8,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=50,
        hints=(
            "What is the longest thing in a step now? And when that is gone?",
            "Run `lab.profile()` after each change. Find the largest hatched stretch, and what the CPU does "
            "meanwhile. Take that next. As long as a sample takes milliseconds of Python, nothing else shows.",
            "First replace the Python loop over bytes by one table on the device. Then make one query per batch, over a connection that you "
            "keep. Then send each batch in one piece, and wait for no value that is only logged. Try whether workers and a copy ahead still gain.",
        ),
    ),
    trace=(
        TraceCheck(
            name="idle",
            title="The GPU is hardly idle",
            points=40,
            wanted=AtMost("gpu_idle_unprofiled", 0.3, none_at=0.9),
            says="of a step, measured without the profiler, the GPU had nothing to do",
            hints=(
                "Does the GPU wait for data, a copy, the CPU's next launch, or a CPU that waits for the GPU?",
                "Look at `gpu_idle_unprofiled` of `lab.profile()`, with `data_wait`, the copies and `syncs` beside "
                "it. They tell you which of the four is left.",
                "Have batches ready before the loop asks for them. Workers, cheap samples, pinned memory and a copy one step ahead all help. "
                "Keep the CPU ahead of the GPU, so read no value in a step. Then only the launching itself is left.",
            ),
        ),
    ),
    peek=("counted.connections", "data_wait", "h2d_copies", "syncs", "h2d_pinned"),
    logs=Logs(("loss", "accuracy"), absolute=0.13),
    # 2 of 16 guesses that were close, on a CPU; of a GPU's 64 there were 3 (0.047) in each of three honest runs on an H200
)
