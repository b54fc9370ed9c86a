from grader.labs import gpt
from grader.labs.lab import AtLeast, AtMost, Lab, Lever, Order, Parity, Throughput, TraceCheck

LAYERS, WIDTH, LENGTH, BATCH = 1, 2048, 1024, 4
# 2 operations forward and 4 backward for each weight of a matrix product and each token, and for each of the two products of an
# attention, of which a causal one needs half
FLOPS = 6 * LAYERS * BATCH * LENGTH * (12 * WIDTH**2 + 256 * WIDTH / LAYERS + LENGTH * WIDTH)

_SCORES = """    length = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights @ v
"""
_FORWARD = """        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""
_MADE = "    model = job.model.to(job.device)\n"
_ADAMW = "lr=job.lr)\n"

LEVERS = (
    Lever("no_debugging", (("    torch.autograd.set_detect_anomaly(True)  # the loss was NaN once\n", ""),)),
    Lever("attention", ((_SCORES, "    return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"),)),
    Lever(
        "autocast",
        (
            (
                _FORWARD,
                "        with torch.autocast(job.device.type, torch.bfloat16):\n"
                + "".join(f"    {line}\n" for line in _FORWARD.splitlines()),
            ),
        ),
    ),
    Lever("tf32", ((_MADE, f'    torch.set_float32_matmul_precision("high")\n{_MADE}'),)),
    Lever("fused", ((_ADAMW, "lr=job.lr, fused=True)\n"),)),
    Lever("foreach", ((_ADAMW, "lr=job.lr, foreach=True)\n"),)),
    Lever("compile", ((_MADE, f"{_MADE}    model.compile()\n"),)),
)

LAB = Lab(
    name="4f_your_repository",
    title="Your repository: somebody else's training script",
    phase=4,
    goal="You get a training script that nobody slowed down on purpose. Let `grader run` and `grader try` choose three changes, and make them in the right order.",
    cause="compute-bound",
    # on a CPU, anomaly detection writes down stacks: 27 of 73 ms (one core of an AMD EPYC, torch 2.14); on an H200 the host waits for its
    # tests, and `grader run` says so (torch 2.11)
    close=("host-bound", "sync-bound"),
    forms={
        "cuda": gpt.on_gpu(
            options={
                "layers": LAYERS,
                "width": WIDTH,
                "heads": WIDTH // 64,
                "length": LENGTH,
                "batch_size": BATCH,
                "lr": 3e-5,  # as low as 3a's, and for the same reason
                "bare": True,
            },
            gpu_memory=7.2e9,
            minimum_gain=3.5,
            noise=0.01,
            block_s=0.8,
            flops=FLOPS,
            # another attention shows in the direction of the update, as in 3f
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.9985, drift=0.01, held_out=0.03),
        ),
        # one thread, fp32
        "cpu": gpt.on_cpu(
            options={"layers": 8, "width": 32, "heads": 2, "length": 256, "batch_size": 1, "lr": 1e-3, "bare": True},
            minimum_gain=2.6,
            block_s=1.0,
            parity=Parity(steps=12, loss=0.003, norm=0.005, cosine=0.998, drift=0.01, held_out=0.1),
        ),
    },
    throughput=Throughput(
        points=45,
        hints=(
            "Which of the levers gains most in `grader try`? Did you make that change before you looked at the others again?",
            "Change train.py, too, and run `grader try -- python train.py` on the changed script. A lever that gained nothing at first may pay "
            "now.",
            "Three changes are enough. On a GPU two of them make the arithmetic cheaper, bf16 by autocast and a fused attention. The third "
            "leaves work out that nobody needs.",
        ),
    ),
    order=Order(
        points=24,
        hints=(
            "Did you measure again after each change?",
            "The report has the gain of each of your changes where it stands, and says where a later one would have gained more.",
            "Take the lever with the largest gain in `grader try`, make that change in train.py, and try again. Name the changes in the "
            "order in which you made them.",
        ),
        levers=LEVERS,
    ),
    trace=(
        TraceCheck(
            name="scores",
            title="No matrix of scores is written",
            points=9,
            wanted=AtMost("score_matrices", 0.0),
            says="score matrices, and gradients of them, are written per step",
            hints=(
                "What is the largest tensor of a step?",
                "`score_matrices` of `lab.peek()` counts batched matmuls whose result is larger than their inputs.",
                "torch.nn.functional has a fused attention, with an argument that says it is causal.",
            ),
        ),
        TraceCheck(
            name="half_precision",
            title="Matmuls in 16 bits",
            points=6,
            wanted=AtLeast("half_share", 0.95),
            hints=(
                "In which number format does this GPU multiply fastest?",
                "Look at `half_share` of `lab.peek()`.",
                "Put the model and the loss under autocast to bf16. The weights stay fp32.",
            ),
        ),
        TraceCheck(
            name="syncs",
            title="The CPU hardly waits",
            points=6,
            wanted=AtMost("syncs", 4.0, none_at=40.0),
            says="times per step the CPU waited for the GPU",
            hints=(
                "What reads a value from the GPU in every step, and for whom?",
                "Look at `syncs` of `lab.peek()`.",
                "Anomaly detection looks for NaN in each gradient, and reads the answer. Switch it on only while you hunt a NaN.",
            ),
        ),
    ),
    peek=("score_matrices", "half_share", "syncs", "kernels", "launches"),
)
