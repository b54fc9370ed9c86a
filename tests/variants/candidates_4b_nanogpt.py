"""What a compiled GPT-2 can still gain: edits of the plain form of 4b's solution (its notebook's cell "plain"), to be tried one by
one and together on a GPU, for `tests/benchmarks/nanogpt_peer.py`."""

from .common import Edits

_GPT2_HIDDEN = "model.hidden(tokens)"
_GPT2_PADDING = "F.linear(hidden, head).masked_fill(padding, -torch.inf)  # the rows that were added have no share"
_GPT2_OWN_FORWARD: Edits = [
    (_GPT2_HIDDEN, "forward(model, tokens)"),
    (
        "def loss_of(",
        """def forward(model, tokens):
    x = model.embedding(tokens) + model.positions[: tokens.shape[1]]
    for block in model.blocks:
        parts = block.qkv(block.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (block.heads, -1)).transpose(1, 2) for part in parts)
        x = x + block.out(attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + block.down(F.gelu(block.up(block.norm2(x))))
    return model.norm(x)


def loss_of(""",
    ),
]
_GPT2_BF16_STREAM: Edits = [
    *_GPT2_OWN_FORWARD,
    (
        "    x = model.embedding(tokens) + model.positions[: tokens.shape[1]]\n",
        "    x = model.embedding(tokens) + model.positions[: tokens.shape[1]]\n    x = x.bfloat16() if x.is_cuda else x\n",
    ),
]
_GPT2_SWITCH = '    cuda = job.device.type == "cuda"\n    model = job.model'
_GPT2_CUDNN: Edits = [(_GPT2_SWITCH, "    torch.backends.cuda.enable_flash_sdp(False)\n" + _GPT2_SWITCH)]
_GPT2_FLASH: Edits = [(_GPT2_SWITCH, "    torch.backends.cuda.enable_cudnn_sdp(False)\n" + _GPT2_SWITCH)]
_GPT2_LT: Edits = [
    (
        _GPT2_SWITCH,
        "    if torch.cuda.is_available():\n"
        '        torch.backends.cuda.preferred_blas_library("cublaslt")\n' + _GPT2_SWITCH,
    )
]
_GPT2_TUNED: Edits = [
    (
        "torch.compile(loss_of, dynamic=False)",
        'torch.compile(loss_of, dynamic=False, options={"coordinate_descent_tuning": True})',
    )
]
_GPT2_ROW_SUMS = """    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, stride, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        some = tl.load(numbers + columns, mask=columns < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peaks, some)
        known = higher > float("-inf")
        sums = tl.where(known, sums * tl.exp(peaks - higher) + tl.exp(some - higher), 0.0)
        peaks = higher
    peak = tl.max(peaks, 0)
    total = tl.sum(tl.where(peaks > float("-inf"), sums * tl.exp(peaks - peak), 0.0), 0)
"""
_GPT2_ROW_GRADIENT = """    for begin in range(0, stride, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        some = tl.load(numbers + columns, mask=columns < words, other=float("-inf")).to(tl.float32)
        share = tl.exp(some - peak) / total - tl.where(columns == target, 1.0, 0.0)
        tl.store(numbers + columns, share.to(logits.dtype.element_ty), mask=columns < stride)
"""
# head and loss by hand: one kernel reads the logits and leaves their gradient in their place
_GPT2_OWN_LOSS: Edits = [
    (
        "import torch.nn.functional as F\n",
        "import torch.nn.functional as F\nimport triton\nimport triton.language as tl\n",
    ),
    (
        "def loss_of(model, tokens, targets):\n"
        '    """The mean loss of a batch, forward pass and loss in one piece, so that the compiler can fuse all of it."""\n'
        "    hidden = model.hidden(tokens).flatten(0, 1)\n",
        '''BLOCK = 4096  # numbers of a row at a time


@triton.jit
def row_loss(logits, targets, losses, words, stride, BLOCK: tl.constexpr):
    """The loss of one token. Its logits become their gradient: probabilities, less one at the target."""
    row = tl.program_id(0).to(tl.int64)
    numbers = logits + row * stride
    target = tl.load(targets + row)
    at_target = tl.load(numbers + target).to(tl.float32)
'''
        + _GPT2_ROW_SUMS
        + """    tl.store(losses + row, tl.log(total) + peak - at_target)
"""
        + _GPT2_ROW_GRADIENT
        + '''

class HeadAndLoss(torch.autograd.Function):
    """The mean loss of hidden (tokens, width) and head (rows, width), both bf16; the first `words` rows count."""

    @staticmethod
    def forward(ctx, hidden, head, targets, words):
        logits = hidden @ head.t()
        losses = torch.empty(len(hidden), device=hidden.device)
        row_loss[(len(hidden),)](logits, targets, losses, words, logits.stride(0), BLOCK, num_warps=16)
        ctx.save_for_backward(hidden, head, logits)
        return losses.mean()

    @staticmethod
    def backward(ctx, gradient):
        hidden, head, wrong = ctx.saved_tensors
        scale = gradient / len(hidden)
        return (wrong @ head) * scale, (wrong.t() @ hidden) * scale, None, None


def hidden_of(model, tokens):
    hidden = model.hidden(tokens).flatten(0, 1)
    return hidden.bfloat16() if hidden.is_cuda else hidden


def loss_of(model, hidden, targets):
''',
    ),
    (
        "    head = F.pad(model.embedding.weight, (0, 0, 0, -words % MULTIPLE))  # fused into the cast to bf16\n"
        "    padding = torch.arange(len(head), device=head.device) >= words\n"
        f"    logits = {_GPT2_PADDING}\n"
        "    return F.cross_entropy(logits, targets.flatten())  # in fp32, without an fp32 copy of the logits: it is fused, too\n",
        "    head = F.pad(model.embedding.weight, (0, 0, 0, -words % MULTIPLE)).to(hidden.dtype)\n"
        "    if hidden.is_cuda:\n"
        "        return HeadAndLoss.apply(hidden, head, targets.flatten(), words)\n"
        "    return F.cross_entropy(F.linear(hidden, head[:words]), targets.flatten())\n",
    ),
    (
        "torch.compile(loss_of, dynamic=False) if cuda else loss_of",
        "torch.compile(hidden_of, dynamic=False) if cuda else hidden_of",
    ),
    ("loss = compiled(model, tokens, targets)", "loss = loss_of(model, compiled(model, tokens), targets)"),
]
_GPT2_LARGER_BLOCKS: Edits = [("BLOCK = 4096", "BLOCK = 8192"), ("num_warps=16", "num_warps=32")]
_GPT2_GELU: Edits = [
    ("F.gelu(block.up", "Gelu.apply(block.up"),
    (
        "def forward(model, tokens):",
        '''class Gelu(torch.autograd.Function):
    """GELU in few operations: one exponential serves value and slope. Abramowitz and Stegun 7.1.26, at most 1.5e-7 off."""

    @staticmethod
    def parts(x):
        x = x.float()
        t = 1 / (1 + (0.3275911 * 0.5**0.5) * x.abs())
        bell = torch.exp(-0.5 * x * x)
        t = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        tail = 0.5 * t * bell
        return x, torch.where(x < 0, tail, 1 - tail), bell

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        wide, share, _ = Gelu.parts(x)
        return (wide * share).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        wide, share, bell = Gelu.parts(x)
        return (gradient.float() * (share + wide * bell * 0.3989422804014327)).to(x.dtype)


def forward(model, tokens):''',
    ),
]
_GPT2_BEST: Edits = [*_GPT2_OWN_LOSS, *_GPT2_LARGER_BLOCKS, *_GPT2_BF16_STREAM, *_GPT2_GELU]
# Products of 8-bit numbers: e4m3, e5m2 for the gradients, each times a power of two that brings it into the range. A factor made
# from the largest number of a tensor would be one more pass over each of them.
_GPT2_SHORT: Edits = [
    (
        "def forward(model, tokens):",
        """INPUTS, WEIGHTS, GRADIENTS = 8.0, 256.0, 65536.0  # inputs to 56 and weights to 1.75 fit; a loss is the mean over as many tokens
UNDONE = {}  # one over each of these, on the GPU


def short(x, factor, to=torch.float8_e4m3fn):
    most = torch.finfo(to).max
    return (x.float() * factor).clamp(-most, most).to(to)


def product(a, b, undo_a, undo_b, to=torch.bfloat16, fast=False):
    \"\"\"a (m, k) times b (n, k), both in 8 bits: (m, n), their factors undone. fast: with sums of fewer bits.\"\"\"
    return torch._scaled_mm(a, b.t(), scale_a=undo_a, scale_b=undo_b, out_dtype=to, use_fast_accum=fast)


class ShortLinear(torch.autograd.Function):
    \"\"\"x (..., k) and weight (n, k) to (..., n). Both sides of a product have to end with the dimension that is
    summed over, so what the backward pass needs is kept transposed.\"\"\"

    @staticmethod
    def forward(ctx, x, weight, inputs, weights, gradients):
        a, b = short(x.flatten(0, -2), INPUTS), short(weight, WEIGHTS)
        ctx.save_for_backward(a.t().contiguous(), b.t().contiguous(), inputs, weights, gradients)
        return product(a, b, inputs, weights, fast=True).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, gradient):
        a, b, inputs, weights, gradients = ctx.saved_tensors
        wrong = short(gradient.flatten(0, -2), GRADIENTS, torch.float8_e5m2)
        d_x = product(wrong, b, gradients, weights).unflatten(0, gradient.shape[:-1])
        return d_x, product(wrong.t().contiguous(), a, gradients, inputs, torch.float32), None, None, None


def linear(x, layer):
    return ShortLinear.apply(x, layer.weight, *UNDONE.values()) if UNDONE else layer(x)


def forward(model, tokens):""",
    ),
    (
        "    optimizer = ",
        "    if cuda:\n"
        "        UNDONE.update({f: torch.tensor(1 / f, device=job.device) for f in (INPUTS, WEIGHTS, GRADIENTS)})\n"
        "    optimizer = ",
    ),
]
_GPT2_SHORT_MLP: Edits = [
    ("block.up(block.norm2(x))", "linear(block.norm2(x), block.up)"),
    (
        "block.down(Gelu.apply(linear(block.norm2(x), block.up)))",
        "linear(Gelu.apply(linear(block.norm2(x), block.up)), block.down)",
    ),
]
# the logits' gradient is written in 8 bits, along the words and along the tokens
_GPT2_SHORT_HEAD: Edits = [
    (
        _GPT2_ROW_GRADIENT,
        """    tl.store(levels + row, tl.log(total) + peak)


@triton.jit
def short_gradient(logits, targets, levels, by_token, by_word, words, tokens, stride, FACTOR, TALL: tl.constexpr, WIDE: tl.constexpr):
    \"\"\"FACTOR times (probabilities, less one at the target) of a tile of logits, in both orders. All sizes are multiples of the tile's.\"\"\"
    rows = tl.program_id(1).to(tl.int64) * TALL + tl.arange(0, TALL)
    columns = tl.program_id(0).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    numbers = tl.load(logits + rows[:, None] * stride + columns[None, :]).to(tl.float32)
    level, target = tl.load(levels + rows), tl.load(targets + rows)
    share = tl.where(columns[None, :] < words, tl.exp(numbers - level[:, None]), 0.0)
    share = (share - tl.where(columns[None, :] == target[:, None], 1.0, 0.0)) * FACTOR
    share = share.to(by_token.dtype.element_ty)
    tl.store(by_token + rows[:, None] * stride + columns[None, :], share)
    tl.store(by_word + columns[:, None] * tokens + rows[None, :], tl.trans(share))
""",
    ),
    ("def row_loss(logits, targets, losses,", "def row_loss(logits, targets, losses, levels,"),
    (
        '    """The loss of one token. Its logits become their gradient: probabilities, less one at the target."""\n',
        '    """The loss of one token, and the logarithm of the sum over its words."""\n',
    ),
    (
        '    """The mean loss of hidden (tokens, width) and head (rows, width), both bf16; the first `words` rows count."""\n',
        '    """The mean loss of hidden (tokens, width) and head (rows, width); the first `words` rows count. All products in 8 bits."""\n',
    ),
    (
        "        logits = hidden @ head.t()\n",
        "        (a, a_t), (b, b_t) = both_ways(hidden, INPUTS), both_ways(head, WEIGHTS)\n"
        "        inputs, weights, _ = UNDONE.values()\n"
        "        logits = product(a, b, inputs, weights, fast=True)\n"
        "        (tokens, rows), levels = logits.shape, torch.empty(len(hidden), device=hidden.device)\n",
    ),
    (
        "        row_loss[(len(hidden),)](logits, targets, losses, words,",
        "        row_loss[(tokens,)](logits, targets, losses, levels, words,",
    ),
    (
        "        ctx.save_for_backward(hidden, head, logits)\n",
        "        by_token = logits.new_empty(tokens, rows, dtype=torch.float8_e5m2)\n"
        "        by_word = logits.new_empty(rows, tokens, dtype=torch.float8_e5m2)\n"
        "        grid = (rows // WIDE, tokens // TALL)\n"
        "        short_gradient[grid](logits, targets, levels, by_token, by_word, words, tokens, rows, OF_LOGITS, TALL, WIDE)\n"
        "        ctx.save_for_backward(a_t, b_t, by_token, by_word, inputs, weights)\n",
    ),
    (
        "        hidden, head, wrong = ctx.saved_tensors\n"
        "        scale = gradient / len(hidden)\n"
        "        return (wrong @ head) * scale, (wrong.t() @ hidden) * scale, None, None\n",
        "        a_t, b_t, by_token, by_word, inputs, weights = ctx.saved_tensors\n"
        "        scale = gradient / (OF_LOGITS * len(by_token))\n"
        "        return product(by_token, b_t, scale, weights), product(by_word, a_t, scale, inputs, torch.float32), None, None\n",
    ),
    (
        "def hidden_of(model, tokens):",
        """OF_LOGITS = 32768.0  # its gradient lies between -1 and 1
TALL, WIDE = 64, 128  # a tile of it


@torch.compile(dynamic=False)
def both_ways(x, factor):
    shortened = short(x, factor)
    return shortened, shortened.t().contiguous()


def hidden_of(model, tokens):""",
    ),
    (".to(hidden.dtype)\n    if hidden.is_cuda:\n", "\n    if hidden.is_cuda:\n"),
    ("F.linear(hidden, head[:words])", "F.linear(hidden, head[:words].to(hidden.dtype))"),
]
_GPT2_8_BITS: Edits = [*_GPT2_BEST, *_GPT2_SHORT, *_GPT2_SHORT_HEAD]
# a row's sum in one number, not one for each lane: half as many exponentials
_GPT2_ROWS: Edits = [
    (
        _GPT2_ROW_SUMS,
        """    peak, total = at_target, 0.0
    for begin in range(0, stride, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        some = tl.load(numbers + columns, mask=columns < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(some, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(some - higher), 0)
        peak = higher
""",
    ),
    ("BLOCK = 8192", "BLOCK = 4096"),
    ("logits.stride(0), BLOCK, num_warps=32)", "rows, BLOCK, num_warps=4)"),
]
# only the backward pass in 8 bits: forward and losses stay as they are in bf16
_GPT2_SHORT_BACKWARD: Edits = [
    (
        "        return product(a, b, inputs, weights, fast=True).unflatten(0, x.shape[:-1])\n",
        "        return F.linear(x.bfloat16(), weight.bfloat16())\n",
    ),
]
# e4m3 for the gradients of linear layers as well: one more bit, and a range that the factor has to meet
_GPT2_E4M3: Edits = [
    (
        "wrong = short(gradient.flatten(0, -2), GRADIENTS, torch.float8_e5m2)",
        "wrong = short(gradient.flatten(0, -2), GRADIENTS)",
    ),
    ("INPUTS, WEIGHTS, GRADIENTS = 8.0, 256.0, 65536.0", "INPUTS, WEIGHTS, GRADIENTS = 8.0, 256.0, 2.0**24"),
]
GPT2_CANDIDATES: dict[str, Edits] = {
    "cuDNN's attention": _GPT2_CUDNN,
    "FlashAttention's": _GPT2_FLASH,
    "heads by chunks": _GPT2_OWN_FORWARD,
    "a residual stream in bf16": _GPT2_BF16_STREAM,
    "cuBLASLt": _GPT2_LT,
    "tuned by coordinate descent": _GPT2_TUNED,
    "cuDNN's attention, a residual stream in bf16": [*_GPT2_CUDNN, *_GPT2_BF16_STREAM],
    "all of these": [*_GPT2_CUDNN, *_GPT2_BF16_STREAM, *_GPT2_LT, *_GPT2_TUNED],
    "padded to a multiple of 256": [("MULTIPLE = 64  # elements: 128 bytes in bf16", "MULTIPLE = 256")],
    "a head that is sliced": [
        (_GPT2_PADDING, "F.linear(hidden, head)[:, :words]"),
        ("    padding = torch.arange(len(head), device=head.device) >= words\n", ""),
    ],
    "rows that stay, handed back without them": [
        (
            """    words = len(model.embedding.weight)
    head = F.pad(model.embedding.weight, (0, 0, 0, -words % MULTIPLE))  # fused into the cast to bf16
    padding = torch.arange(len(head), device=head.device) >= words
""",
            "    head = model.embedding.weight\n    padding = torch.arange(len(head), device=head.device) >= words\n",
        ),
        ("def loss_of(model, tokens, targets):", "def loss_of(model, tokens, targets, words):"),
        ("compiled(model, tokens, targets)", "compiled(model, tokens, targets, words)"),
        (
            "    optimizer = ",
            """    words = len(model.embedding.weight)
    rows = torch.nn.Parameter(F.pad(model.embedding.weight.detach(), (0, 0, 0, -words % MULTIPLE)))
    model.embedding.weight = rows
    job.weights = lambda: {name: p[:words] if p is rows else p for name, p in model.named_parameters()}
    optimizer = """,
        ),
    ],
    "a loss by chunks": [
        (
            "def loss_of(",
            """class ChunkedLoss(torch.autograd.Function):
    \"\"\"Head and mean loss a chunk of tokens at a time. Its gradients are made on the way, so no logits are kept.\"\"\"

    @staticmethod
    def forward(ctx, hidden, head, targets, words):
        total, d_hidden, d_head = 0.0, [], 0.0
        padding = torch.arange(len(head), device=head.device) >= words
        for part, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK)):
            logits = F.linear(part, head).masked_fill(padding, -torch.inf).float()
            peak = logits.amax(1, keepdim=True)
            scores = (logits - peak).exp()
            sums = scores.sum(1, keepdim=True)
            right = logits.gather(1, wanted[:, None])
            total = total + (sums.log() + peak - right).sum()
            wrong = (scores / sums).scatter_add(1, wanted[:, None], torch.full_like(right, -1.0)).to(part.dtype)
            d_hidden.append(wrong @ head)
            d_head = d_head + (wrong.t() @ part).float()
        ctx.save_for_backward(torch.cat(d_hidden), d_head)
        ctx.tokens = len(hidden)
        return total / len(hidden)

    @staticmethod
    def backward(ctx, gradient):
        d_hidden, d_head = ctx.saved_tensors
        scale = gradient / ctx.tokens
        return d_hidden * scale, d_head * scale, None, None


CHUNK = 8192  # tokens


def loss_of(""",
        ),
        (
            "    padding = torch.arange(len(head), device=head.device) >= words\n"
            f"    logits = {_GPT2_PADDING}\n"
            "    return F.cross_entropy(logits, targets.flatten())  # in fp32, without an fp32 copy of the logits: it is fused, too\n",
            "    if hidden.is_cuda:\n"
            "        hidden, head = hidden.bfloat16(), head.bfloat16()\n"
            "    return ChunkedLoss.apply(hidden, head, targets.flatten(), words)\n",
        ),
    ],
    "compiled block by block": [
        ("def loss_of(model, tokens, targets):", "def loss_of(model, hidden, targets):"),
        ("    hidden = model.hidden(tokens).flatten(0, 1)\n", ""),
        ("compiled(model, tokens, targets)", "compiled(model, model.hidden(tokens).flatten(0, 1), targets)"),
        (
            "    optimizer = ",
            "    for block in model.blocks if cuda else ():\n        block.compile(dynamic=False)\n    optimizer = ",
        ),
    ],
    "in a CUDA graph": [("dynamic=False)", 'dynamic=False, mode="reduce-overhead")')],
    "a loss of its own kernel": _GPT2_OWN_LOSS,
    "a GELU of few operations": [*_GPT2_OWN_FORWARD, *_GPT2_GELU],
    "a loss of its own kernel, a residual stream in bf16": [*_GPT2_OWN_LOSS, *_GPT2_BF16_STREAM],
    "a loss of its own kernel in larger blocks": [*_GPT2_OWN_LOSS, *_GPT2_LARGER_BLOCKS],
    "a loss of its own kernel in larger blocks, a residual stream in bf16, a GELU of few operations": _GPT2_BEST,
    "the same with FlashAttention's": [*_GPT2_BEST, *_GPT2_FLASH],
    "the head in 8 bits": _GPT2_8_BITS,
    "head and feed-forward in 8 bits": [*_GPT2_8_BITS, *_GPT2_SHORT_MLP],
    "the head in 8 bits, sums row by row": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
    ],
    "head and the feed-forward's backward pass in 8 bits, sums row by row": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
        *_GPT2_SHORT_MLP,
        *_GPT2_SHORT_BACKWARD,
    ],
    "head and the feed-forward's backward pass in 8 bits, sums row by row, e4m3": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
        *_GPT2_SHORT_MLP,
        *_GPT2_SHORT_BACKWARD,
        *_GPT2_E4M3,
    ],
}
GPT2_CANDIDATES["a residual stream in bf16, a loss by chunks"] = [
    *_GPT2_BF16_STREAM,
    *GPT2_CANDIDATES["a loss by chunks"],
]
# those of them whose numbers differ
GPT2_ROUNDED_OTHERWISE = (
    "cuDNN's attention",
    "a residual stream in bf16",
    "a head that is sliced",
    "rows that stay, handed back without them",
    "a loss by chunks",
)
