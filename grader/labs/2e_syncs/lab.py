from grader.labs import gpt
from grader.labs.lab import AtMost, Lab, Logs, Parity, Throughput, TraceCheck

LAB = Lab(
    name="2e_syncs",
    title="A loop that keeps good logs",
    phase=2,
    goal="Seven places make a step of this loop longer, all in the same way. Find all seven, and keep the same logs.",
    cause="sync-bound",
    forms={
        # small enough that launching a step takes about as long as running it: what a wait costs is then the most
        "cuda": gpt.on_gpu(
            options={"layers": 4, "width": 384, "heads": 6, "length": 256, "batch_size": 24, "lr": 1e-4},
            gpu_memory=4e9,
            minimum_gain=1.4,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.03),
        ),
        # a CPU has nobody to wait for: only the training and the logs are compared
        "cpu": gpt.on_cpu(
            options={"layers": 2, "width": 64, "heads": 4, "length": 64, "batch_size": 8, "lr": 1e-3},
            minimum_gain=None,
            noise=0.02,
            parity=Parity(steps=24, loss=0.003, norm=0.005, cosine=0.9995, drift=0.01, held_out=0.1),
        ),
    },
    throughput=Throughput(
        points=40,
        hints=(
            "The CPU asks the GPU for a value. What do both of them do until the value is there?",
            "In `lab.profile()` look at how often a step has no work queued. After each wait the GPU runs dry until "
            "the CPU has launched something again. `lab.peek()` counts the waits (`syncs`).",
            "You don't need a value now if you only write it down. Keep it as a tensor on the device, give the tensor to `job.log`, and let the "
            "grader read it after the block. You can also make decisions on the device, without reading the value.",
        ),
    ),
    trace=(
        TraceCheck(
            name="syncs",
            title="Nothing in a step waits for the GPU",
            points=50,
            wanted=AtMost("syncs", 0.0, none_at=8.0),
            says="times per step the CPU waited for the GPU",
            hints=(
                "Seven places make the CPU wait, and only one of them says so by its name.",
                'On a GPU, put `torch.cuda.set_sync_debug_mode("warn")` at the top of train(job). It prints a '
                "warning with the line of each hidden wait, and `lab.run()` shows what was printed. It knows all but "
                "the wait that is written out.",
                "Seven things wait. They are printing a tensor, `if` on a tensor, `.item()`, `.cpu()`, a mask as an index, a tensor made on the "
                "device from a Python list, and synchronize. Log tensors instead. Clip with the function of torch.nn.utils, which decides on the "
                "device. Multiply by the mask and divide by its sum. Make constants once, before the loop. Compare on the device.",
            ),
        ),
    ),
    peek=("syncs", "launches", "kernels"),
    logs=Logs(("loss", "on_letters", "accuracy", "norm")),
)
