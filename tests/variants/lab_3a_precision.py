from .common import MODEL, TF32, under_autocast

FORWARD = "model(tokens)"
LOSS = "        logits = model(tokens)\n        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
INPUTS = "tokens, targets"
FROZEN = "model.blocks[0].parameters()"
SMALLER = "        tokens, targets = tokens[:, : tokens.shape[1] // 2], targets[:, : targets.shape[1] // 2]\n"

HALVES = {"TF32": TF32, "bf16 autocast alone": under_autocast(LOSS)}

WRONGS = {
    "the model cast to bf16": (
        "starter",
        [(MODEL, MODEL + "    model.bfloat16()\n"), ("model(tokens)", "model(tokens).float()")],
        "Weights must stay float32",
    ),
    "shorter windows": (
        "starter",
        [("        logits = ", "        tokens, targets = tokens[:, ::2], targets[:, ::2]\n        logits = ")],
        "not the same training",
    ),
}
