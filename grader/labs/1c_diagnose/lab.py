from grader.kinds.answers import AnswersLab, Cause, Number, Place, Question

# Traces are known to learners by a letter: their file names give the cause away.
LAB = AnswersLab(
    name="1c_diagnose",
    title="Diagnose: what holds these five steps back?",
    phase=1,
    goal="Five loops were recorded on an H200. Say what holds each of them back, and give the number that shows it.",
    questions=(
        Question(
            name="a",
            trace="resnet_input",
            parts=(
                Cause(points=10),
                Number("idle", 5, "gpu_idle_unprofiled", within=0.03, share=True),
                Place("phase", 5),
            ),
            hints=(
                "What does the host do while the GPU has nothing to do?",
                "In lab.look, compare the lanes of host and GPU, and the host's milliseconds of each phase.",
                "Idle is 1 - (milliseconds the GPU is busy) / (milliseconds of a step without the profiler). The phase is the one in which "
                "the host spends most of the step. What the host does there names the cause.",
            ),
        ),
        Question(
            name="b",
            trace="gpt_launch",
            parts=(
                Cause(points=10),
                Number("idle", 5, "gpu_idle_unprofiled", within=0.03, share=True),
                Number("launches", 5, "launches", within=0.05),
            ),
            hints=(
                "The GPU is idle often and briefly. Who is late?",
                "Divide the GPU's busy time by the number of kernels, and the length of the step by the number of launches.",
                "The kernels last a few microseconds each, a launch costs about as much, and the host never waits. For idle, take the "
                "step's length without the profiler, because the profiler slows down just such a host.",
            ),
        ),
        Question(
            name="c",
            trace="gpt_sync_stacks",
            parts=(Cause(points=8), Number("waits", 4, "syncs", within=0.05), Place("line", 8, lines=True)),
            hints=(
                "Why doesn't the host run ahead of the GPU here?",
                "Look at the row `syncs`, and at the table of source lines, which this trace has.",
                "A line that reads a value from the GPU makes the host wait. Afterwards the GPU waits for the host. Name the line with most "
                "waits, as the table has it.",
            ),
        ),
        Question(
            name="d",
            trace="resnet_transfer",
            parts=(Cause(points=10), Place("phase", 5), Number("best_ms", 5, "best_ms", within=0.1)),
            hints=(
                "A GPU that is busy isn't always calculating.",
                "Compare the time of the copies with that of the kernels. From which kind of memory do the copies come?",
                "While a batch is copied from pageable memory, nothing else happens. If that took no time, a step "
                "would be shorter by all of it. Take the step without the profiler, minus the copies.",
            ),
        ),
        Question(
            name="e",
            trace="gpt_healthy",
            parts=(Cause(points=14), Number("idle", 6, "gpu_idle_unprofiled", within=0.03, share=True)),
            hints=(
                "Not every loop is ill.",
                "How much of the step is the GPU idle, and how does it do its matmuls?",
                "The GPU is hardly ever idle, copies run beside kernels, and the matmuls are in 16 bits on tensor "
                'cores. Where no cause stands out, answer "healthy".',
            ),
        ),
    ),
)
