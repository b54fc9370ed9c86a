from .common import Edits

FORWARD = "F.linear(normalise(x, model.norm), model.embedding.weight)"

AS_IT_IS: Edits = [
    ("    for step, (tokens", "    compiled = torch.compile(loss_of)\n    for step, (tokens"),
    ("loss = loss_of(", "loss = compiled("),
]

HALVES = {
    "compiled as it is": AS_IT_IS,
    "normalisation and activation compiled, each for itself": [
        ("def normalise(", "@torch.compile(dynamic=True)\ndef normalise("),
        ("def gelu(", "@torch.compile(dynamic=True)\ndef gelu("),
    ],
    "a block compiled, all else as it is": [
        (
            "        x = x + attend(block, normalise(x, block.norm1))\n"
            "        x = x + block.down(gelu(block.up(normalise(x, block.norm2))))\n",
            "        x = through(block, x)\n",
        ),
        (
            "def position_weights(",
            "@torch.compile(dynamic=True)\n"
            "def through(block, x):\n"
            "    x = x + attend(block, normalise(x, block.norm1))\n"
            "    return x + block.down(gelu(block.up(normalise(x, block.norm2))))\n\n\n"
            "def position_weights(",
        ),
    ],
}

WRONGS = {
    "all windows as short as the shortest": (
        "solution",
        [
            (
                "        loss, largest = ",
                "        tokens, targets = (part[:, : min(job.dataset.lengths)] for part in (tokens, targets))\n"
                "        loss, largest = ",
            )
        ],
        "not the same training",
    ),
    "padded to one length, and the padding counts": (
        "solution",
        [
            (
                "        loss, largest = ",
                "        short = max(job.dataset.lengths) - tokens.shape[1]\n"
                "        tokens, targets = F.pad(tokens, (0, short)), F.pad(targets, (0, short))\n"
                "        loss, largest = ",
            )
        ],
        "not the same training",
    ),
    "all positions count alike": (
        "solution",
        [("(losses * weights).mean() / weights.mean()", "losses.mean()")],
        "not the same training",
    ),
    "the largest activation is not logged": (
        "solution",
        [(", largest=largest)", ")")],
        "Step 0 logged no largest",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "a graph for each length": ("solution", [("fullgraph=True, dynamic=True", "fullgraph=True, dynamic=False")]),
    "bf16 autocast": (
        "solution",
        [
            (
                "        loss, largest = compiled(",
                "        with torch.autocast(job.device.type, torch.bfloat16):\n            loss, largest = compiled(",
            )
        ],
    ),
    "not compiled": (
        "solution",
        [("compiled = torch.compile(loss_of, fullgraph=True, dynamic=True)", "compiled = loss_of")],
    ),
    "unfused optimizer": ("solution", [("fused=True", "foreach=False")]),
}
