import textwrap

from .candidates_4b_nanogpt import GPT2_CANDIDATES, GPT2_ROUNDED_OTHERWISE
from .common import MODEL, NO_ATTENTION, TF32, Edits, climbed

FORWARD = "F.linear(hidden, head)"

_GPT2_LOSS = """            logits = model(tokens)
            # cross_entropy wants the classes second: (batch, vocabulary, length)
            loss = F.cross_entropy(logits.transpose(1, 2), targets) * (len(part) / len(batch))
"""
_GPT2_BF16: Edits = [
    (
        _GPT2_LOSS,
        "            with torch.autocast(job.device.type, torch.bfloat16):\n" + textwrap.indent(_GPT2_LOSS, "    "),
    )
]
_GPT2_FUSED_ATTENTION: Edits = [
    (
        """    length = q.shape[-2]
    mask = torch.tril(torch.ones(length, length)).to(q.device)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v
""",
        "    return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
    ),
    ("import math\n\n", ""),
]
# each on top of those before it
LADDER: list[tuple[str, Edits]] = [
    ("TF32", TF32),
    ("bf16 autocast", _GPT2_BF16),
    ("fused attention", _GPT2_FUSED_ATTENTION),
    (
        "a padded head, and the logits stay where they are",
        [
            ("logits = model(tokens)\n", "logits = logits_of(model, tokens)\n"),
            ("                # cross_entropy wants the classes second: (batch, vocabulary, length)\n", ""),
            ("F.cross_entropy(logits.transpose(1, 2), targets)", "F.cross_entropy(logits, targets.flatten())"),
            (
                "def train(job):\n",
                """def logits_of(model, tokens):
    words = len(model.embedding.weight)
    head = F.pad(model.embedding.weight, (0, 0, 0, -words % 64))
    padding = torch.arange(len(head), device=head.device) >= words
    return F.linear(model.hidden(tokens).flatten(0, 1), head).masked_fill_(padding, -torch.inf)


def train(job):
""",
            ),
        ],
    ),
    ("the whole batch at a time", [("MICRO_BATCH = 8", "MICRO_BATCH = 32")]),
    ("a fused optimizer", [("foreach=False", "fused=True"), ("zero_grad(set_to_none=False)", "zero_grad()")]),
    (
        "nothing that waits",
        [
            ("tokens.to(job.device), targets.to(job.device)", "sent(tokens, job.device), sent(targets, job.device)"),
            (
                "def get_batch(",
                """def sent(tensor, device):
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def get_batch(""",
            ),
            ("total = 0.0", "total = torch.zeros((), device=job.device)"),
            ("total += loss.item()", "total += loss.detach()"),
            ("yield torch.tensor(total)", "yield total"),
        ],
    ),
]

HALVES = {
    "TF32": climbed(LADDER, 1),
    "TF32, bf16 autocast": climbed(LADDER, 2),
    "TF32, bf16 autocast, fused attention": climbed(LADDER, 3),
}

WRONGS = {
    "the future is seen": ("solution", [(", is_causal=True", "")], "not the same training"),
    "every second window": (
        "solution",
        [("        windows = windows.long()\n", "        windows = windows.long()[::2]\n")],
        "not the same training",
    ),
    "every second window, once the first steps are over": (
        "solution",
        [
            (
                "            loss, level = compiled(model, tokens,",
                "            if step > 14:\n"
                "                tokens, targets = tokens[::2], targets[::2]\n"
                "            loss, level = compiled(model, tokens,",
            )
        ],
        "GPU: not the same training",
    ),
    "targets that are not shifted": ("solution", [("windows[:, 1:]", "windows[:, :-1]")], "not the same training"),
    "the model cast to bf16": (
        "plain",
        [
            (MODEL, MODEL + "    model.bfloat16()\n"),
            ("F.linear(hidden, head)", "F.linear(hidden, head).float()"),
        ],
        "Weights must stay float32",
    ),
    "handed back with the padding": (
        "plain",
        [
            *GPT2_CANDIDATES["rows that stay, handed back without them"],
            ("p[:words] if p is rows else p", "p"),
        ],
        "lack these, or have them in another shape",
    ),
    "the loss is not logged": ("solution", [("        job.log(step, loss=loss)\n", "")], "Step 0 logged no loss"),
    "the mean of what came before, in place of attention": ("solution", NO_ATTENTION, "not the same training"),
}

HONEST = {
    "the solution": ("solution", []),
    "compiled, and nothing more": ("plain", []),
    "not compiled": ("plain", [("torch.compile(loss_of, dynamic=False) if cuda else loss_of", "loss_of")]),
    "unfused optimizer": ("plain", [("fused=True", "foreach=True")]),
    "all but the compiler": ("starter", climbed(LADDER, len(LADDER))),
    **{f"compiled, {name}": ("plain", GPT2_CANDIDATES[name]) for name in GPT2_ROUNDED_OTHERWISE},
}
