from grader.kinds.costs import Costly, CostsLab, Kept, Together, Watched

LAB = CostsLab(
    name="3b_top_ops",
    title="Why does it cost what it costs?",
    phase=3,
    goal="Map the three operations that cost this loop's GPU most to lines of its code. Say what bounds each of them, and why.",
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
                "How long would this operation need at least, and how long does it take?",
                "lab.profile() counts arithmetic, bytes and kernels of each operation. lab.code() shows the functions that ask for GPU work. The "
                "shapes tell you which operation is which. A backward operation belongs to the line of its forward operation.",
                "Divide its arithmetic by the peak of the units it runs on, and its bytes by the memory's bandwidth. The longer of the two times "
                "is its roof and names what bounds it. An operation of twenty or more kernels below 10 us on average is launch-bound instead. "
                "Then put the roof beside the milliseconds. A matmul at the peak of the CUDA cores runs on those.",
            ),
        )
        for name in "123"
    ),
    together=Together(
        points=10,
        hints=(
            "How much could you win at most by fixing all three?",
            "Add up the table's milliseconds of the three. Which part of the GPU's busy time is that?",
            "Divide their milliseconds by the busy milliseconds of a step. None of the three fixes shortens the rest.",
        ),
    ),
)
