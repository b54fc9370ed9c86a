from grader.kinds.costs import Costly, CostsLab, Kept, Together, Watched

LAB = CostsLab(
    name="3b_top_ops",
    title="Why does it cost what it costs?",
    phase=3,
    goal="Map the three operations that cost this loop's GPU most to lines of its code, and say of each what bounds it and why.",
    forms={
        "cuda": Watched(
            workload="grader.workloads.top_ops",
            options={"batch": 48, "length": 192, "samples": 4096, "width": 512, "layers": 24},
        ),
        "traces": Kept("gpt_sync_stacks"),
    },
    operations=tuple(
        Costly(
            name,
            hints=(
                "What would this operation need at the least, and what does it take?",
                "lab.profile() counts arithmetic, bytes and kernels of each operation, lab.code() shows the functions that ask for "
                "GPU work. The shapes tell which of them it is; a backward operation belongs to the line of its forward one.",
                "Divide its arithmetic by the peak of the units it runs on, its bytes by that of the memory: the longer of the two "
                "times is its roof and says what bounds it, unless it is twenty kernels or more of less than 10 us in the mean. Then "
                "put the roof beside the milliseconds. A product at the peak of the ordinary units runs on those.",
            ),
        )
        for name in "123"
    ),
    together=Together(
        points=10,
        hints=(
            "How much could a fix of all three win at most?",
            "Add up what the table says of the three, as parts of the time in which the GPU is busy.",
            "Their milliseconds, over the busy milliseconds of a step. What is left is not shortened by any of the three fixes.",
        ),
    ),
)
