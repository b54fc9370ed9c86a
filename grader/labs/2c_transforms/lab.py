from grader.labs.lab import AtMost, Form, Lab, Parity, Throughput, TraceCheck

LAB = Lab(
    name="2c_transforms",
    title="Tiles from a database",
    phase=2,
    goal="Tiles come from a database, are brightened and scaled, and a network trains on them. Find out what holds it back, and train the same model faster.",
    cause="input-bound",
    forms={
        "cuda": Form(
            workload="grader.workloads.tiles",
            options={"bands": 3, "size": 128, "width": 64, "batch_size": 32, "lr": 1e-4},
            data="tiles 128",
            gpu_memory=2.5e9,
            minimum_gain=4.0,
            parity=Parity(steps=24, loss=0.003, norm=0.015, cosine=0.985, drift=0.05, held_out=0.2),
            profiled=24,  # eight workers and more deliver at about the same time, and then for a while none does
        ),
        # without workers: on a CPU they would take the cores that training needs
        "cpu": Form(
            workload="grader.workloads.tiles",
            options={"bands": 3, "size": 64, "width": 8, "batch_size": 16, "lr": 3e-4},
            data="tiles 64",
            minimum_gain=3.0,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=50,
        hints=(
            "How often does Python run a line of __getitem__ for one batch?",
            "Time __getitem__ line by line, in a cell, with one sample that you make up. Python handles 49,152 values one by one, twice. Which "
            "part of that is the same for all samples? What could you do for a whole batch at once?",
            "Let __getitem__ fetch bytes and nothing else. Look the brightness up with one tensor index for the "
            "whole batch, and scale the bands with one mean and one std over it. On the device both take next to "
            "nothing. A method __getitems__ gets all indices of a batch at once, for one query.",
        ),
    ),
    trace=(
        TraceCheck(
            name="waiting",
            title="The training process hardly waits for data",
            points=20,
            wanted=AtMost("data_wait", 0.5),
            most_ops=1000,  # on a CPU the starter and the solution call about 550, and 1,800 more make 16 samples one by one
            says="of a step the training process spent in the DataLoader",
            hints=(
                "Do too few processes load samples, or does each sample cost too much?",
                "Look at `data_wait` of `lab.profile()`. With twice the workers you halve the time between two "
                "batches at best, and you have only so many cores. A sample that costs a tenth needs a tenth of them.",
                "Take away what a sample doesn't need. Begin with the Python loop over its bytes, then the copies as "
                "float32, then the query for each sample.",
            ),
        ),
        TraceCheck(
            name="connections",
            title="Connections are kept",
            points=20,
            wanted=AtMost("counted.connections", 1.0),
            says="connections to the database were opened per step",
            hints=(
                "What is made anew for each sample, used once and thrown away?",
                "`lab.peek()` counts the connections that are opened (`counted.connections`), one for each sample.",
                "Open a connection where there is none yet, in the first call of __getitem__ or __getitems__, and keep it. Don't open it "
                "in __init__, which runs in the training process. Only the process that opened a connection may use it.",
            ),
        ),
    ),
    peek=("counted.connections", "data_wait", "cpu_ops"),
)
