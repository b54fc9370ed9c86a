from .common import COMPILED, TF32

FORWARD = "model(part)"

_MATH, _ANY = "with sdpa_kernel(SDPBackend.MATH):", "if True:"
_CHECKPOINT = "checkpoint(block, x, use_reentrant=False)"

HALVES = {
    "attention chooses its kernel": [(_MATH, _ANY)],
    "attention chooses its kernel, no checkpoints": [(_MATH, _ANY), (_CHECKPOINT, "block(x)")],
    "checkpoints stay, six samples at a time": [
        (_MATH, _ANY),
        ("MICRO_BATCH = 1", "MICRO_BATCH = 6"),
        ("/ len(tokens)", "* (len(part) / len(tokens))"),
    ],
}

WRONGS = {
    "all samples at once": (
        "solution",
        [("MICRO_BATCH = 6", "MICRO_BATCH = 64")],
        "main memory. 70 MB are allowed",
    ),
    "the mean of unequal micro-batches": (
        "solution",
        [("* (len(part) / len(tokens))", "/ len(tokens.split(MICRO_BATCH))")],
        "not the same training",
    ),
    "one micro-batch of each batch": (
        "solution",
        [
            (
                "        total = ",
                "        tokens, targets = tokens[:MICRO_BATCH], targets[:MICRO_BATCH]\n        total = ",
            )
        ],
        "not the same training",
    ),
    "an optimizer step for each micro-batch": (
        "solution",
        [
            (
                "            total += ",
                "            optimizer.step()\n            optimizer.zero_grad()\n            total += ",
            )
        ],
        "not the same training",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "TF32 for what is not in bf16": ("solution", TF32),
    "no autocast": ("solution", [("if cuda else nullcontext()", "if not job else nullcontext()")]),
    "four samples at a time": ("solution", [("MICRO_BATCH = 6", "MICRO_BATCH = 4")]),
    "compiled": ("solution", [*COMPILED, ("model(part)", "compiled(part)")]),
    "checkpoints, and all samples at once": (
        "starter",
        [("MICRO_BATCH = 1", "MICRO_BATCH = 64"), (_MATH, _ANY), ("/ len(tokens)", "* (len(part) / len(tokens))")],
    ),
}
