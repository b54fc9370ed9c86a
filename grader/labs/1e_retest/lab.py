from grader.kinds.answers import AnswersLab, Cause, Number, Question

LAB = AnswersLab(
    name="1e_retest",
    title="Retest: five short questions",
    phase=1,
    goal="Five traces, mixed. Say what holds each of them back, and give one number.",
    questions=(
        Question(
            name="a",
            trace="gpt_transfer",
            parts=(Cause(points=12), Number("best_ms", 8, "best_ms", within=0.1)),
            hints=(
                "The GPU is busy nearly all the time. With what?",
                "Put the copies' milliseconds beside those of the kernels.",
                "The copies have no kernel beside them. Without them the step would be shorter by their time.",
            ),
        ),
        Question(
            name="b",
            trace="resnet_launch",
            parts=(Cause(points=12), Number("idle", 8, "gpu_idle_unprofiled", within=0.03, share=True)),
            hints=(
                "How long does one kernel last, on average?",
                "Divide the busy time by the number of kernels. Then see whether the host ever waits.",
                "There are hundreds of kernels of a few microseconds, and the host can't launch them as fast as the "
                "GPU is done. For idle, take the step's length without the profiler.",
            ),
        ),
        Question(
            name="c",
            trace="gpt_memory",
            parts=(Cause(points=12), Number("matmul", 8, "matmul", within=0.04, share=True)),
            hints=(
                "The GPU is never idle. Is it calculating what the model is about?",
                "Put the time in matmuls and convolutions beside the length of a step.",
                "All other kernels read tensors, do little with them, and write them back. They wait for memory. The "
                "share is milliseconds in matmuls over milliseconds of a step.",
            ),
        ),
        Question(
            name="d",
            trace="gpt_memory_fixed",
            parts=(Cause(points=12), Number("idle", 8, "gpu_idle_unprofiled", within=0.03, share=True)),
            hints=(
                "What could a change take away here?",
                "Go through idle, copies, waits and matmuls on the wrong units, one by one.",
                "The GPU is hardly idle, nothing waits, and 16-bit matmuls on tensor cores take most of the step. "
                'That is "healthy".',
            ),
        ),
        Question(
            name="e",
            trace="resnet_sync",
            parts=(Cause(points=12), Number("waits", 8, "syncs", within=0.05)),
            hints=(
                "Who waits for whom here, and in which order?",
                "Read `syncs` first. Then look where in the step the GPU is idle.",
                "The host stops for the GPU many times per step, and has launched nothing when the GPU is done.",
            ),
        ),
    ),
)
