from .common import COMPILED, MODEL, STEP, TF32

FORWARD = "model(tokens)"

HALVES = {
    "TF32": TF32,
    "fp16 in the blocks, fp32 in the head": [
        (
            "    loader = ",
            "    scaler = torch.amp.GradScaler(job.device.type, init_scale=2.0**13)\n    loader = ",
        ),
        (
            "        logits = model(tokens)\n",
            "        with torch.autocast(job.device.type, torch.float16):\n"
            "            hidden = model.hidden(tokens)\n"
            "        logits = F.linear(hidden.float(), model.embedding.weight)\n",
        ),
        (
            "        loss.backward()\n",
            "        scaler.scale(loss).backward()\n        scaler.unscale_(optimizer)\n",
        ),
        (STEP, "        scaler.step(optimizer)\n        scaler.update()\n"),
    ],
}

WRONGS = {
    "no scale": (
        "solution",
        [("init_scale=2.0**13", "enabled=False")],
        "GPU: not the same training",
    ),
    "clips what is still scaled": (
        "solution",
        [
            (
                "        scaler.unscale_(optimizer)  # the norm to clip by is that of the gradients themselves\n",
                "",
            )
        ],
        "not the same training",
    ),
    "nothing is clipped": (
        "solution",
        [("        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)\n", "")],
        "not the same training",
    ),
    # without a fused kernel AdamW's epsilon, 1e-8, is 0 in fp16
    "the weights in fp16": (
        "starter",
        [(MODEL, MODEL + "    model.half()\n"), ("model(tokens)", "model(tokens).float()")],
        "training diverged or overflowed",
    ),
}

HONEST = {
    "TF32": ("starter", TF32),
    "bf16": ("solution", [("torch.float16", "torch.bfloat16")]),
    "a smaller scale": (
        "solution",
        [("init_scale=2.0**13", "init_scale=2.0**10")],
    ),
    "an optimizer that waits": ("solution", [("fused=cuda", "foreach=True")]),
    "compiled": ("solution", [*COMPILED, ("model(tokens)", "compiled(tokens)")]),
}
