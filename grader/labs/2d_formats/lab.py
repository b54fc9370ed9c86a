from grader.labs.lab import AtMost, Form, Lab, Parity, Throughput, TraceCheck

LAB = Lab(
    name="2d_formats",
    title="Twenty thousand tiles on a network drive",
    phase=2,
    goal="20,000 tiles lie on a network drive, and you may prepare them once. Find out what holds the training back, and train the same model faster.",
    cause="input-bound",
    forms={
        "cuda": Form(
            workload="grader.workloads.tiles",
            options={
                "bands": 3,
                "size": 64,
                "width": 64,
                "batch_size": 64,
                "lr": 1e-4,
                "count": 20_000,
                "read_s": 0.002,
            },
            data="tile files",
            gpu_memory=2.5e9,
            minimum_gain=3.0,
            noise=0.05,
            parity=Parity(steps=24, loss=0.01, norm=0.015, cosine=0.9, drift=0.05, held_out=0.2),
            prepare_s=120,
            prepared_for=10 * 20_000 // 64,  # ten epochs
        ),
        "cpu": Form(
            workload="grader.workloads.tiles",
            options={"bands": 3, "size": 64, "width": 8, "batch_size": 16, "lr": 3e-4, "count": 2000, "read_s": 0.005},
            data="tile files",
            minimum_gain=4.0,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
            threads=1,
            prepare_s=60,
            prepared_for=5 * 2000 // 16,  # five epochs
        ),
    },
    throughput=Throughput(
        points=60,
        hints=(
            "How many files does a step open? How long does each of them keep its reader waiting?",
            "A tile is 12 KB, which any drive delivers in microseconds. The drive's answer takes milliseconds. "
            "`lab.peek()` counts the files that are opened (`counted.drive_reads`). In the report, look at what your "
            "preparation cost. Its time is spread over the steps of the whole training.",
            "In prepare(), read all files once and write their bytes one after the other into one file, in the order "
            "of their indices. The drive serves many readers at a time, so let many threads wait for it. In train(), "
            "map that file into memory and take a batch as rows of an array.",
        ),
    ),
    trace=(
        TraceCheck(
            name="files",
            title="No small file is opened while training",
            points=30,
            wanted=AtMost("counted.drive_reads", 0.5),
            says="files were read from the drive per step",
            hints=(
                "Where do the bytes of a batch come from?",
                "`lab.peek()` counts the files that are read from the drive while the loop trains. What prepare() reads isn't among them.",
                "Let everything that training reads come from what prepare() wrote into its folder, job.folder.",
            ),
        ),
    ),
    peek=("counted.drive_reads", "data_wait"),
)
