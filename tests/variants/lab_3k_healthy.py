from .common import MODEL, TF32, Edits

FORWARD = "model(tokens)"

CHECKPOINTED: Edits = [
    ("import torch.nn.functional as F\n", "import torch.nn.functional as F\nimport torch.utils.checkpoint\n"),
    ("model(tokens)", "torch.utils.checkpoint.checkpoint(model, tokens, use_reentrant=False)"),
]

# nothing to fix, so nothing to fix by half: changes that do no harm
HALVES = {
    "TF32 for what autocast leaves": TF32,
    "the switch for convolutions": [(MODEL, "    torch.backends.cudnn.benchmark = True\n" + MODEL)],
}

WRONGS = {
    "checkpointed, where memory is not short": ("starter", CHECKPOINTED, "made it slower"),
    "half the batch": (
        "starter",
        [
            (
                "        with torch.autocast",
                "        tokens, targets = tokens[::2], targets[::2]\n        with torch.autocast",
            )
        ],
        "not the same training",
    ),
}
