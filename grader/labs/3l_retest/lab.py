from grader.kinds.answers import AnswersLab, Cause, Number, Question

LAB = AnswersLab(
    name="3l_retest",
    title="Retest: what does the step spend its time on?",
    phase=3,
    goal="Five traces, mixed. Say of each what holds it back, and give one number; not every step can be made shorter by a small change.",
    questions=(
        Question(
            name="a",
            trace="gpt_compute",
            parts=(Cause(points=12), Number("tflops", 8, "tflops", within=0.1)),
            hints=(
                "The GPU is never idle. How fast is it at what it does?",
                "Take the costliest operation: its shapes give the arithmetic, the trace its milliseconds. Which peak is that near to?",
                "A product of (n, k) and (k, m) takes 2 n k m operations. Divide those of all its calls in a step by the time "
                "they take, and compare with what an H200 reaches on the ordinary units and on tensor cores.",
            ),
        ),
        Question(
            name="b",
            trace="resnet_memory",
            parts=(Cause(points=12), Number("matmul", 8, "matmul", within=0.04, share=True)),
            hints=(
                "Is it calculating what a ResNet is about?",
                "Put the time in convolutions beside the length of a step; then look at what the other kernels are called.",
                "Sums, products and casts over whole tensors, hundreds of them: each reads and writes everything once. The share "
                "is milliseconds in matrix products and convolutions over milliseconds of a step.",
            ),
        ),
        Question(
            name="c",
            trace="gpt_launch_fixed",
            parts=(Cause(points=12), Number("launches", 8, "launches", within=0.05)),
            hints=(
                "Three quarters of its kernels are shorter than 10 us. Does the GPU wait for them to be launched?",
                "Compare the number of kernels with the number of launches, and read how long the GPU is idle.",
                "A CUDA graph replays a whole step with one call of the host. Tiny kernels that follow each other without a gap "
                'hold nothing up, and where no other cause stands out, the answer is "healthy".',
            ),
        ),
        Question(
            name="d",
            trace="gpt_comm",
            parts=(Cause(points=12), Number("best_ms", 8, "best_ms", within=0.1)),
            hints=(
                "Two GPUs train one model. What do they do when they do not calculate?",
                "Look for what is called NCCL, and for what runs beside it.",
                "The exchange of the gradients begins when the backward pass is over. If it ran beside kernels, the step would "
                "be shorter by its time.",
            ),
        ),
        Question(
            name="e",
            trace="gpt_comm_fixed",
            parts=(Cause(points=12), Number("hidden", 8, "hidden", within=0.05, share=True)),
            hints=(
                "It exchanges as many bytes as trace d. Does anybody wait for them?",
                "Look where the exchange lies in the timeline, and what lies beside it.",
                "The share is that of the time of communication in which a kernel runs on the same GPU. What is left over is a few "
                'per cent of the step: where no other cause stands out, the answer is "healthy".',
            ),
        ),
    ),
)
