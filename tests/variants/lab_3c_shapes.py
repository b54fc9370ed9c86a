from .common import MODEL

FORWARD = "F.linear(hidden, rows, bias)"

_TRANSPOSED = (
    "            # cross_entropy wants the classes second: (batch, vocabulary, length)\n"
    "            logits = logits.float().transpose(1, 2).contiguous()\n"
    "            loss = F.cross_entropy(logits, targets)\n",
    "            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
)
_PADDED = (
    "            logits = F.linear(hidden, model.embedding.weight)",
    "            words = len(model.embedding.weight)\n"
    "            rows = F.pad(model.embedding.weight, (0, 0, 0, -words % 64))\n"
    "            logits = F.linear(hidden, rows)[..., :words]",
)

HALVES = {
    "no transposition": [_TRANSPOSED],
    "padded in each step, still transposed": [_PADDED],
}

WRONGS = {
    "handed back with the padding": (
        "solution",
        [
            (
                "    job.weights = lambda: {name: p[:words] if p is rows else p for name, p in model.named_parameters()}\n",
                "",
            )
        ],
        "lack these, or have them in another shape",
    ),
    "another shape in place of a transposition": (
        "starter",
        [(".transpose(1, 2).contiguous()", ".view(len(tokens), -1, tokens.shape[1])")],
        "not the same training",
    ),
    "zeros before the first token's row": (
        "solution",
        [("(0, 0, 0, more)", "(0, 0, more, 0)")],
        "not the same training",
    ),
    "only the tokens that occur": (
        "solution",
        [
            (
                "    more = -words % MULTIPLE\n"
                "    rows = nn.Parameter(F.pad(model.embedding.weight.detach(), (0, 0, 0, more)))\n",
                "    whole = model.embedding.weight.detach()\n    rows = nn.Parameter(whole[:256].clone())\n",
            ),
            ("rows.new_zeros(words + more)\n    bias[words:] = -torch.inf\n", "rows.new_zeros(256)\n"),
            ("p[:words] if p is rows", "torch.cat([p, whole[256:]]) if p is rows"),
        ],
        "not the same training",
    ),
}

HONEST = {
    "no autocast": ("starter", [("enabled=cuda", "enabled=False")]),
    "padded in each step, and sliced": ("starter", [_PADDED, _TRANSPOSED]),
    "padded, and nothing masked": ("solution", [("rows, bias)", "rows)")]),
    "compiled": (
        "solution",
        [
            (MODEL, MODEL + "    compiled = torch.compile(model.hidden)\n"),
            ("model.hidden(tokens)", "compiled(tokens)"),
        ],
    ),
    "unfused optimizer": ("solution", [("fused=cuda", "foreach=True")]),
}
