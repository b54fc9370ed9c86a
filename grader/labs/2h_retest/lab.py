from grader.kinds.answers import AnswersLab, Cause, Number, Question

LAB = AnswersLab(
    name="2h_retest",
    title="Retest: is the GPU fed?",
    phase=2,
    goal="Five traces, mixed. Say what holds each of them back, and give one number. Not every loop needs feeding.",
    questions=(
        Question(
            name="a",
            trace="gpt_input",
            parts=(Cause(points=12), Number("data_wait", 8, "data_wait", within=0.05, share=True)),
            hints=(
                "What does the training process do while the GPU is idle?",
                "Compare the lanes of the host and of the GPU. Then read how much of a step one call of the host takes.",
                "The host sits in the DataLoader's __next__ for most of the step. `data_wait` is that share of the step in the trace.",
            ),
        ),
        Question(
            name="b",
            trace="resnet_input_fixed",
            parts=(Cause(points=12), Number("overlap", 8, "h2d_overlap", within=0.05, share=True)),
            hints=(
                "What could a faster input win here at most?",
                "Read how long the GPU is idle in a step, and how long the copies take, before you say what is wrong.",
                "A share can be as bad as it gets and not matter. Put the copies' milliseconds beside those of a "
                'step. Where the GPU is idle for next to nothing and no other cause stands out, answer "healthy".',
            ),
        ),
        Question(
            name="c",
            trace="gpt_sync",
            parts=(Cause(points=12), Number("best_ms", 8, "best_ms", within=0.1)),
            hints=(
                "A quarter of the step is idle, in small pieces. What does the host do in them?",
                "Count the calls in which the host waits for the GPU, and compare with the launches.",
                "Without the waits, the idle pieces that follow them would vanish. A step would last about as long as the GPU is busy.",
            ),
        ),
        Question(
            name="d",
            trace="gpt_transfer_fixed",
            parts=(Cause(points=12), Number("overlap", 8, "h2d_overlap", within=0.05, share=True)),
            hints=(
                "537 MB cross the bus per step. Does anybody wait for them?",
                "Look where the copies lie in the timeline, and what lies beside them.",
                "If kernels run beside the copies, the copies cost no time, however long they are. Without idle stretches, and "
                'without a cause that stands out, answer "healthy".',
            ),
        ),
        Question(
            name="e",
            trace="resnet_compute",
            parts=(Cause(points=12), Number("matmul", 8, "matmul", within=0.04, share=True)),
            hints=(
                "Would this GPU get more done if you fed it faster?",
                "It is busy for nearly the whole step. With what, and on which units?",
                "Most of the step is convolutions that don't run on tensor cores, so feeding isn't the question. The "
                "share is milliseconds in matmuls and convolutions over milliseconds of a step.",
            ),
        ),
    ),
)
