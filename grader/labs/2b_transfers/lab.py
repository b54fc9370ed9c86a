from grader.labs.lab import AtLeast, AtMost, Form, Lab, Parity, Throughput, TraceCheck

LAB = Lab(
    name="2b_transfers",
    title="Satellite tiles of twelve bands",
    phase=2,
    goal="Tiles of twelve bands lie in the CPU's memory, and a network trains on them. Find out what holds it back, and train the same model faster.",
    cause="transfer-bound",
    forms={
        # 201 MB of float32 a batch, 50 MB of bytes
        "cuda": Form(
            workload="grader.workloads.tiles",
            options={"bands": 12, "size": 256, "width": 96, "batch_size": 64, "lr": 1e-4, "count": 512},
            data="",
            gpu_memory=6.5e9,
            minimum_gain=2.5,
            min_h2d_bytes=35_000_000,  # of 50 MB a batch; a trace may show fewer batches than steps
            parity=Parity(steps=24, loss=0.01, norm=0.015, cosine=0.9, drift=0.05, held_out=0.2),
        ),
        # a CPU has no bus to cross: only the training is compared
        "cpu": Form(
            workload="grader.workloads.tiles",
            options={"bands": 3, "size": 32, "width": 16, "batch_size": 16, "lr": 3e-4, "count": 512},
            data="",
            minimum_gain=None,
            noise=0.02,
            parity=Parity(steps=12, loss=0.003, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=40,
        hints=(
            "How many bytes cross the bus in a step, and how fast? What does the GPU do meanwhile?",
            "In `lab.profile()` look at the copies (`Memcpy HtoD`). Nothing runs beside them, and they are slow for "
            "this bus. Compare their bytes with what a tile really holds. Each value was a byte once.",
            "Make four changes. Stage batches in pinned memory. Copy the next batch on a stream of its own while the "
            "GPU trains on this one. Send bytes and convert on the device. Send the labels as one block.",
        ),
    ),
    trace=(
        TraceCheck(
            name="pinned",
            title="Batches leave from pinned memory",
            points=15,
            wanted=AtLeast("h2d_pinned", 0.95),
            hints=(
                "In what kind of memory does a batch lie when it is copied?",
                "`lab.peek()` tells copies from pageable memory and from pinned apart. The GPU's copy engine reads only page-locked "
                "memory. The driver first copies everything else to a small buffer of its own, piece by piece.",
                "Make the buffer that you gather a batch into with `pin_memory=True`, once. If you lock new pages "
                "for each batch, you pay more than you win.",
            ),
        ),
        TraceCheck(
            name="overlap",
            title="Copies run beside kernels",
            points=20,
            wanted=AtLeast("h2d_overlap", 0.5),
            hints=(
                "When is the next batch known, and when is it sent?",
                "Look at `h2d_overlap` of `lab.profile()`. On one stream everything happens in the order in which it "
                "was queued. There a copy waits for the kernels before it, however non_blocking it is.",
                "Queue the copy of batch n + 1 on a second stream before you launch step n. Let the training's stream wait for it at the "
                "start of step n + 1. Use two pinned buffers in turn, and record an event after each copy. Don't fill a buffer before the "
                "copy that reads it is done. A tensor made on one stream and used on a different one needs `record_stream`.",
            ),
        ),
        TraceCheck(
            name="copies",
            title="Few copies per step",
            points=15,
            wanted=AtMost("h2d_copies", 4.0),
            says="copies to the GPU per step",
            hints=(
                "How large is the smallest thing that is sent, and how many of them are there?",
                "`lab.peek()` counts the copies of a step. Each costs some microseconds before its first byte.",
                "Gather the labels of a batch on the host, as the tiles are gathered, and send them in one piece.",
            ),
        ),
    ),
    peek=("h2d_copies", "h2d_pinned", "h2d_overlap", "syncs"),
)
