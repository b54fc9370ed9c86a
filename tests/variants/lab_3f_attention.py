from .common import COMPILED, NO_ATTENTION, TF32

FORWARD = "model(tokens)"

_SDPA = "F.scaled_dot_product_attention(q, k, v"
_BACKENDS = ("from torch.utils.data", "from torch.nn.attention import SDPBackend, sdpa_kernel\nfrom torch.utils.data")
_BY_HALVES = """def by_halves(q, k, v):
    half = q.shape[-2] // 2
    scores = q[:, :, half:] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(half, 2 * half, dtype=torch.bool, device=q.device).triu(half + 1)
    second = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v
    return torch.cat([attention(q[:, :, :half], k[:, :, :half], v[:, :, :half]), second], dim=2)
"""

HALVES = {
    "in every second layer": [
        (
            "    for block in model.blocks:\n",
            "    for block in model.blocks[::2]:\n        block.attention = fused\n    for block in model.blocks[1::2]:\n",
        ),
        ("def train(job):", f"def fused(q, k, v):\n    return {_SDPA}, is_causal=True)\n\n\ndef train(job):"),
    ],
    "written out, of half the queries at a time, with the keys that they see": [
        ("def train(job):", _BY_HALVES + "\n\ndef train(job):"),
        ("block.attention = attention", "block.attention = by_halves"),
    ],
    "the mask as a tensor": [
        (
            '    scores = scores.masked_fill(future, float("-inf"))\n    weights = torch.softmax(scores, dim=-1)\n',
            "",
        ),
        ("    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n", ""),
        ("    return weights @ v", f"    return {_SDPA}, ~future)"),
    ],
}

WRONGS = {
    "the future is seen": ("solution", [(", is_causal=True", "")], "not the same training"),
    "scores scaled twice": (
        "solution",
        [
            ("q, k, v, is_causal", "q / math.sqrt(q.shape[-1]), k, v, is_causal"),
            ("import torch\n", "import math\n\nimport torch\n"),
        ],
        "not the same training",
    ),
    "the mean of what came before, in place of attention": ("solution", NO_ATTENTION, "not the same training"),
    "only the last 256 tokens are seen": (
        "starter",
        [("device=q.device).triu(1)", "device=q.device)\n    future = future.triu(1) | future.tril(-256)")],
        "not the same training",
    ),
    "the math backend": (
        "solution",
        [
            ("    return F.", "    with sdpa_kernel(SDPBackend.MATH):\n        return F."),
            _BACKENDS,
        ],
        "score matrices, and gradients of them, are written",
    ),
}

HONEST = {
    "as it is": ("solution", []),
    "compiled": ("solution", [*COMPILED, ("model(tokens)", "compiled(tokens)")]),
    "TF32": ("solution", TF32),
    "without autocast": ("solution", [('enabled=job.device.type == "cuda"', "enabled=False")]),
    "fused optimizer": ("solution", [("lr=job.lr)", "lr=job.lr, fused=True)")]),
    "the flash backend alone": (
        "solution",
        [("    return F.", "    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n        return F."), _BACKENDS],
    ),
    "written out": ("starter", []),
}
