from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput, TraceCheck

LAB = Lab(
    name="2a_workers",
    title="Feed the GPU: loader workers",
    phase=2,
    goal="The DataLoader is left at its defaults. Make the loop wait less for its images, and train the same model.",
    cause="input-bound",
    forms={
        "cuda": Form(
            workload="grader.workloads.resnet",
            options={"model": "resnet18", "size": 224, "batch_size": 64, "lr": 1e-4},
            data="images",
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
            environment={"OMP_NUM_THREADS": "1"},
        ),
    },
    prediction=Prediction(points=10),
    throughput=Throughput(
        points=50,
        hint="Where does the main process spend its step? If it decodes images itself, who else could do that, and how "
        "many of them does this machine have room for?",
    ),
    trace=(
        TraceCheck(
            name="reads",
            title="Decoding left the training process",
            points=20,
            metric="loads_in_main",
            at_most=0.0,
            says="samples a step were read and decoded by the training process itself",
            hint="A DataLoader with num_workers=0 decodes in the process that trains.",
        ),
        TraceCheck(
            name="pinned",
            title="Batches arrive in pinned memory",
            points=20,
            metric="h2d_pinned",
            at_least=0.95,
            says="of the bytes copied to the GPU came from pinned memory",
            hint="The GPU's copy engine can only read page-locked memory; from pageable memory the driver first makes a "
            "copy of its own. The DataLoader has an option for that.",
            form="cuda",
        ),
    ),
    peek=("loads_in_main", "h2d_pinned", "syncs"),
)
