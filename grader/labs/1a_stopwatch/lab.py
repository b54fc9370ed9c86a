from grader.kinds.stopwatch import Clock, StopwatchLab, Timing

LAB = StopwatchLab(
    name="1a_stopwatch",
    title="Stopwatch: a benchmark that lies in five ways",
    phase=1,
    goal="Repair the benchmark, so that it gives the samples per second that the grader measures, for each of five trainings.",
    forms={
        "cuda": Clock(within=0.03),
        # here the five jobs are mostly waits, which a busy processor ends late
        "cpu": Clock(within=0.08, threads=1),
    },
    timings=(
        Timing(
            name="loading",
            title="Loading is part of the job",
            points=20,
            sizes={
                "batches": (5, 7),
                "batch_size": (16, 128),
                "last": None,
                "load_s": (0.005, 0.009),
                "log_s": (0.003, 0.005),
            },
            tells="In this job, more than half of the time goes into loading batches. Samples that you wait for aren't processed any faster.",
            hints=(
                "Between which two moments does your clock run?",
                "Write down what happens between one reading of the clock and the next, and what happens outside.",
                "Start the clock before the loop over the batches and stop it after the loop. The wait for a batch is part of a step.",
            ),
        ),
        Timing(
            name="warm_up",
            title="Warm-up is not",
            points=20,
            sizes={"batches": (5, 7), "batch_size": (16, 128), "last": None, "log_s": (0.006, 0.01), "compiled": True},
            tells="This job compiles its model in the first step. You pay that once, and not in every epoch.",
            hints=(
                "Which step of a training is like none after it?",
                "Time the first epoch and the second one separately, and compare.",
                "Run an epoch or two before you start the clock. Compiling, choosing kernels and the allocator's "
                "first requests belong to the start of a training, not to its rate.",
            ),
        ),
        Timing(
            name="count",
            title="Samples, counted",
            points=20,
            sizes={"batches": (3, 4), "batch_size": (32, 128), "last": (4, 8), "log_s": (0.006, 0.01)},
            tells="The last batch of each epoch is small, and a step takes as long for few samples as for many.",
            hints=(
                "How many samples are in an epoch?",
                "Print the shape of each batch's labels.",
                "Add up what was really in the batches. Without drop_last, the last batch of an epoch holds whatever is left.",
            ),
        ),
        Timing(
            name="rare",
            title="What happens only now and then",
            points=20,
            sizes={
                "batches": (5, 7),
                "batch_size": (16, 128),
                "last": None,
                "log_s": (0.003, 0.005),
                "pause_every": (15, 18),
                "pause_s": (0.04, 0.06),
            },
            tells="This job writes a checkpoint once in many steps. A short measurement meets it by chance or not at all. The fastest "
            "epoch and the typical one never do.",
            hints=(
                "Would a second run of your benchmark give the same figure?",
                "Print the time of each of the first hundred steps.",
                "Time many epochs, some seconds of them, and divide all samples by all of the time. A minimum or a "
                "median leaves out what happens seldom and costs much.",
            ),
        ),
        Timing(
            name="finished",
            title="The GPU has finished",
            points=20,
            sizes={
                "batches": (5, 7),
                "batch_size": (768, 1280),
                "last": None,
                "width": 4096,
                "depth": 4,
                "read": False,
            },
            tells="Its steps return as soon as their kernels are launched. The GPU goes on working.",
            hints=(
                "Who does the work, and who reads the clock?",
                "Compare your figure with what the GPU could calculate at most.",
                "Call torch.cuda.synchronize() before you read the clock, once at the start and once at the end. If "
                "you call it in every step, you slow the job down.",
            ),
            form="cuda",
        ),
    ),
)
