from grader.kinds.answers import AnswersLab, Cause, Number, Question

LAB = AnswersLab(
    name="3l_retest",
    title="Retest: what does the step spend its time on?",
    phase=3,
    goal="Five traces, mixed. Say what holds each of them back, and give one number. Not every step can be made shorter by a small change.",
    questions=(
        Question(
            name="a",
            trace="gpt_compute",
            parts=(Cause(points=12), Number("tflops", 8, "tflops", within=0.1)),
            hints=(
                "The GPU is never idle. How fast is it at its work?",
                "Take the most expensive operation. Its shapes give you the arithmetic, the trace its milliseconds. Which peak is it near?",
                "A matmul of (n, k) and (k, m) takes 2 n k m operations. Add those of all its calls in a step and divide by their time. Compare "
                "with the rate that an H200 reaches on the CUDA cores and on tensor cores.",
            ),
        ),
        Question(
            name="b",
            trace="resnet_memory",
            parts=(Cause(points=12), Number("matmul", 8, "matmul", within=0.04, share=True)),
            hints=(
                "Is the GPU calculating what a ResNet is about?",
                "Put the time in convolutions beside the length of a step. Then look at the names of the other kernels.",
                "They are hundreds of sums, multiplications and casts over whole tensors. Each reads and writes everything once. The share is "
                "milliseconds in matmuls and convolutions over milliseconds of a step.",
            ),
        ),
        Question(
            name="c",
            trace="gpt_launch_fixed",
            parts=(Cause(points=12), Number("launches", 8, "launches", within=0.05)),
            hints=(
                "Three quarters of its kernels are shorter than 10 us. Does the GPU wait for them to be launched?",
                "Compare the number of kernels with the number of launches, and read how long the GPU is idle.",
                "A CUDA graph replays a whole step with one call of the host. Tiny kernels that follow each other without a gap hold nothing up. "
                'Where no other cause stands out, answer "healthy".',
            ),
        ),
        Question(
            name="d",
            trace="gpt_comm",
            parts=(Cause(points=12), Number("best_ms", 8, "best_ms", within=0.1)),
            hints=(
                "Two GPUs train one model. What do they do when they don't calculate?",
                "Look for NCCL in the names, and for kernels that run beside it.",
                "The exchange of the gradients begins when the backward pass is over. If it ran beside kernels, the step would be shorter by its "
                "time.",
            ),
        ),
        Question(
            name="e",
            trace="gpt_comm_fixed",
            parts=(Cause(points=12), Number("hidden", 8, "hidden", within=0.05, share=True)),
            hints=(
                "It exchanges as many bytes as trace d. Does anybody wait for them?",
                "Look where the exchange lies in the timeline, and what lies beside it.",
                "The share is the part of the communication's time in which a kernel runs on the same GPU. The rest is a few per cent of the "
                'step. Where no other cause stands out, answer "healthy".',
            ),
        ),
    ),
)
