from .common import TF32, Edits

FORWARD = "F.linear(model.norm(x), model.embedding.weight)[0]"

_PADDED = "padded(part, longest)"
_PARTS = "    parts = [documents["
_REAL = "sum(len(text) for text, _ in documents)"
_SUM = 'reduction="sum")\n                loss = losses / real\n'
_IN_TURN = "[documents[n : n + TOGETHER] for n in range(0, len(documents), TOGETHER)]"
_SORTED = "    documents = sorted(documents, key=lambda document: len(document[0]))\n"
_WITHIN = "    def attention(q, k, v):\n"
_DOCUMENTS = "    documents = sorted(documents, key=lambda document: len(document[0]), reverse=True)\n"


def _to(length: str) -> Edits:
    """Each part padded to this length."""
    return [(_PADDED, f"padded(part, {length})")]


def _rounded(length: str) -> str:
    """Up to a multiple of 64: few lengths, so that few plans are made for them."""
    return f"-(-{length} // 64) * 64"


_OF_THE_BATCH = "max(len(text) for text, _ in documents)"
_OF_THE_PART = "max(len(text) for text, _ in part)"
BY_LENGTH: Edits = [(_PARTS, _SORTED + _PARTS)]
IN_TWO: Edits = [*BY_LENGTH, (_PARTS, "    half = len(documents) // 2\n" + _PARTS), ("TOGETHER]", "half]"), (", TOGETHER)]", ", half)]")]  # fmt: skip

HALVES = {
    "padded to the longest of the batch": _to(_rounded(_OF_THE_BATCH)),
    "sorted, in two parts": [*IN_TWO, *_to(_rounded(_OF_THE_PART))],
}
CUDNN: Edits = [("    torch.backends.cuda.enable_cudnn_sdp(False)\n", "")]
SORTED: Edits = [*BY_LENGTH, *_to(_rounded(_OF_THE_PART))]

_SIMILAR = """class Similar:
    \"\"\"Batches of documents of similar length, from all of the data set.\"\"\"

    def __init__(self, job):
        order = sorted(range(len(job.dataset)), key=lambda index: job.dataset.lengths[index])
        size = job.batches.batch_size
        self.batches = [order[n : n + size] for n in range(0, len(order) - size, size)]

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        while True:
            yield self.batches[int(torch.randint(len(self.batches), (), generator=generator))]


def train(job):"""

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
    "packed, and the end of the row is cut": (
        "solution",
        [(_DOCUMENTS, _DOCUMENTS + "    documents = documents[: 7 * len(documents) // 8]\n")],
        "not the same training",
    ),
    "the mean of the parts' means": (
        "starter",
        [*SORTED, (', reduction="sum"', ""), ("losses / real", "losses / len(parts)")],
        "not the same training",
    ),
    "the padding counts in the mean": (
        "starter",
        [*_to(_OF_THE_BATCH), (_REAL, f"len(documents) * {_OF_THE_BATCH}")],
        "not the same training",
    ),
    "the padding has a loss": (
        "starter",
        [*_to(_OF_THE_BATCH), ("IGNORED = -100", "IGNORED = 0"), (", ignore_index=IGNORED", "")],
        "not the same training",
    ),
    "long documents cut": (
        "starter",
        [
            (
                _PARTS,
                "    longest //= 8\n    documents = [(text[:longest], after[:longest]) for text, after in documents]\n"
                + _PARTS,
            ),
        ],
        "not the same training",
    ),
    "the longest document cut, which is alone in the data set": (
        "starter",
        [
            (
                _PARTS,
                "    longest //= 2\n    documents = [(text[:longest], after[:longest]) for text, after in documents]\n"
                + _PARTS,
            ),
        ],
        "not the same training",
    ),
    "long documents left out": (
        "starter",
        [
            (
                _PARTS,
                "    longest //= 8\n    documents = [each for each in documents if len(each[0]) <= longest]\n" + _PARTS,
            ),
        ],
        "not the same training",
    ),
    "batches of documents of similar length": (
        "starter",
        [
            ("def train(job):", _SIMILAR),
            ("batch_sampler=job.batches", "batch_sampler=Similar(job)"),
            *_to(_OF_THE_BATCH),
        ],
        "not the same training",
    ),
}

_ALIKE = """            document = (places == 0).cumsum(0) - 1
            losses = F.cross_entropy(logits, targets, reduction="none")
            loss = (losses / document.bincount()[document]).sum() / (document[-1] + 1)
"""
FAULTS: dict[str, Edits] = {
    "the longest document of each batch a tenth shorter": [
        (_DOCUMENTS, _DOCUMENTS + "    documents[0] = [part[: 9 * len(part) // 10] for part in documents[0]]\n")
    ],
    "each document counts alike": [("            loss = F.cross_entropy(logits, targets)\n", _ALIKE)],
    "packed, and padding between the documents is seen": [
        ("is_causal=True)\n            mixed", "is_causal=False)\n            mixed")
    ],
}

_MASKED = """        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
"""
MASK: Edits = [
    (_WITHIN, _WITHIN + _MASKED),
    (
        "def within_documents(rows, groups):",
        "def within_documents(rows, groups, places):\n"
        "    document = (places == 0).cumsum(0)\n"
        "    mask = (document[:, None] == document).tril()",
    ),
    ("within_documents(rows, groups))", "within_documents(rows, groups, places))"),
]
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

