from grader.labs.lab import AtLeast, AtMost, Form, Lab, Parity, Throughput, TraceCheck

LAB = Lab(
    name="2a_workers",
    title="A loop at its defaults",
    phase=2,
    goal="A network trains on JPEG images, with a DataLoader at its defaults. Find out what holds it back, and train the same model faster.",
    cause="input-bound",
    forms={
        "cuda": Form(
            workload="grader.workloads.resnet",
            # a low learning rate: at 1e-4 rounding alone leads a ResNet elsewhere (distance 0.1 after 40 steps on an H200, 0.2
            # after 300), and half a batch left out of some steps could hide in that
            options={"model": "resnet18", "size": 224, "batch_size": 64, "lr": 1e-5},
            data="images",
            gpu_memory=7.5e9,
            minimum_gain=3.0,
            noise=0.02,
            flops=6 * 1.81e9 * 64,  # ResNet-18 at 224 x 224: 1.81 G multiply-adds an image (torchvision's model page)
            # held_out is wide: where the loop comes to after hundreds of steps the model overfits, and the held-out loss
            # of equal trainings from other seeds is up to 28% off (seen)
            parity=Parity(steps=24, loss=0.03, norm=0.015, cosine=0.85, drift=0.05, held_out=0.2),
        ),
        # two cores cannot show a decoding bottleneck (decoding and training fight for them), storage with the latency
        # of a network drive can: each read really waits
        "cpu": Form(
            workload="grader.workloads.resnet",
            options={"model": "tiny", "size": 32, "batch_size": 16, "lr": 1e-3, "read_s": 0.02},
            data="images",
            minimum_gain=3.0,
            noise=0.02,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=50,
        hints=(
            "What does the training process do while the GPU has nothing to do?",
            "In `lab.profile()` the longest row of the main process is the DataLoader's. It reads and decodes a "
            "whole batch, and only then does anything else happen. Who else could do that meanwhile?",
            "Let other processes decode, with the DataLoader's `num_workers`. Each keeps a core busy. Try numbers up "
            "to your number of cores, and leave one or two cores for the training process and its thread that pins. "
            "Where reads wait for a network drive, you gain from more workers than cores.",
        ),
    ),
    trace=(
        TraceCheck(
            name="reads",
            title="Reading left the training process",
            points=20,
            wanted=AtMost("loads_in_main", 0.5),  # a loop may look at a sample before it begins
            says="samples per step were read by the training process itself",
            hints=(
                "Which process opens the image files?",
                "`lab.peek()` counts the samples that the training process loads itself (`loads_in_main`). You want 0.",
                "With `num_workers=0` a DataLoader decodes in the process that trains. Any other number moves all of it out.",
            ),
        ),
        TraceCheck(
            name="pinned",
            title="Batches arrive in pinned memory",
            points=20,
            wanted=AtLeast("h2d_pinned", 0.95),
            hints=(
                "In what kind of memory does a batch lie when it is copied to the GPU?",
                "In `lab.peek()`, look at the copies to the GPU. The GPU's copy engine reads only page-locked "
                "(pinned) memory. From pageable memory, the driver copies everything once more.",
                "The DataLoader has an option that puts each finished batch into pinned memory, in a thread beside "
                "yours. Then make the copy itself `non_blocking`.",
            ),
        ),
    ),
    peek=("loads_in_main", "h2d_pinned", "syncs"),
)
