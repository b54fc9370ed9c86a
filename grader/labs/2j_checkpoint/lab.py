from grader.labs.lab import Checkpoints, Form, Lab, Parity, Throughput

GPU = Form(
    workload="grader.workloads.checkpoints",
    options={
        "layers": 4,
        "width": 384,
        "heads": 6,
        "length": 256,
        "batch_size": 24,
        "lr": 1e-4,
        "bias": False,
        "every": 20,
        "write_bps": 250e6,
    },
    data="text",
    gpu_memory=4e9,
    # the loop gains (S + W) / max(S, W), for steps of S and a write of W seconds: here from 10 to 60 ms a step
    minimum_gain=1.3,  # 1.41x on an H200 with 16 cores (torch 2.11, 2026-11-29)
    parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
)

LAB = Lab(
    name="2j_checkpoint",
    title="A loop that saves itself",
    phase=2,
    goal="Every few steps this loop saves its state. Find out what holds it back, and train faster with checkpoints that are as good.",
    cause="host-bound",
    forms={
        "cuda": GPU,
        "cpu": Form(
            workload="grader.workloads.checkpoints",
            options={
                "layers": 2,
                "width": 64,
                "heads": 4,
                "length": 64,
                "batch_size": 8,
                "lr": 1e-3,
                "bias": False,
                "every": 8,
                "write_bps": 7e6,
            },
            data="text",
            minimum_gain=1.27,  # two right loops gained 1.29x and 1.30x where the starter took 36 ms a step (AMD EPYC, torch 2.14)
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.9995, drift=0.01, held_out=0.1),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=90,
        hints=(
            "What does the device do while the drive takes a checkpoint?",
            "Work out the time of a checkpoint from the drive's speed in *Sizes*, and that of the steps between two of them. Which part of "
            "a checkpoint needs the loop to stand still?",
            "Copy all tensors to host memory while no step runs, into buffers that you allocate once. On a GPU they are pinned. Let one thread "
            "save the copy and rename it. Before the next copy, wait for that thread. Otherwise you overwrite what isn't written yet.",
        ),
    ),
    trace=(),
    peek=("syncs", "kernels"),
    checkpoints=Checkpoints(),
)