_FLEX_FORWARD = """@torch.compile
def flex(q, k, v, blocks):
    return flex_attention(q, k, v, block_mask=blocks)


def forward(model, tokens, places, document):
    def rule(b, h, query, key):
        return (query >= key) & (document[query] == document[key])

    blocks = create_block_mask(rule, None, None, len(tokens), len(tokens), device=tokens.device)
    mask = None if tokens.is_cuda else (document[:, None] == document).tril()

    def attention(q, k, v):
        if q.is_cuda:
            return flex(q, k, v, blocks)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # it has no backward pass on a CPU
"""
_FLEX_ROW = """    places = torch.cat([torch.arange(length) for length in lengths])
    spare = -len(tokens) % 1024  # few lengths of a row
    tokens, places = F.pad(tokens, (0, spare)), F.pad(places, (0, spare), value=1)
    targets = F.pad(targets, (0, spare), value=-100)
    document = torch.cat([torch.full((length,), n) for n, length in enumerate(lengths)])
    return tokens, targets, places, F.pad(document, (0, spare), value=-1), groups
"""
FLEX: Edits = [
    (
        "import torch\n",
        "import torch\nfrom torch.nn.attention.flex_attention import create_block_mask, flex_attention\n",
    ),
    (
        "    places = torch.cat([torch.arange(length) for length in lengths])\n    return tokens, targets, places, torch.cat(rows), groups\n",
        _FLEX_ROW,
    ),
    ("def forward(model, tokens, places, attention):", _FLEX_FORWARD),
    ("within_documents(rows, groups))", "rows)"),
]

_BY_TOKENS = """[]
    for document in documents:
        if not parts or (len(parts[-1]) + 1) * len(document[0]) > 3 * longest // 4:
            parts.append([])
        parts[-1].append(document)"""
# documents that fit into a row of the longest one's length share it
_IN_ROWS = """def in_rows(longest, documents):
    documents = sorted(documents, key=lambda document: len(document[0]), reverse=True)
    filled, inside = [], []
    for each in documents:
        at = next((n for n, used in enumerate(filled) if used + len(each[0]) <= longest), len(filled))
        if at == len(filled):
            filled.append(0)
            inside.append([])
        filled[at] += len(each[0])
        inside[at].append(each)
    shape = len(filled), longest
    tokens, places, number = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    targets = torch.full(shape, IGNORED)
    for row, some in enumerate(inside):
        start = 0
        for n, (text, after) in enumerate(some, 1):
            here = slice(start, start := start + len(text))
            tokens[row, here], targets[row, here] = text, after
            places[row, here], number[row, here] = torch.arange(len(text)), n
    return [(tokens, targets, places, number)], sum(filled)


def forward(model, tokens, places, number):
    mask = (number[:, None, :, None] == number[:, None, None, :]).tril()
    x = model.embedding(tokens) + F.embedding(places, model.positions)
    for block in model.blocks:
        block.attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = block(x)
    return F.linear(model.norm(x), model.embedding.weight)


def train(job):"""
ROWS: Edits = [
    ("def train(job):", _IN_ROWS),
    ("partial(in_parts,", "partial(in_rows,"),
    ("for tokens, targets in parts:", "for part in parts:"),
    (
        "            tokens, targets = tokens.to(job.device, non_blocking=True), targets.to(job.device, non_blocking=True)\n",
        "            tokens, targets, places, number = (each.to(job.device, non_blocking=True) for each in part)\n",
    ),
    ("model(tokens)", "forward(model, tokens, places, number)"),
]

HONEST = {
    "the solution": ("solution", []),
    "TF32 for what is not in bf16": ("solution", TF32),
    "no autocast": ("solution", [("enabled=cuda", "enabled=False")]),
    "bf16 on a CPU too": ("solution", [("enabled=cuda", "enabled=True")]),
    "unfused optimizer": ("solution", [("fused=True", "foreach=False")]),
    "with cuDNN's attention": ("solution", CUDNN),
    "groups of few lengths": (
        "solution",
        [("    groups, rows, start = ", f"    fill = lambda length: {_rounded('length')}\n    groups, rows, start = "),
         ("members[0]))", "fill(members[0])))"), ("start += members[0]", "start += fill(members[0])")],
    ),
    "padded to the longest of the batch": ("starter", _to(_OF_THE_BATCH)),
    "padded to the longest of each part": ("starter", _to(_OF_THE_PART)),
    "up to a multiple of 64": ("starter", _to(_rounded(_OF_THE_PART))),
    "sorted, padded to the longest of the batch": ("starter", [*BY_LENGTH, *_to(_OF_THE_BATCH)]),
    "sorted, in parts of four": ("starter", SORTED),
    "sorted, in parts of as many padded tokens": (
        "starter",
        [*BY_LENGTH, (_IN_TURN, _BY_TOKENS), *_to(_OF_THE_PART)],
    ),
    "all documents at a time": ("starter", [*_to(_OF_THE_BATCH), ("TOGETHER = 4", "TOGETHER = 1000")]),
    "in rows of one length, the mask as a tensor": ("starter", ROWS),
    "packed, the mask as a tensor": ("solution", MASK),
    "packed, FlexAttention": ("solution", FLEX),
    "packed, varlen attention": ("solution", VARLEN),
}  # fmt: skip
