"""What the variants of several labs share."""

Edits = list[tuple[str, str]]

MODEL = "    model = job.model.to(job.device)\n"
STEP = "        optimizer.step()\n"
LOADER = "DataLoader(job.dataset, batch_sampler=job.batches"
CLASSIFY = "        loss = F.cross_entropy(model(images), labels)\n"
TF32: Edits = [(MODEL, '    torch.set_float32_matmul_precision("high")\n' + MODEL)]
COMPILED: Edits = [(MODEL, MODEL + "    compiled = torch.compile(model)\n")]
CHANNELS_LAST: Edits = [(MODEL, MODEL + "    model.to(memory_format=torch.channels_last)\n")]
NO_ATTENTION: Edits = [
    (
        "    return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "    return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1, device=v.device)[:, None]",
    )
]


def under_autocast(loss: str, called: str = "model", model: str = "model") -> Edits:
    """The lines `loss`, in which `called` is called, under bf16 autocast, with `model` called in its place."""
    inside = "".join("    " + line + "\n" for line in loss.replace(f"{called}(", f"{model}(").splitlines())
    return [(loss, "        with torch.autocast(job.device.type, torch.bfloat16):\n" + inside)]


def climbed(ladder: list[tuple[str, Edits]], rungs: int) -> Edits:
    """The edits of the first `rungs` rungs of a ladder."""
    return [one for _, edits in ladder[:rungs] for one in edits]
