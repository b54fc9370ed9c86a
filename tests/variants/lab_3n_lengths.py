from .common import TF32, Edits

FORWARD = "F.linear(model.norm(x), model.embedding.weight)[0]"

_COLLATE = "collate = partial(padded, job.dataset.longest)"
_FILL = "    tokens = torch.zeros("
_WITHIN = "    def attention(q, k, v):\n"
_TO_DEVICE = "        tokens, targets = (part.to(job.device, non_blocking=True) for part in (tokens, targets))\n"
_PASS = """        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
"""

IN_PARTS = """def in_parts(documents):
    documents = sorted(documents, key=lambda document: len(document[0]))
    size = -(-len(documents) // 4)
    parts = [documents[n : n + size] for n in range(0, len(documents), size)]
    return [padded(len(part[-1][0]), part) for part in parts]


def train(job):"""


def _in_parts(share: str) -> Edits:
    """Sorted, in four micro-batches, each with this share of the loss."""
    steps = f"""        total = torch.zeros((), device=job.device)
        real = sum(int((targets != IGNORED).sum()) for _, targets in parts)
        for tokens, targets in parts:
            share = {share}
            tokens, targets = tokens.to(job.device, non_blocking=True), targets.to(job.device, non_blocking=True)
            with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                logits = model(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED) * share
            loss.backward()
            total += loss.detach()
"""
    return [
        ("def train(job):", IN_PARTS),
        (_COLLATE, "collate = in_parts"),
        ("    for tokens, targets in loader:\n", "    for parts in loader:\n"),
        (_TO_DEVICE + _PASS, steps),
        ("yield loss.detach()", "yield total"),
    ]


OF_THE_BATCH: Edits = [(_FILL, "    length = max(len(text) for text, _ in documents)\n" + _FILL)]
BY_TOKENS = _in_parts("int((targets != IGNORED).sum()) / real")

HALVES = {
    "padded to the longest of the batch": OF_THE_BATCH,
    "sorted, in four micro-batches": BY_TOKENS,
}

WRONGS = {
    "packed, and attention sees all documents": (
        "solution",
        [(_WITHIN, _WITHIN + "        return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n")],
        "not the same training",
    ),
    "packed, and places are counted through all documents": (
        "solution",
        [
            (
                "F.embedding(places, model.positions)",
                "F.embedding(torch.arange(len(places), device=places.device) % len(model.positions), model.positions)",
            )
        ],
        "not the same training",
    ),
    "the mean of the micro-batches' means": ("starter", _in_parts("1 / len(parts)"), "not the same training"),
    "long documents cut": (
        "starter",
        [
            (_COLLATE, "collate = partial(padded, job.dataset.longest // 8)"),
            (_FILL, "    documents = [(text[:length], following[:length]) for text, following in documents]\n" + _FILL),
        ],
        "not the same training",
    ),
    "long documents left out": (
        "starter",
        [
            (_COLLATE, "collate = partial(padded, job.dataset.longest // 8)"),
            (_FILL, "    documents = [document for document in documents if len(document[0]) <= length]\n" + _FILL),
        ],
        "not the same training",
    ),
    "the padding counts": (
        "starter",
        [*OF_THE_BATCH, ("IGNORED = -100", "IGNORED = 0"), (", ignore_index=IGNORED", "")],
        "not the same training",
    ),
}

_MASKED = """        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
"""
_VARLEN = """        if q.is_cuda and torch.cuda.get_device_capability() >= (8, 0):
            q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
            seen = varlen_attn(q, k, v, ends, ends, groups[0][1], groups[0][1], window_size=(-1, 0))
            return seen.transpose(0, 1)[None]
"""

VARLEN: Edits = [
    ("def packed(", "from torch.nn.attention.varlen import varlen_attn\n\n\ndef packed("),
    ("torch.cat(rows), groups", "torch.cat(rows), torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32), groups"),
    ("def within_documents(rows, groups)", "def within_documents(rows, ends, groups)"),
    (_WITHIN, _WITHIN + _VARLEN),
    ("tokens, targets, places, rows = (", "tokens, targets, places, rows, ends = ("),
    ("within_documents(rows, groups))", "within_documents(rows, ends, groups))"),
]

HONEST = {
    "the solution": ("solution", []),
    "TF32 for what is not in bf16": ("solution", TF32),
    "no autocast": ("solution", [("enabled=cuda", "enabled=False")]),
    "unfused optimizer": ("solution", [("fused=True", "foreach=False")]),
    "padded to the longest of the batch": ("starter", OF_THE_BATCH),
    "sorted, in four micro-batches": ("starter", BY_TOKENS),
    "packed, the mask as a tensor": (
        "solution",
        [
            (_WITHIN, _WITHIN + _MASKED),
            (
                "def within_documents(rows, groups):",
                "def within_documents(rows, groups, places):\n"
                "    document = (places == 0).cumsum(0)\n"
                "    mask = (document[:, None] == document).tril()",
            ),
            ("within_documents(rows, groups))", "within_documents(rows, groups, places))"),
        ],
    ),
    "packed, varlen attention": ("solution", VARLEN),
}
