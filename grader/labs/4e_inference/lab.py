from grader.labs.lab import Answers, AtLeast, AtMost, Form, Lab, Throughput, TraceCheck

LAYERS, WIDTH, LENGTHS, TEXTS, IMAGES = 12, 768, (128, 256, 512), 8, 64
# forward only: 2 for each weight of a matrix product and each byte that is not padding, at least half of each length; ResNet-50: 4.1e9
# products and sums a picture, https://arxiv.org/abs/1512.03385
FLOPS = 2 * 12 * LAYERS * WIDTH**2 * TEXTS * sum(LENGTHS) / 2 + 2 * 4.1e9 * IMAGES

LAB = Lab(
    name="4e_inference",
    title="Two models that are served",
    phase=4,
    goal="A GPT scores texts and a ResNet classifies pictures, one by one. Give the same answers, as fast as you can.",
    cause="launch-bound",
    forms={
        "cuda": Form(
            workload="grader.workloads.serving",
            options={
                "layers": LAYERS,
                "width": WIDTH,
                "heads": 12,
                "lengths": LENGTHS,
                "texts": TEXTS,
                "model": "resnet50",
                "size": 224,
                "images": IMAGES,
            },
            data="text",
            gpu_memory=4e9,
            minimum_gain=20.0,
            noise=0.02,
            block_s=1.0,
            profiled=1,  # three requests of the starter's are a trace of more than the 256 MB that are read
            flops=FLOPS,
            parity=Answers(steps=6, within=0.7),
        ),
        # one thread, fp32
        "cpu": Form(
            workload="grader.workloads.serving",
            options={
                "layers": 2,
                "width": 64,
                "heads": 4,
                "lengths": (16, 32, 128),
                "texts": 4,
                "model": "tiny",
                "size": 16,
                "images": 64,
            },
            data="text",
            minimum_gain=3.0,
            block_s=0.8,
            parity=Answers(steps=10, within=0.35),
            threads=1,
        ),
    },
    throughput=Throughput(
        points=50,
        hints=(
            "How many times is each model called for a request, and how much of that work is for nothing?",
            "In `lab.profile()`, how long is a kernel and how long a launch? What does the GPU do between the two models' calls?",
            "Make one call for all pictures, and one for all texts of about the same length. The longest text of a call decides how far the "
            "others are padded. Build no graph for a backward pass that never comes, and use 16 bits. The shapes are few and always the same, so "
            "compile the model and launch it as one CUDA graph.",
        ),
    ),
    trace=(
        TraceCheck(
            name="waits",
            title="The CPU does not wait for the GPU",
            points=10,
            wanted=AtMost("syncs", 1, none_at=80),
            says="times per request the CPU waited for the GPU",
            hints=(
                "Who reads the answers, and when?",
                "`syncs` of `lab.peek()` counts the waits: `synchronize`, `.item()`, and copies from pageable memory.",
                "Yield the answers as tensors on the device. Whoever reads them waits for them. Send everything to the GPU from pinned memory.",
            ),
        ),
        TraceCheck(
            name="launches",
            title="A request takes few launches",
            points=10,
            wanted=AtMost("launches", 100, none_at=2000),
            says="launches per request",
            hints=(
                "How long does the GPU work per launch?",
                "Compare `launches` and `kernels` of `lab.peek()`. They are nearly equal as long as each kernel is launched on its own.",
                'Build batches first. Then use a CUDA graph, which `torch.compile` makes with `mode="reduce-overhead"`. The next replay '
                "overwrites its result.",
            ),
        ),
        TraceCheck(
            name="half_precision",
            title="Convolutions and matmuls in 16 bits",
            points=10,
            wanted=AtLeast("half_share", 0.9),
            says="of the time in convolutions and matmuls was spent on 16-bit inputs",
            hints=(
                "How many digits of an answer does anybody look at?",
                "Look at `half_share` of `lab.peek()`.",
                "Nothing is trained here, so the weights themselves can be bf16. Then you need no autocast and no casts. Keep the "
                "log-probabilities in fp32.",
            ),
        ),
        TraceCheck(
            name="pinned",
            title="Pictures come from pinned memory",
            points=10,
            wanted=AtLeast("h2d_pinned", 0.9),
            says="of the copied bytes came from pinned memory",
            absent="No pictures crossed the bus. Requests come from outside, so you have to send their pictures each time.",
            hints=(
                "A picture is bytes. In which type does it travel, and from which memory?",
                "Look at `h2d_pinned` and `h2d_copies` of `lab.peek()`, and at the sizes of the copies in the trace.",
                "Make one copy of bytes for all pictures, from pinned memory and with `non_blocking=True`. Do the arithmetic on the device. On a "
                "second stream the copy runs beside the previous request.",
            ),
        ),
    ),
    peek=("syncs", "launches", "kernels", "half_share", "h2d_copies", "h2d_pinned"),
)
