from .common import MODEL, Edits

FORWARD = "model(tokens)"
LOSS = (
    "        logits = model(tokens).flatten(0, 1)\n"
    '        losses = F.cross_entropy(logits, targets, reduction="none")\n'
)

THREE_SYNCS_LESS: Edits = [
    ("loss=loss.item()", "loss=loss"),
    ('        print(f"step {step}: loss {loss:.4f}")\n', ""),
    ("            torch.cuda.synchronize()\n", "            pass\n"),
]
_FIVE_SYNCS_LESS: Edits = [
    *THREE_SYNCS_LESS,
    (MODEL, MODEL + "    letters = torch.tensor(LETTERS, device=job.device)\n"),
    ("torch.tensor(LETTERS, device=job.device)[targets]", "letters[targets]"),
    ("logits.detach().cpu().argmax(-1) == targets.cpu()", "logits.detach().argmax(-1) == targets"),
]

HALVES = {
    "the mask is still an index, and the CPU clips": _FIVE_SYNCS_LESS,
    "only the mask is still an index": [
        *_FIVE_SYNCS_LESS,
        ("        if norm > MAX_NORM:\n            for", "        if True:\n            for"),
        ("*= MAX_NORM / norm", "*= (MAX_NORM / norm).clamp(max=1)"),
    ],
}

WRONGS = {
    "does not clip": (
        "solution",
        [("clip_grad_norm_(model.parameters(), MAX_NORM)", "get_total_norm([p.grad for p in model.parameters()])")],
        "not the same training",
    ),
    "logs every tenth step": (
        "solution",
        [("            job.log(", "            if step % 10 == 0:\n                job.log(")],
        "Step 1 logged no loss, on_letters, accuracy, norm",
    ),
    "logs the step before": (
        "starter",
        [
            ("    for step,", "    before = None\n    for step,"),
            (
                "        job.log(step, loss=loss.item()",
                "        job.log(step, loss=loss if before is None else before",
            ),
            ("        yield loss", "        before = loss.detach()\n        yield loss"),
        ],
        "Step 1 logged the loss",
    ),
}
