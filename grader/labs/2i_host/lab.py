from grader.labs.lab import AtMost, Form, Lab, Parity, Throughput, TraceCheck

RECORDED = (
    49  # steps of a trace: the first is not counted, and eight of the others are those in which the starter stops
)

LAB = Lab(
    name="2i_host",
    title="A loop that stutters",
    phase=2,
    goal="Most steps of this loop are short, and some are not. Find out what holds those up, and make all steps alike.",
    cause="host-bound",
    forms={
        # a step of some milliseconds on a T4 as well: a pause is far longer on every machine
        "cuda": Form(
            workload="grader.workloads.records",
            options={"records": 100_000, "width": 2048, "layers": 2, "batch_size": 512, "lr": 1e-5},
            data="",
            gpu_memory=2.5e9,  # calculated: twice 5 million weights at 16 bytes, the batches, and 0.8 GB of CUDA's own for each loop
            minimum_gain=3.0,
            profiled=RECORDED,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
        "cpu": Form(
            workload="grader.workloads.records",
            options={"records": 100_000, "width": 256, "layers": 2, "batch_size": 64, "lr": 1e-3},
            data="",
            minimum_gain=5.0,
            noise=0.05,
            profiled=RECORDED,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=50,
        hints=(
            "One line of the loop does nothing for the training. What does that line look at, and how much of it is there?",
            "Time a call of that line alone, in a cell of your own, with 100,000 dictionaries of nine lists each in memory. How many steps fit into it?",
            "Take the call out. It frees only objects that refer to each other in a circle, and this loop makes none. If your own loop has to "
            "collect, freeze first what lasts. Then the collector no longer looks at the records.",
        ),
    ),
    trace=(
        TraceCheck(
            name="spread",
            title="All steps are about as long",
            points=40,
            wanted=AtMost("spread", 2.0, none_at=5.0),
            hints=(
                "A mean says nothing about single steps. Are all of them too long, or some?",
                "`spread` in `lab.peek()` compares the 95th percentile of the steps with their median. Count in `lab.profile()` how many "
                "steps lie between two long ones. Which line of the loop runs as often?",
                "Nothing that takes as long as many steps may run in the loop. To run it less often is not enough while one step in twenty is "
                "held up. A thread beside the loop doesn't help either, because the collector holds the GIL.",
            ),
        ),
    ),
    peek=("spread", "launches", "cpu_ops"),
)
