"""Variants of the labs' loops with a known verdict, made by small edits of starter or solution: honest forms that parity
must accept, planted faults that it must reject, half fixes that must land between, wrong fixes that must earn little, with
the cause named. Used by the tests on the CPU and by `tests/benchmarks/measured.py` on a GPU."""

from __future__ import annotations

import textwrap
from typing import Any

from grader import calibrate, labs
from grader.errors import UserError

Edits = list[tuple[str, str]]


def edit(source: str, edits: Edits) -> str:
    """Apply (old, new) replacements; each `old` must occur."""
    for old, new in edits:
        if old not in source:
            raise ValueError(f"not in the source: {old!r}")
        source = source.replace(old, new)
    return source


def entry(table: str, entries: dict[str, Any], lab: str) -> Any:
    """What a table of this file has of a lab. Raises UserError where a new lab is not in it yet."""
    if lab not in entries:
        raise UserError(
            f"{table} in tests/variants.py has no entry for {lab}; CONTRIBUTING.md says what a new lab needs."
        )
    return entries[lab]


def starter(lab: str) -> str:
    return labs.get(lab).starter


def solution(lab: str) -> str:
    return calibrate.solution(labs.get(lab)).source


# labs whose starter is the plain loop over a loader: the adversaries' corpus and the longer list of faults are for these
_INPUTS = {"2a_workers": "images, labels", "3a_precision": "tokens, targets"}
_FORWARD = {
    "2a_workers": "model(images)",
    "2b_transfers": "model(images)",
    "2c_transforms": "model(images)",
    "2d_formats": "model(images)",
    "2f_end_to_end": "model(images)",
    "2g_healthy": "model(tokens)",
    "2e_syncs": "model(tokens)",
    "3a_precision": "model(tokens)",
    "3c_shapes": "F.linear(hidden, rows, bias)",
    "3d_tiny_ops": "forward(model, tokens).flatten(0, 1)",
    "3e_compile": "F.linear(normalise(x, model.norm), model.embedding.weight)",
    "3f_attention": "model(tokens)",
    "3g_leak": "model(tokens)",
    "3h_fit": "model(part)",
    "3j_communication": "averaged(inputs)",
    "3k_healthy": "model(tokens)",
    "3m_fp16": "model(tokens)",
    "4a_resnet50": "model(images)",
    "4b_nanogpt": "F.linear(hidden, head)",
    "4c_unet": "net(noisy, times)",
}
_CALLED = {"3d_tiny_ops": "forward"}  # what a forward pass calls where it is not the model
_FROZEN = {"2a_workers": "list(model.parameters())[:2]", "3a_precision": "model.blocks[0].parameters()"}
_MODEL = "    model = job.model.to(job.device)\n"
_STEP = "        optimizer.step()\n"
_CLASSIFY = "        loss = F.cross_entropy({}(images), labels)\n"
LOADER = "DataLoader(job.dataset, batch_sampler=job.batches"
_MATH, _ANY = "with sdpa_kernel(SDPBackend.MATH):", "if True:"
_CHECKPOINT = "checkpoint(block, x, use_reentrant=False)"
_BF16 = 'torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext()'
_SDPA = "F.scaled_dot_product_attention(q, k, v"
_BY_HALVES = """def by_halves(q, k, v):
    half = q.shape[-2] // 2
    scores = q[:, :, half:] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(half, 2 * half, dtype=torch.bool, device=q.device).triu(half + 1)
    second = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v
    return torch.cat([attention(q[:, :, :half], k[:, :, :half], v[:, :, :half]), second], dim=2)
"""
_WORKERS = LOADER + ", num_workers=8, prefetch_factor=4, persistent_workers=True"


def autocast(lab: str, model: str = "") -> Edits:
    """Forward and loss under bf16 autocast; `model`: the expression that is called, where it is another than before."""
    called = _CALLED.get(lab, "model")
    model = model or called
    lines = {
        "2a_workers": _CLASSIFY.format(model),
        "2b_transfers": _CLASSIFY.format(model),
        "2c_transforms": _CLASSIFY.format(model),
        "2d_formats": _CLASSIFY.format(model),
        "2f_end_to_end": f"        logits = {model}(images)\n        loss = F.cross_entropy(logits, labels)\n",
        "2e_syncs": f"        logits = {model}(tokens).flatten(0, 1)\n"
        '        losses = F.cross_entropy(logits, targets, reduction="none")\n',
        "3a_precision": f"        logits = {model}(tokens)\n"
        "        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
        "3g_leak": f"        logits = {model}(tokens)\n"
        "        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
        "3d_tiny_ops": f"        loss = F.cross_entropy({model}(model, tokens).flatten(0, 1), targets.flatten())\n",
    }
    lines = entry("autocast()", lines, lab)
    plain = lines.replace(f"{model}(", f"{called}(")
    inside = "".join("    " + line + "\n" for line in lines.splitlines())
    return [(plain, "        with torch.autocast(job.device.type, torch.bfloat16):\n" + inside)]


TF32: Edits = [(_MODEL, '    torch.set_float32_matmul_precision("high")\n' + _MODEL)]
COMPILED: Edits = [(_MODEL, _MODEL + "    compiled = torch.compile(model)\n")]
CHECKPOINTED: Edits = [
    ("import torch.nn.functional as F\n", "import torch.nn.functional as F\nimport torch.utils.checkpoint\n"),
    ("model(tokens)", "torch.utils.checkpoint.checkpoint(model, tokens, use_reentrant=False)"),
]
_CHANNELS_LAST: Edits = [(_MODEL, _MODEL + "    model.to(memory_format=torch.channels_last)\n")]


def graphed(loss: str) -> tuple[str, str]:
    """A whole step as a CUDA graph, captured after three warm-up steps on another stream (a capture computes nothing). `loss`:
    the expression of the loss of `tokens` and `targets`."""
    return (
        "    for tokens, targets in loader:\n",
        f"""    def step(tokens, targets):
        loss = {loss}
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches, side, graph = iter(loader), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True, capturable=True)
    for _ in range(3):
        tokens, targets = (tensor.to(job.device) for tensor in next(batches))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = step(tokens, targets)
            optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        yield loss
    static = tokens.clone(), targets.clone()
    with torch.cuda.graph(graph):
        loss = step(*static)
    for tokens, targets in batches:
        static[0].copy_(tokens), static[1].copy_(targets)
        graph.replay()
        yield loss
    for tokens, targets in loader:
""",
    )


GRAPHED = graphed("F.cross_entropy(forward(model, tokens).flatten(0, 1), targets.flatten())")
_TABLE: Edits = [
    ("        curve = [(value / 255) ** GAMMA for value in range(256)]\n", ""),
    (
        'torch.frombuffer(array("f", [curve[value] for value in pixels]), dtype=torch.float32)',
        "CURVE[torch.frombuffer(bytearray(pixels), dtype=torch.uint8).int()]",
    ),
    ("GAMMA = 0.4\n", "GAMMA = 0.4\nCURVE = (torch.arange(256) / 255) ** GAMMA\n"),
]
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
AS_IT_IS: Edits = [
    ("    for step, (tokens", "    compiled = torch.compile(loss_of)\n    for step, (tokens"),
    ("loss = loss_of(", "loss = compiled("),
]
_AVERAGING = """            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= job.world_size
"""
UNET_FIRST: Edits = [  # channels first
    ("    model.to(memory_format=torch.channels_last)  # how tensor cores want weights and pictures\n", ""),
    (
        "batch.permute(0, 3, 1, 2) / 127.5 - 1  # stored with the channels last, and so it stays",
        "(batch.permute(0, 3, 1, 2) / 127.5 - 1).contiguous()",
    ),
]
IN_BF16: Edits = [
    (
        "def train(job):\n",
        """def in_bf16(state, bucket):
    sent = bucket.buffer().bfloat16()
    done = torch.distributed.all_reduce(sent, async_op=True).get_future()
    return done.then(lambda future: bucket.buffer().copy_(future.value()[0]).div_(torch.distributed.get_world_size()))


def train(job):
""",
    ),
    ("    optimizer = torch", "    averaged.register_comm_hook(None, in_bf16)\n    optimizer = torch"),
]
# 4a_resnet50, rung by rung
_CROPPED = "DataLoader(Cropped(job), sampler=enumerate(job.batches), batch_size=None"
_CROPPED_WORKERS: Edits = [
    ("import numpy as np\n", "import os\n\nimport numpy as np\n"),
    (_CROPPED, _CROPPED + ", num_workers=max(0, len(os.sched_getaffinity(0)) - 2)"),
]
_BYTES_A_BATCH: Edits = [
    *_CROPPED_WORKERS,
    ("batch_size=None,", 'batch_size=None, pin_memory=job.device.type == "cuda",'),
    ("            images.append(pixels.float().div_(64).sub_(2))\n", "            images.append(pixels)\n"),
    (
        "torch.stack([image.to(job.device) for image in images])",
        "images.to(job.device, non_blocking=True).float().div_(64).sub_(2)",
    ),
    ("torch.stack([label.to(job.device) for label in labels])", "labels.to(job.device, non_blocking=True)"),
    ("        losses.append(loss.item())\n", ""),
    (
        '        print(f"step {len(losses)}: loss {losses[-1]:.4f}, mean {sum(losses) / len(losses):.4f}")\n',
        "",
    ),
]
_BF16_CHANNELS_LAST: Edits = [
    *_BYTES_A_BATCH,
    *_CHANNELS_LAST,
    (
        ".sub_(2)\n        labels",
        ".sub_(2)\n        images = images.contiguous(memory_format=torch.channels_last)\n        labels",
    ),
    (
        "        loss = F.cross_entropy(model(images), labels)\n",
        "        with torch.autocast(job.device.type, torch.bfloat16):\n"
        "            loss = F.cross_entropy(model(images), labels)\n",
    ),
]
DECODED_EACH_STEP: Edits = [
    (
        "import ThreadPoolExecutor\n",
        "import ThreadPoolExecutor\nfrom queue import Queue\nfrom threading import Thread\n",
    ),
    (
        "def load(",
        '''def ahead(job):
    """The pixels of each batch, and what is chosen: read, decoded and sent by a thread on a stream of its own, and not kept."""
    ready, sizes = Queue(2), job.dataset.sizes
    height, width = ((sizes.amax(0) + 7) // 8 * 8).tolist()

    def fill():
        stream = torch.cuda.Stream() if job.device.type == "cuda" else None
        with ThreadPoolExecutor(8) as pool, torch.cuda.stream(stream):
            for step, batch in enumerate(job.batches):
                files = list(pool.map(lambda index: job.dataset[index][0], batch))
                pixels = torch.empty(len(batch), 3, height, width, dtype=torch.uint8, device=job.device)
                for place, picture in enumerate(decoded(files, job.device)):
                    pixels[place, :, : picture.shape[1], : picture.shape[2]] = picture
                chosen = torch.cat([torch.tensor(batch)[:, None], job.crops(step, sizes[batch])], dim=1)
                if stream:
                    chosen = chosen.pin_memory().to(job.device, non_blocking=True)
                ready.put((pixels, chosen, stream and stream.record_event()))

    Thread(target=fill, daemon=True).start()
    while True:
        pixels, chosen, done = ready.get()
        if done:
            torch.cuda.current_stream().wait_event(done)
            for tensor in (pixels, chosen):
                tensor.record_stream(torch.cuda.current_stream())
        yield pixels, chosen


def load(''',
    ),
    (
        "    pictures, classes = load(job.dataset, job.device), job.dataset.labels.to(job.device)\n",
        "    classes = job.dataset.labels.to(job.device)\n",
    ),
    ("cropped(stored[chosen[:, 0]], ", "cropped(stored, "),
    (
        "    for step, batch in enumerate(job.batches):\n"
        "        # all that a step needs from the host: six integers a picture\n"
        "        chosen = torch.cat([torch.tensor(batch)[:, None], job.crops(step, job.dataset.sizes[batch])], dim=1)\n"
        "        if cuda:\n"
        "            chosen = chosen.pin_memory().to(job.device, non_blocking=True)\n"
        "        loss = compiled(pictures, chosen)\n",
        "    for pixels, chosen in ahead(job):\n        loss = compiled(pixels, chosen)\n",
    ),
]
# nothing is decoded, cropped or sent: what the step itself can train, whatever feeds it
RESIDENT: Edits = [
    (
        "        images = cropped(stored[chosen[:, 0]], chosen[:, 1:], job.size).float().div(64).sub(2)\n",
        "        images = stored.float().div(64).sub(2)\n",
    ),
    (
        "        # all that a step needs from the host: six integers a picture\n"
        "        chosen = torch.cat([torch.tensor(batch)[:, None], job.crops(step, job.dataset.sizes[batch])], dim=1)\n"
        "        if cuda:\n"
        "            chosen = chosen.pin_memory().to(job.device, non_blocking=True)\n",
        "        if not step:\n"
        "            chosen = torch.cat([torch.tensor(batch)[:, None], job.crops(step, job.dataset.sizes[batch])], dim=1)\n"
        "            chosen = chosen.to(job.device)\n"
        "            images = cropped(pictures[chosen[:, 0]], chosen[:, 1:], job.size).round().to(torch.uint8)\n",
    ),
    ("compiled(pictures, chosen)", "compiled(images, chosen)"),
]
# the pictures are chosen outside: what a graph is given anew is copied, and all of them are 7 GB
RESNET_GRAPHED: Edits = [
    ("cropped(stored[chosen[:, 0]], ", "cropped(stored, "),
    ("compiled(pictures, chosen)", "compiled(pictures[chosen[:, 0]], chosen)"),
    ("torch.compile(loss_of)", 'torch.compile(loss_of, mode="reduce-overhead")'),
    ("yield loss.detach()", "yield loss.detach().clone()"),
]
RESIDENT_GRAPHED: Edits = [*RESIDENT, *RESNET_GRAPHED[2:]]


def _compiled_with(options: str) -> tuple[str, str]:
    return "torch.compile(loss_of)", f"torch.compile(loss_of, options={{{options}}})"


_BENCHMARK = "    torch.backends.cudnn.benchmark = True\n"
_EVERY_ALGORITHM = (_BENCHMARK, _BENCHMARK + "    torch.backends.cudnn.benchmark_limit = 0\n")  # 10 of them otherwise
# the first convolution on four channels, one of them zero: three are no size that tensor cores read
_FOUR_CHANNELS = (
    "    compiled = torch.compile",
    """    fourth = (0, 0, 0, 0, 0, 1)
    first = model.conv1
    first.forward = lambda images: F.conv2d(F.pad(images, fourth), F.pad(first.weight, fourth), stride=2, padding=3)
    compiled = torch.compile""",
)
_SEARCHED, _AS_PRODUCTS = '"coordinate_descent_tuning": True', '"conv_1x1_as_mm": True'
# what could make the step itself faster, each alone and all together
RESIDENT_TRIED: dict[str, Edits] = {
    "every algorithm of cuDNN's tried": [*RESIDENT, _EVERY_ALGORITHM],
    "a first convolution of four channels": [*RESIDENT, _FOUR_CHANNELS],
    "the compiler searches block sizes": [*RESIDENT, _compiled_with(_SEARCHED)],
    "1x1 convolutions as matrix products": [*RESIDENT, _compiled_with(_AS_PRODUCTS)],
    "all of these": [
        *RESIDENT,
        _EVERY_ALGORITHM,
        _FOUR_CHANNELS,
        _compiled_with(f"{_SEARCHED}, {_AS_PRODUCTS}"),
    ],
}
# for data sets that no GPU has room for
KEPT_BY_THE_HOST: Edits = [
    *DECODED_EACH_STEP,
    (
        "        with ThreadPoolExecutor(8) as pool, torch.cuda.stream(stream):\n",
        '        pictures = load(job.dataset, torch.device("cpu"))\n        with torch.cuda.stream(stream):\n',
    ),
    (
        "                files = list(pool.map(lambda index: job.dataset[index][0], batch))\n"
        "                pixels = torch.empty(len(batch), 3, height, width, dtype=torch.uint8, device=job.device)\n"
        "                for place, picture in enumerate(decoded(files, job.device)):\n"
        "                    pixels[place, :, : picture.shape[1], : picture.shape[2]] = picture\n",
        "                pixels = torch.empty(len(batch), 3, height, width, dtype=torch.uint8, pin_memory=bool(stream))\n"
        "                torch.index_select(pictures, 0, torch.tensor(batch), out=pixels)\n"
        "                pixels = pixels.to(job.device, non_blocking=True)\n",
    ),
]
_BY_THE_CPU = ('    if device.type == "cuda":\n        try:', "    if not device.type:\n        try:")
_BLOCKY: Edits = [
    _BY_THE_CPU,
    ("lambda file: decode_jpeg(file, ImageReadMode.RGB)", "blocky"),
    (
        "def load(",
        '''def blocky(file):
    """As decoders do that repeat each pixel of colour, which JPEG stores at half the resolution, in place of interpolating."""
    red, green, blue = decode_jpeg(file, ImageReadMode.RGB).float()
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    colour = F.avg_pool2d(torch.stack([red - grey, blue - grey])[None], 2, ceil_mode=True)
    red, blue = F.interpolate(colour, scale_factor=2)[0, :, : red.shape[0], : red.shape[1]] + grey
    green = (grey - 0.299 * red - 0.114 * blue) / 0.587
    return torch.stack([red, green, blue]).round().clamp(0, 255).to(torch.uint8)


def load(''',
    ),
]
_ONE_BY_ONE: Edits = [
    (
        "    top, left, height, width, flipped = boxes.unbind(1)\n",
        "    images = []\n"
        "    for picture, (top, left, height, width, flipped) in zip(pixels, boxes.tolist(), strict=True):\n"
        "        crop = picture[None, :, top : top + height, left : left + width].float()\n"
        '        crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)[0]\n'
        "        images.append(crop.flip(2) if flipped else crop)\n"
        "    return torch.stack(images)\n"
        "    top, left, height, width, flipped = boxes.unbind(1)\n",
    ),
    ("torch.compile(loss_of) if cuda else loss_of", "loss_of"),
]
_WITH_CHOSEN = "        loss = compiled(pictures, chosen)\n"
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
# the rungs of 4b's ladder, each on top of those before it
GPT2_LADDER: list[tuple[str, Edits]] = [
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


def climbed(ladder: list[tuple[str, Edits]], rungs: int) -> Edits:
    """The edits of the first `rungs` rungs of a ladder."""
    return [one for _, edits in ladder[:rungs] for one in edits]


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
_GPT2_SHORT_ATTENTION: Edits = [
    ("block.qkv(block.norm1(x))", "linear(block.norm1(x), block.qkv)"),
    (
        "block.out(attention(q, k, v).transpose(1, 2).flatten(2))",
        "linear(attention(q, k, v).transpose(1, 2).flatten(2), block.out)",
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
# GELU by one exponential and two products of a polynomial: 12 operations, not 25, where the memory waits for operations
_GPT2_SIGMOID_GELU: Edits = [
    (
        '    """GELU in few operations: one exponential serves value and slope. Abramowitz and Stegun 7.1.26, at most 1.5e-7 off."""\n',
        '    """x times the sigmoid of an odd polynomial, fitted to GELU: at most 2.6e-5 off, less than bf16 rounds it by."""\n',
    ),
    (
        """        x = x.float()
        t = 1 / (1 + (0.3275911 * 0.5**0.5) * x.abs())
        bell = torch.exp(-0.5 * x * x)
        t = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        tail = 0.5 * t * bell
        return x, torch.where(x < 0, tail, 1 - tail), bell
""",
        """        x = x.float()
        square = (x * x).clamp(max=64.0)  # beyond it the sigmoid is 0 or 1
        inner = x * (1.59501575 + square * (0.074011306 - square * 0.00070303495))
        return x, 1 / (1 + torch.exp(-inner)), square
""",
    ),
    (
        "        wide, share, bell = Gelu.parts(x)\n"
        "        return (gradient.float() * (share + wide * bell * 0.3989422804014327)).to(x.dtype)\n",
        "        wide, share, square = Gelu.parts(x)\n"
        "        slope = 1.59501575 + square * (3 * 0.074011306 - square * (5 * 0.00070303495))\n"
        "        return (gradient.float() * (share + wide * share * (1 - share) * slope)).to(x.dtype)\n",
    ),
]
# the head's kernels are short of what the memory moves (an H200, 64 windows: 6.0 and 2.3 ms of 104, for 13.2 and 6.6 GB): their
# tiles are searched once. (The best takes 5.6 and 2.3 ms: nothing is gained.)
_GPT2_SEARCHED: Edits = [
    (
        "@triton.jit\ndef row_loss(",
        '''def configurations(**sizes):
    """All combinations of some sizes and of 4, 8 or 16 warps, with 2048 to 16384 numbers a block."""
    names, warps = list(sizes), (4, 8, 16)
    chosen = [dict(zip(names, each)) for each in itertools.product(*sizes.values())]
    fits = [each for each in chosen if 2048 <= math.prod(each.values()) <= 16384]
    return [triton.Config(each, num_warps=w) for each in fits for w in warps]


@triton.autotune(configurations(BLOCK=[2048, 4096, 8192, 16384]), key=[])
@triton.jit
def row_loss(''',
    ),
    (
        "@triton.jit\ndef short_gradient(",
        "@triton.autotune(configurations(TALL=[32, 64, 128, 256], WIDE=[32, 64, 128]), key=[])\n"
        "@triton.jit\ndef short_gradient(",
    ),
    (
        "        row_loss[(tokens,)](logits, targets, losses, levels, words, rows, BLOCK, num_warps=4)\n",
        "        row_loss[(tokens,)](logits, targets, losses, levels, words, rows)\n",
    ),
    (
        "        grid = (rows // WIDE, tokens // TALL)\n",
        '        grid = lambda sizes: (rows // sizes["WIDE"], tokens // sizes["TALL"])\n',
    ),
    ("words, tokens, rows, OF_LOGITS, TALL, WIDE)\n", "words, tokens, rows, OF_LOGITS)\n"),
    ("TALL, WIDE = 64, 128  # a tile of it\n", ""),
    ("BLOCK = 4096  # numbers of a row at a time\n\n\n", ""),
    (
        "import triton\nimport triton.language as tl\n",
        "import itertools\nimport math\nimport triton\nimport triton.language as tl\n",
    ),
]
# of all layers only the product that makes the weights' gradient in 8 bits: neither what goes on up nor what goes on below is rounded
_GPT2_SHORT_WEIGHTS: Edits = [
    (
        "        a, b = short(x.flatten(0, -2), INPUTS), short(weight, WEIGHTS)\n"
        "        ctx.save_for_backward(a.t().contiguous(), b.t().contiguous(), inputs, weights, gradients)\n"
        "        return product(a, b, inputs, weights, fast=True).unflatten(0, x.shape[:-1])\n",
        "        long = weight.bfloat16()\n"
        "        ctx.save_for_backward(short(x.flatten(0, -2), INPUTS).t().contiguous(), long, inputs, gradients)\n"
        "        return F.linear(x.bfloat16(), long)\n",
    ),
    (
        "        a, b, inputs, weights, gradients = ctx.saved_tensors\n",
        "        a, long, inputs, gradients = ctx.saved_tensors\n",
    ),
    (
        "        d_x = product(wrong, b, gradients, weights).unflatten(0, gradient.shape[:-1])\n",
        "        d_x = gradient.bfloat16() @ long\n",
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
# The head's gradient goes on to all layers below: with that product left in bf16, a training with the feed-forward's backward
# pass in 8 bits is nearly as near to the one in fp32 as with the head alone in 8 bits (tried with numbers rounded to 8 bits on a
# CPU, AMD EPYC, torch 2.15: six layers of 384, ten steps, 1 - cosine of the update 0.0020; 0.0015 with the head alone and all of it
# in 8 bits, 0.0030 with both, 0.0003 in bf16). An H200 says 0.0045 for it (data/measured/nvidia-h200/nanogpt_parity_2026-11-23.json).
_GPT2_LONG_BELOW_HEAD: Edits = [
    (
        """    share = share.to(by_token.dtype.element_ty)
    tl.store(by_token + rows[:, None] * stride + columns[None, :], share)
    tl.store(by_word + columns[:, None] * tokens + rows[None, :], tl.trans(share))
""",
        """    tl.store(by_token + rows[:, None] * stride + columns[None, :], share.to(by_token.dtype.element_ty))
    tl.store(by_word + columns[:, None] * tokens + rows[None, :], tl.trans(share.to(by_word.dtype.element_ty)))
""",
    ),
    ("All products in 8 bits.", "Two of three products in 8 bits."),
    (
        "(a, a_t), (b, b_t) = both_ways(hidden, INPUTS), both_ways(head, WEIGHTS)",
        "(a, a_t), (b, _) = both_ways(hidden, INPUTS), both_ways(head, WEIGHTS)",
    ),
    ("by_token = logits.new_empty(tokens, rows, dtype=torch.float8_e5m2)", "by_token = torch.empty_like(logits)"),
    (
        "ctx.save_for_backward(a_t, b_t, by_token, by_word, inputs, weights)",
        "ctx.save_for_backward(a_t, head.bfloat16(), by_token, by_word, inputs)",
    ),
    (
        "        a_t, b_t, by_token, by_word, inputs, weights = ctx.saved_tensors\n",
        "        a_t, head, by_token, by_word, inputs = ctx.saved_tensors\n",
    ),
    ("return product(by_token, b_t, scale, weights), product(", "return (by_token @ head) * scale, product("),
]
# what a compiled GPT-2 can still gain: edits of 4b's solution, to be tried one by one and together on a GPU
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
    "head and feed-forward in 8 bits, sums row by row": [
        *_GPT2_8_BITS,
        *_GPT2_SHORT_MLP,
        *_GPT2_ROWS,
    ],
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
    "head but what goes on below, and the feed-forward's backward pass, in 8 bits, sums row by row, e4m3": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
        *_GPT2_LONG_BELOW_HEAD,
        *_GPT2_SHORT_MLP,
        *_GPT2_SHORT_BACKWARD,
        *_GPT2_E4M3,
    ],
    "the head in 8 bits, its tiles searched": [*_GPT2_8_BITS, *_GPT2_ROWS, *_GPT2_SEARCHED],
    "the head in 8 bits, its tiles searched, a GELU of fewer operations": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
        *_GPT2_SEARCHED,
        *_GPT2_SIGMOID_GELU,
    ],
    "the head and the feed-forward's weights' gradients in 8 bits, sums row by row": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
        *_GPT2_SHORT_MLP,
        *_GPT2_SHORT_WEIGHTS,
    ],
    "the head and all weights' gradients in 8 bits, sums row by row": [
        *_GPT2_8_BITS,
        *_GPT2_ROWS,
        *_GPT2_SHORT_MLP,
        *_GPT2_SHORT_ATTENTION,
        *_GPT2_SHORT_WEIGHTS,
    ],
    "all products in 8 bits, FlashAttention's": [
        *_GPT2_8_BITS,
        *_GPT2_FLASH,
        *_GPT2_SHORT_MLP,
        *_GPT2_SHORT_ATTENTION,
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
_UNET_KERNELS: Edits = [
    (
        "    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n"
        "    weights = torch.softmax(scores, dim=-1)\n"
        "    return weights @ v\n",
        "    return F.scaled_dot_product_attention(q, k, v)\n",
    ),
    (
        "    x = x.permute(0, 2, 3, 1).contiguous()\n",
        "    return norm(x)\n    x = x.permute(0, 2, 3, 1).contiguous()\n",
    ),
]
# the rungs of 4d's, likewise
TRAINER_LADDER: list[tuple[str, Edits]] = [
    ("bf16", [("bf16=False", "bf16=True")]),
    ("attn_implementation", [('"eager"', '"sdpa"')]),
    ("pad_to_multiple_of", [('"sdpa")', '"sdpa", pad_to_multiple_of=64)')]),
    (
        "the whole batch at a time",
        [
            ("per_device_train_batch_size=4", "per_device_train_batch_size=job.batches.batch_size"),
            ("gradient_accumulation_steps=job.batches.batch_size // 4", "gradient_accumulation_steps=1"),
        ],
    ),
    (
        "nothing that waits",
        [
            ("        torch_empty_cache_steps=1,\n", ""),
            ("logging_steps=1,", "logging_steps=500,"),
            ("logging_nan_inf_filter=True", "logging_nan_inf_filter=False"),
            (
                "dataloader_pin_memory=False,",
                'dataloader_pin_memory=job.device.type == "cuda",\n        accelerator_config={"non_blocking": True},',
            ),
        ],
    ),
    ("a fused optimizer", [('"adamw_torch"', '"adamw_torch_fused"')]),
]
_TRAINER = "    yield from optimizer_steps(JobTrainer(job, model, arguments))\n"
_PICTURES_AT_ONCE: Edits = [
    (
        "        logits = torch.stack([classify(resnet, image, job.device) for image in request.images])\n",
        "        pixels = request.images.permute(0, 3, 1, 2).float().div(64).sub(2)\n"
        "        logits = resnet.eval()(pixels.to(job.device)).detach()\n",
    )
]
_SERVED, _SERVES = "        yield scores, logits", "    scoring, classifying, stream = "
SERVED_EAGER: Edits = [
    (
        '        scoring = torch.compile(score, mode="reduce-overhead", dynamic=False)  # a CUDA graph for each length\n'
        '        classifying = torch.compile(classify, mode="reduce-overhead", dynamic=False)\n',
        "",
    )
]
_SERVED_FP32: Edits = [
    ("        gpt.bfloat16()  # nothing is trained: no need for weights in fp32\n", ""),
    ("resnet.bfloat16().to(", "resnet.to("),
]
SERVED_PLAIN: Edits = [*SERVED_EAGER, *_SERVED_FP32]
THREE_SYNCS_LESS: Edits = [
    ("loss=loss.item()", "loss=loss"),
    ('        print(f"step {step}: loss {loss:.4f}")\n', ""),
    ("            torch.cuda.synchronize()\n", "            pass\n"),
]
_FIVE_SYNCS_LESS: Edits = [
    *THREE_SYNCS_LESS,
    (_MODEL, _MODEL + "    letters = torch.tensor(LETTERS, device=job.device)\n"),
    ("torch.tensor(LETTERS, device=job.device)[targets]", "letters[targets]"),
    ("logits.detach().cpu().argmax(-1) == targets.cpu()", "logits.detach().argmax(-1) == targets"),
]

UNMADE = ("3i_triton",)  # the starter has none of what is asked for: halves of the fix are edits of the solution
HALVES: dict[str, dict[str, Edits]] = {
    "2a_workers": {
        "two workers": [(LOADER, LOADER + ", num_workers=2")],
        "four workers, not pinned": [(LOADER, LOADER + ", num_workers=4, persistent_workers=True")],
    },
    "2b_transfers": {
        "pinned, one stream": [
            ("*tiles.shape[1:])", "*tiles.shape[1:], pin_memory=job.device.type == 'cuda')"),
        ],
        "bytes, blocking, from pageable memory": [
            (
                "    tiles, classes = job.dataset.images, job.dataset.labels\n",
                "    tiles = torch.stack([((tile + 1.5) * 64).to(torch.uint8) for tile in job.dataset.images])\n"
                "    classes = job.dataset.labels\n",
            ),
            ("*tiles.shape[1:])", "*tiles.shape[1:], dtype=torch.uint8)"),
            ("staged.to(job.device)", "staged.to(job.device).float().div_(64).sub_(1.5)"),
        ],
    },
    "2c_transforms": {
        "a table for all samples, in numpy": [
            ("        curve = [(value / 255) ** GAMMA for value in range(256)]\n", ""),
            (
                "torch.tensor([curve[value] for value in pixels])",
                "CURVE[torch.frombuffer(bytearray(pixels), dtype=torch.uint8).int()]",
            ),
            ("GAMMA = 0.4\n", "GAMMA = 0.4\nCURVE = (torch.arange(256) / 255) ** GAMMA\n"),
        ],
        "the list through an array": [
            ("import contextlib\n", "import contextlib\nfrom array import array\n"),
            (
                "torch.tensor([curve[value] for value in pixels])",
                'torch.frombuffer(array("f", [curve[value] for value in pixels]), dtype=torch.float32)',
            ),
        ],
    },
    "2d_formats": {
        "more workers, small files": [
            ("len(os.sched_getaffinity(0)) // 2 if cuda else 0", "32 if cuda else 2"),
        ],
        "copied to the disk, one by one, as small files": [
            (
                '''as job.folder."""
''',
                '''as job.folder."""
    for index in range(len(dataset)):
        (folder / str(index)).write_bytes(dataset.read(index))


class Copied(torch.utils.data.Dataset):
    def __init__(self, dataset, folder):
        self.dataset, self.folder = dataset, folder

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        pixels = torch.frombuffer(bytearray((self.folder / str(index)).read_bytes()), dtype=torch.uint8)
        return pixels.view(3, self.dataset.size, self.dataset.size), self.dataset.labels[index]
''',
            ),
            ("        job.dataset,\n", "        Copied(job.dataset, job.folder),\n"),
        ],
    },
    "2e_syncs": {
        "the mask is still an index, and the CPU clips": _FIVE_SYNCS_LESS,
        "only the mask is still an index": [
            *_FIVE_SYNCS_LESS,
            ("        if norm > MAX_NORM:\n            for", "        if True:\n            for"),
            ("*= MAX_NORM / norm", "*= (MAX_NORM / norm).clamp(max=1)"),
        ],
    },
    "2f_end_to_end": {
        "one table for all samples": _TABLE,
        "one table, and the connection is kept": [
            *_TABLE,
            ("        self.archive = archive\n", "        self.archive, self.database = archive, None\n"),
            (
                "        with contextlib.closing(self.archive.connect()) as database:\n",
                "        self.database = self.database or self.archive.connect()\n"
                "        with contextlib.nullcontext(self.database) as database:\n",
            ),
        ],
    },
    # nothing to fix, so nothing to fix by half: changes that do no harm
    "2g_healthy": {
        "two workers": [
            ("pin_memory=cuda)", "pin_memory=cuda, num_workers=2 if cuda else 0, persistent_workers=cuda)")
        ],
        "four workers that are far ahead": [
            ("pin_memory=cuda)", "pin_memory=cuda, num_workers=4 if cuda else 0, prefetch_factor=8 if cuda else None)")
        ],
    },
    "3a_precision": {"TF32": TF32, "bf16 autocast alone": autocast("3a_precision")},
    "3c_shapes": {
        "no transposition": [_TRANSPOSED],
        "padded in each step, still transposed": [_PADDED],
    },
    "3d_tiny_ops": {
        "a fused optimizer, and nothing else": [
            (
                "    state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]\n",
                "    optimizer = torch.optim.AdamW(parameters, lr=job.lr, fused=True)\n",
            ),
            (
                "        adamw(parameters, state, job.lr, step)\n"
                "        for parameter in parameters:\n"
                "            parameter.grad.zero_()\n",
                "        optimizer.step()\n        optimizer.zero_grad()\n",
            ),
        ],
        "fused functions, heads and parameters one by one": [
            (
                "    centred = x - x.mean(-1, keepdim=True)\n"
                "    variance = (centred * centred).mean(-1, keepdim=True)\n"
                "    return centred / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias\n",
                "    return norm(x)\n",
            ),
            ("0.5 * x * (1 + torch.erf(x / math.sqrt(2)))", "torch.nn.functional.gelu(x)"),
            (
                "    exponents = torch.exp(x - x.amax(-1, keepdim=True))\n"
                "    return exponents / exponents.sum(-1, keepdim=True)\n",
                "    return x.softmax(-1)\n",
            ),
            ("torch.matmul(x, layer.weight.t()) + layer.bias", "layer(x)"),
            (
                "    chosen = softmax(logits).gather(-1, targets.unsqueeze(-1)).squeeze(-1)\n"
                "    return -torch.log(chosen).mean()\n",
                "    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
            ),
        ],
    },
    "3e_compile": {
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
    },
    "3f_attention": {
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
    },
    # what is half here is the growth of memory, see `tests/test_phase3_memory.py`
    "3g_leak": {
        "losses and confidence without their graph": [
            ("losses.append(loss)", "losses.append(loss.detach())"),
            ("0.1 * logits.softmax(-1)", "0.1 * logits.detach().softmax(-1)"),
        ],
        "the hook keeps the last one only": [
            (
                "lambda module, inputs, output: activations.append(output.detach())",
                "lambda module, inputs, output: activations.__setitem__(slice(None), [output.detach()])",
            )
        ],
        "everything is detached, and the lists stay": [
            ("losses.append(loss)", "losses.append(loss.detach())"),
            ("        # what the run's dashboard shows\n", "        logits = logits.detach()\n"),
        ],
    },
    "3h_fit": {
        "attention chooses its kernel": [(_MATH, _ANY)],
        "attention chooses its kernel, no checkpoints": [(_MATH, _ANY), (_CHECKPOINT, "block(x)")],
        "checkpoints stay, six samples at a time": [
            (_MATH, _ANY),
            ("MICRO_BATCH = 1", "MICRO_BATCH = 6"),
            ("/ len(tokens)", "* (len(part) / len(tokens))"),
        ],
    },
    "3i_triton": {"one warp a row": [("num_warps=min(16, max(1, block // 512))", "num_warps=1")]},
    # nothing to fix here either
    "3k_healthy": {
        "TF32 for what autocast leaves": TF32,
        "the switch for convolutions": [(_MODEL, "    torch.backends.cudnn.benchmark = True\n" + _MODEL)],
    },
    "3m_fp16": {
        "TF32": TF32,
        "fp16 in the blocks, fp32 in the head": [
            (
                "    loader = ",
                "    scaler = torch.amp.GradScaler(job.device.type, init_scale=2.0**13)\n    loader = ",
            ),
            (
                "        logits = model(tokens)\n",
                "        with torch.autocast(job.device.type, torch.float16):\n"
                "            hidden = model.hidden(tokens)\n"
                "        logits = F.linear(hidden.float(), model.embedding.weight)\n",
            ),
            (
                "        loss.backward()\n",
                "        scaler.scale(loss).backward()\n        scaler.unscale_(optimizer)\n",
            ),
            (_STEP, "        scaler.step(optimizer)\n        scaler.update()\n"),
        ],
    },
    "4a_resnet50": {
        "workers": _CROPPED_WORKERS,
        "workers, one pinned copy of bytes a batch, no number read": _BYTES_A_BATCH,
        "the same, bf16 and channels_last": _BF16_CHANNELS_LAST,
        "the same, compiled, with a fused optimizer": [
            *_BF16_CHANNELS_LAST,
            *COMPILED,
            ("model(images)", "compiled(images)"),
            ("foreach=False", "fused=True"),
        ],
    },
    "3j_communication": {
        "averaged once a step, one by one": [(_AVERAGING, textwrap.indent(textwrap.dedent(_AVERAGING), " " * 8))],
        "one bucket for each micro-batch": [
            (
                _AVERAGING,
                "            gradients = [parameter.grad for parameter in model.parameters()]\n"
                "            bucket = torch.cat([gradient.flatten() for gradient in gradients])\n"
                "            dist.all_reduce(bucket)\n"
                "            parts = (bucket / job.world_size).split([gradient.numel() for gradient in gradients])\n"
                "            for gradient, part in zip(gradients, parts, strict=True):\n"
                "                gradient.copy_(part.view_as(gradient))\n",
            )
        ],
    },
    "4b_nanogpt": {
        "TF32": climbed(GPT2_LADDER, 1),
        "TF32, bf16 autocast": climbed(GPT2_LADDER, 2),
        "TF32, bf16 autocast, fused attention": climbed(GPT2_LADDER, 3),
    },
    "4c_unet": {
        "pictures and noise by the batch": [
            (
                "DataLoader(Scaled(job.dataset), batch_sampler=job.batches)",
                "(torch.from_numpy(job.dataset.pixels[i]).permute(0, 3, 1, 2) / 127.5 - 1 for i in job.batches)",
            ),
            (
                """        noisy = [
            add_noise(picture, grain, job.schedule[time.item()].item())
            for picture, grain, time in zip(pictures, noise, times)
        ]
""",
                """        signal = schedule[times].view(-1, 1, 1, 1)
        noisy = signal.sqrt() * pictures + (1 - signal).sqrt() * noise
""",
            ),
            ("torch.stack(noisy)", "noisy"),
            ("    average = job", "    schedule = job.schedule.to(job.device)\n    average = job"),
        ],
        "a kernel each for attention and normalisation": _UNET_KERNELS,
        "bf16 and TF32, and nothing else": [
            ("allow_tf32 = False", "allow_tf32 = True"),
            (
                "        loss = F.mse_loss(net(torch.stack(noisy), times), noise)\n",
                "        with torch.autocast(job.device.type, torch.bfloat16, enabled=job.device.type == 'cuda'):\n"
                "            predicted = net(torch.stack(noisy), times)\n"
                "        loss = F.mse_loss(predicted.float(), noise)\n",
            ),
        ],
    },
    "4d_trainer": {
        "bf16": climbed(TRAINER_LADDER, 1),
        "bf16, attn_implementation": climbed(TRAINER_LADDER, 2),
        "bf16, attn_implementation, pad_to_multiple_of": climbed(TRAINER_LADDER, 3),
    },
    "4e_inference": {
        "a call for all pictures": _PICTURES_AT_ONCE,
        "a call for all texts, and one for all pictures": [
            *_PICTURES_AT_ONCE,
            (
                "        scores = torch.stack([score(gpt, text, job.lengths[-1], job.device) for text in request.texts])\n",
                """        texts, length = request.texts, job.lengths[-1]
        tokens = torch.tensor([tokenise(text) + [0] * (length - len(text)) for text in texts]).to(job.device)
        chances = gpt.eval()(tokens).log_softmax(-1)
        scores = chances.gather(-1, tokens.roll(-1, 1)[..., None])[..., 0].detach()
        for row, text in zip(scores, texts):
            row[len(text) - 1 :] = 0
""",
            ),
        ],
        "no gradients, and no waits": [
            ("def score(", "@torch.inference_mode()\ndef score("),
            ("def classify(", "@torch.inference_mode()\ndef classify("),
            ('    if device.type == "cuda":\n        torch.cuda.synchronize()\n', ""),
        ],
    },
}
# name -> (what it is made of, edits, words of the report)
WRONGS: dict[str, dict[str, tuple[str, Edits, str]]] = {
    "2a_workers": {
        "half the batch": (
            "solution",
            [("model(images), labels", "model(images[::2]), labels[::2]")],
            "not the same training",
        ),
        "the shorter list of samples": (
            "solution",
            [
                (
                    "        job.dataset,",
                    "        torch.utils.data.Subset(job.dataset, [i // 2 for i in range(len(job.dataset))]),",
                )
            ],
            "not the same training",
        ),
    },
    "2b_transfers": {
        "bytes that are never converted": (
            "solution",
            [("pixels.float().div_(64).sub_(1.5)", "pixels.float()")],
            "not the same training",
        ),
        "labels of other tiles": (
            "solution",
            [("(source, 0, index, out", "(source, 0, index if source is tiles else index.roll(1), out")],
            "not the same training",
        ),
        "one pinned buffer, filled while it is read": (
            "starter",
            [
                ("*tiles.shape[1:])", "*tiles.shape[1:], pin_memory=job.device.type == 'cuda')"),
                ("staged.to(job.device)", "staged.to(job.device, non_blocking=True)"),
                ("classes[index].to(job.device)", "classes[index]"),
                ("for index in batch])", "for index in batch]).to(job.device, non_blocking=True)"),
            ],
            "GPU: not the same training",
        ),
        "all tiles kept on the GPU": (
            "starter",
            [
                ("job.dataset.images, job.dataset.labels", "job.dataset.images.to(job.device), job.dataset.labels"),
                ("    staged = torch.empty(job.batches.batch_size, *tiles.shape[1:])\n", ""),
                ("        torch.index_select(tiles, 0, torch.tensor(batch), out=staged)\n", ""),
                ("staged.to(job.device)", "tiles[torch.tensor(batch, device=job.device)]"),
            ],
            "GPU: No batch crossed the bus",
        ),
    },
    "2c_transforms": {
        "shadows left dark": ("solution", [("/ 255) ** GAMMA", "/ 255)")], "not the same training"),
        "scaled over the batch": (
            "solution",
            [(".mean((2, 3), keepdim=True)", ".mean()"), (".std((2, 3), keepdim=True)", ".std()")],
            "not the same training",
        ),
    },
    "2d_formats": {
        "written as the answers come": (
            "solution",
            [
                (
                    "pool.map(dataset.read, range(len(dataset)))",
                    "reversed(list(pool.map(dataset.read, range(len(dataset)))))",
                )
            ],
            "not the same training",
        ),
        "stored at half the resolution": (
            "solution",
            [
                (
                    "            shard.write(pixels)\n",
                    "            tile = np.frombuffer(pixels, np.uint8).reshape(3, dataset.size, dataset.size)\n"
                    "            shard.write(tile[:, ::2, ::2].repeat(2, 1).repeat(2, 2).tobytes())\n",
                ),
            ],
            "not the same training",
        ),
    },
    "2e_syncs": {
        "does not clip": (
            "solution",
            [("clip_grad_norm_(model.parameters(), MAX_NORM)", "get_total_norm([p.grad for p in model.parameters()])")],
            "not the same training",
        ),
        "logs every tenth step": (
            "solution",
            [("            job.log(", "            if step % 10 == 0:\n                job.log(")],
            "step 1 logged no loss, on_letters, accuracy, norm",
        ),
        "logs the step before": (
            "starter",
            [
                ("    for step,", "    before = None\n    for step,"),
                (
                    "        job.log(step, loss=loss.item()",
                    "        job.log(step, loss=loss if before is None else before",
                ),
                ("        yield loss", "        before = loss.detach()\n        yield loss"),
            ],
            "step 1 logged the loss",
        ),
    },
    "2f_end_to_end": {
        "a smaller batch": (
            "solution",
            [
                (
                    "        logits = model(images)\n",
                    "        images, labels = images[::2], labels[::2]\n        logits = model(images)\n",
                )
            ],
            "not the same training",
        ),
        "the accuracy is not logged": (
            "solution",
            [("accuracy=(logits.argmax(1) == labels).float().mean()", "")],
            "step 0 logged no accuracy",
        ),
    },
    "2g_healthy": {
        "the accuracy of each batch, by a second pass": (
            "starter",
            [
                (
                    "        yield loss",
                    "        for _ in range(2):\n"
                    "            right = (model(tokens).argmax(-1) == targets).float().mean().item()\n"
                    "        yield loss",
                )
            ],
            "made it slower",
        ),
        "double the learning rate": ("starter", [("lr=job.lr", "lr=2 * job.lr")], "not the same training"),
    },
    "3a_precision": {
        "the model cast to bf16": (
            "starter",
            [(_MODEL, _MODEL + "    model.bfloat16()\n"), ("model(tokens)", "model(tokens).float()")],
            "weights must stay float32",
        ),
        "shorter windows": (
            "starter",
            [("        logits = ", "        tokens, targets = tokens[:, ::2], targets[:, ::2]\n        logits = ")],
            "not the same training",
        ),
    },
    "3c_shapes": {
        "handed back with the padding": (
            "solution",
            [
                (
                    "    job.weights = lambda: {name: p[:words] if p is rows else p for name, p in model.named_parameters()}\n",
                    "",
                )
            ],
            "lack these of the job's under their names and shapes",
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
    },
    "3d_tiny_ops": {
        "a foreach optimizer without the bias correction": (
            "starter",
            [
                ("            parameter.grad.zero_()\n", "            parameter.grad = None\n"),
                (
                    "    for parameter, (mean, square) in zip(parameters, state, strict=True):\n",
                    "    means, squares = zip(*state, strict=True)\n"
                    "    gradients = [parameter.grad for parameter in parameters]\n"
                    "    torch._foreach_lerp_(means, gradients, 1 - BETA1)\n"
                    "    torch._foreach_mul_(squares, BETA2)\n"
                    "    torch._foreach_addcmul_(squares, gradients, gradients, 1 - BETA2)\n"
                    "    scales = torch._foreach_sqrt(squares)\n"
                    "    torch._foreach_add_(scales, EPSILON)\n"
                    "    torch._foreach_mul_(parameters, 1 - lr * DECAY)\n"
                    "    torch._foreach_addcdiv_(parameters, means, scales, -lr)\n"
                    "    for parameter, (mean, square) in ():\n",
                ),
            ],
            "not the same training",
        ),
        "heads at once, and the mask forgotten": (
            "solution",
            [("q, k, v, is_causal=True", "q, k, v")],
            "not the same training",
        ),
        "gradients that are never set to zero": (
            "solution",
            [("        optimizer.zero_grad()  # to None: there is nothing to write, and nothing to add to\n", "")],
            "not the same training",
        ),
        "a CUDA graph of the first batch": (
            "solution",
            [GRAPHED, ("        static[0].copy_(tokens), static[1].copy_(targets)\n", "")],
            "GPU: not the same training",
        ),
    },
    "3e_compile": {
        "compiled as it is": ("starter", AS_IT_IS, "GPU: lines at which torch.compile gave up"),
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
        "the largest activation is not logged": (
            "solution",
            [(", largest=largest)", ")")],
            "step 0 logged no largest",
        ),
    },
    "3f_attention": {
        "the future is seen": ("solution", [(", is_causal=True", "")], "not the same training"),
        "scores scaled twice": (
            "solution",
            [
                ("q, k, v, is_causal", "q / math.sqrt(q.shape[-1]), k, v, is_causal"),
                ("import torch\n", "import math\n\nimport torch\n"),
            ],
            "not the same training",
        ),
        "the mean of what came before, in place of attention": (
            "solution",
            [
                (
                    "    return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                    "    return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1, device=v.device)[:, None]",
                )
            ],
            "not the same training",
        ),
        "only the last 256 tokens are seen": (
            "starter",
            [("device=q.device).triu(1)", "device=q.device)\n    future = future.triu(1) | future.tril(-256)")],
            "not the same training",
        ),
        "the math backend": (
            "solution",
            [
                ("    return F.", "    with sdpa_kernel(SDPBackend.MATH):\n        return F."),
                (
                    "from torch.utils.data",
                    "from torch.nn.attention import SDPBackend, sdpa_kernel\nfrom torch.utils.data",
                ),
            ],
            "matrices of scores, and of their gradients, are written",
        ),
    },
    "3g_leak": {
        "the cache is emptied, and all is collected": (
            "starter",
            [
                ("import torch\n", "import gc\n\nimport torch\n"),
                ("        yield loss", "        gc.collect()\n        torch.cuda.empty_cache()\n        yield loss"),
            ],
            "behind (main memory); the untouched loop",
        ),
        "fewer logs": ("solution", [("                confidence=confidence,\n", "")], "step 0 logged no confidence"),
        "an average of the last loss only": (
            "solution",
            [("average=total / (step + 1)", "average=loss")],
            "average of step",
        ),
    },
    "3h_fit": {
        "all samples at once": (
            "solution",
            [("MICRO_BATCH = 6", "MICRO_BATCH = 64")],
            "main memory; 70 MB are allowed",
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
    },
    "3i_triton": {
        "the mask forgotten in the variance": (
            "solution",
            [("tl.where(inside, y - mean, 0.0)", "y - mean")],
            "no power of two: off by",
        ),
        "the stride of a row taken for its width": (
            "solution",
            [("row * x_stride", "row * width"), ("row * residual_stride", "row * width")],
            "rows that lie apart: off by",
        ),
        "mean square less squared mean": (
            "solution",
            [
                (
                    "variance = tl.sum(centred * centred, axis=0) / width",
                    "variance = tl.sum(y * y, axis=0) / width - mean * mean",
                )
            ],
            "float32, far from zero: off by",
        ),
        "calculated in 16 bits": ("solution", [(".to(tl.float32)", "")], "bfloat16: The submission raised"),
        "float32 for every result": ("solution", [("dtype=x.dtype", "dtype=torch.float32")], "in place of"),
        "layer norm left to torch": (
            "solution",
            [("    return out", "    return torch.nn.functional.layer_norm(out, (width,))")],
            "operators of torch calculated: aten::native_layer_norm",
        ),
        "numpy": (
            "solution",
            [
                ("@triton.jit\n", ""),
                ("    rows, width = x.shape\n", "    return torch.from_numpy(x.float().numpy() * 1)\n"),
            ],
            "no function is decorated with @triton.jit",
        ),
    },
    "3k_healthy": {
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
    },
    "3m_fp16": {
        "no scale": (
            "solution",
            [("init_scale=2.0**13", "enabled=False")],
            "GPU: not the same training",
        ),
        "clips what is still scaled": (
            "solution",
            [
                (
                    "        scaler.unscale_(optimizer)  # the norm to clip by is that of the gradients themselves\n",
                    "",
                )
            ],
            "not the same training",
        ),
        # without a fused kernel AdamW's epsilon, 1e-8, is 0 in fp16
        "the weights in fp16": (
            "starter",
            [(_MODEL, _MODEL + "    model.half()\n"), ("model(tokens)", "model(tokens).float()")],
            "training diverged or overflowed",
        ),
    },
    "4a_resnet50": {
        "each picture cropped once, and the crop kept": (
            "solution",
            [("job.crops(step,", "job.crops(0,")],
            "not the same training",
        ),
        "never flipped": (
            "solution",
            [("    columns = torch.where(flipped[:, None, None] == 1, columns.flip(1), columns)\n", "")],
            "not the same training",
        ),
        "resized without antialiasing": ("solution", [("scale.clamp(min=1)", "1")], "not the same training"),
        "decoded at half the size": (
            "solution",
            [
                (
                    "] = picture",
                    "] = F.interpolate(F.avg_pool2d(picture[None].float(), 2, ceil_mode=True), scale_factor=2)"
                    "[0, :, : picture.shape[1], : picture.shape[2]].to(torch.uint8)",
                )
            ],
            "GPU: not the same training",
        ),
        "half the batch": (
            "solution",
            [(_WITH_CHOSEN, "        chosen = chosen[::2]\n" + _WITH_CHOSEN)],
            "not the same training",
        ),
    },
    "3j_communication": {
        "never averaged": ("solution", [("if n < MICRO_BATCHES else", "if n else")], "not the same training"),
        "the same part in each rank": (
            "solution",
            [("batch[job.rank :: job.world_size]", "batch[0 :: job.world_size]")],
            "not the same training",
        ),
        "only the last micro-batch counts": (
            "solution",
            [
                (
                    "                loss.backward()\n",
                    "                optimizer.zero_grad()\n                loss.backward()\n",
                )
            ],
            "not the same training",
        ),
        "not all gradients are averaged": (
            "starter",
            [("in model.parameters():", "in model.blocks[-1].parameters():")],
            "not the same training",
        ),
    },
    "4b_nanogpt": {
        "the future is seen": ("solution", [(", is_causal=True", "")], "not the same training"),
        "every second window": (
            "solution",
            [("        windows = windows.long()\n", "        windows = windows.long()[::2]\n")],
            "not the same training",
        ),
        "targets that are not shifted": ("solution", [("windows[:, 1:]", "windows[:, :-1]")], "not the same training"),
        "the model cast to bf16": (
            "solution",
            [
                (_MODEL, _MODEL + "    model.bfloat16()\n"),
                ("F.linear(hidden, head)", "F.linear(hidden, head).float()"),
            ],
            "weights must stay float32",
        ),
        "handed back with the padding": (
            "solution",
            [
                *GPT2_CANDIDATES["rows that stay, handed back without them"],
                ("p[:words] if p is rows else p", "p"),
            ],
            "lack these of the job's under their names and shapes",
        ),
        "the loss is not logged": ("solution", [("        job.log(step, loss=loss)\n", "")], "step 0 logged no loss"),
        "the mean of what came before, in place of attention": (
            "solution",
            [
                (
                    "    return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                    "    return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1, device=v.device)[:, None]",
                )
            ],
            "not the same training",
        ),
    },
    "4c_unet": {
        "the average is left as it is": (
            "solution",
            [("        update_average(averages, weights, step)\n", "")],
            "these parameters were never updated: average.",
        ),
        "the average is a step late": (
            "solution",
            [
                ("        update_average(averages, weights, step)\n", ""),
                (
                    "        optimizer.step()\n",
                    "        update_average(averages, weights, step)\n        optimizer.step()\n",
                ),
            ],
            "not the same training",
        ),
        "the same noise in every step": (
            "solution",
            [("job.generator(step)", "job.generator(0)")],
            "not the same training",
        ),
        "half the batch": (
            "solution",
            [
                (
                    "loss_of(batch, times, noise)\n        loss.b",
                    "loss_of(batch[::2], times[::2], noise[::2])\n        loss.b",
                )
            ],
            "not the same training",
        ),
        "pictures at half their size": (
            "solution",
            [
                (
                    "        signal =",
                    "        pictures = F.interpolate(F.avg_pool2d(pictures, 2), scale_factor=2.0)\n        signal =",
                )
            ],
            "not the same training",
        ),
    },
    "4d_trainer": {
        "half the batch": (
            "solution",
            [("batch_size=job.batches.batch_size", "batch_size=job.batches.batch_size // 2")],
            "an optimizer step must train on the job's batch of 12 windows",
        ),
        "a schedule with a warm-up": (
            "solution",
            [('"constant",', '"constant_with_warmup",\n        warmup_steps=100,')],
            "not the same training",
        ),
        "another optimizer": ("solution", [('"adamw_torch_fused"', '"adafactor"')], "not the same training"),
        "the model cast to bf16": (
            "solution",
            [("    # two levers", "    job.model.bfloat16()\n    # two levers")],
            "weights must stay float32",
        ),
    },
    "4e_inference": {
        "the answers to the request before": (
            "solution",
            [
                ("    for request in job.requests:\n", "    before = None\n    for request in job.requests:\n"),
                (
                    _SERVED,
                    "        before, (scores, logits) = (scores, logits), before or (scores, logits)\n" + _SERVED,
                ),
            ],
            "not the same answers",
        ),
        "in the order of their lengths": (
            "solution",
            [("            scores = scores[sent(places, job.device, stream)]\n", "")],
            "not the same answers",
        ),
        "the padding is scored": (
            "solution",
            [
                (
                    "    return found * (torch.arange(padded.shape[1], device=padded.device) < ends[:, None])",
                    "    return found",
                )
            ],
            "not the same answers",
        ),
        "half of the context": (
            "solution",
            [
                (
                    "gpt(tokens).float()",
                    "torch.cat([gpt(half) for half in tokens.chunk(2, 1)], 1).float()",
                )
            ],
            "not the same answers",
        ),
        "pictures at half their size": (
            "solution",
            [
                (
                    "    return resnet(images.permute(0, 3, 1, 2)",
                    "    images = images[:, ::2, ::2].repeat_interleave(2, 1).repeat_interleave(2, 2)\n"
                    "    return resnet(images.permute(0, 3, 1, 2)",
                )
            ],
            "not the same answers",
        ),
        "no pictures": (
            "solution",
            [("yield scores, logits", "yield scores")],
            "must yield two tensors for each request",
        ),
    },
}


# of labs whose loops run in bf16 as they are, or are compiled: what each is made of, and edits
HONEST: dict[str, dict[str, tuple[str, Edits]]] = {
    "3c_shapes": {
        "no autocast": ("starter", [("enabled=cuda", "enabled=False")]),
        "padded in each step, and sliced": ("starter", [_PADDED, _TRANSPOSED]),
        "padded, and nothing masked": ("solution", [("rows, bias)", "rows)")]),
        "compiled": (
            "solution",
            [
                (_MODEL, _MODEL + "    compiled = torch.compile(model.hidden)\n"),
                ("model.hidden(tokens)", "compiled(tokens)"),
            ],
        ),
        "unfused optimizer": ("solution", [("fused=cuda", "foreach=True")]),
    },
    "3e_compile": {
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
    },
    "3g_leak": {
        "the solution": ("solution", []),
        "TF32": ("solution", TF32),
        "bf16 autocast": ("solution", autocast("3g_leak")),
        "compiled": ("solution", [*COMPILED, ("model(tokens)", "compiled(tokens)")]),
        "fused optimizer": ("solution", [("lr=job.lr)", "lr=job.lr, fused=True)")]),
        "the sum on the host": ("solution", [("total += loss", "total += loss.item()")]),
    },
    "3h_fit": {
        "the solution": ("solution", []),
        "TF32 for what is not in bf16": ("solution", TF32),
        "no autocast": ("solution", [("if cuda else nullcontext()", "if not job else nullcontext()")]),
        "four samples at a time": ("solution", [("MICRO_BATCH = 6", "MICRO_BATCH = 4")]),
        "compiled": ("solution", [*COMPILED, ("model(part)", "compiled(part)")]),
        "checkpoints, and all samples at once": (
            "starter",
            [("MICRO_BATCH = 1", "MICRO_BATCH = 64"), (_MATH, _ANY), ("/ len(tokens)", "* (len(part) / len(tokens))")],
        ),
    },
    "3m_fp16": {
        "TF32": ("starter", TF32),
        "bf16": ("solution", [("torch.float16", "torch.bfloat16")]),
        "a smaller scale": (
            "solution",
            [("init_scale=2.0**13", "init_scale=2.0**10")],
        ),
        "an optimizer that waits": ("solution", [("fused=cuda", "foreach=True")]),
        "compiled": ("solution", [*COMPILED, ("model(tokens)", "compiled(tokens)")]),
    },
    "4a_resnet50": {
        "the solution": ("solution", []),
        "TF32 for what is not in bf16": ("solution", TF32),
        "no autocast": ("solution", [("enabled=cuda", "enabled=False")]),
        "bf16": ("solution", [("enabled=cuda", "enabled=True")]),
        "not compiled": ("solution", [("torch.compile(loss_of) if cuda else loss_of", "loss_of")]),
        "decoded by the CPU": ("solution", [_BY_THE_CPU]),
        "decoded by the CPU, colours in blocks": ("solution", _BLOCKY),
        "decoded in every step": ("solution", DECODED_EACH_STEP),
        "kept by the host": ("solution", KEPT_BY_THE_HOST),
        "crops by interpolate, one by one": ("solution", _ONE_BY_ONE),
        "unfused optimizer": ("solution", [("fused=True", "foreach=True")]),
        "bytes from workers": ("starter", _BYTES_A_BATCH),
    },
    "3j_communication": {
        "the solution": ("solution", []),
        "the solution in tf32": ("solution", TF32),
        "gradients sent in bf16": ("solution", IN_BF16),
        "small buckets": ("solution", [("(model, ", "(model, bucket_cap_mb=0.05, ")]),
        "one by one, once a step": ("starter", HALVES["3j_communication"]["averaged once a step, one by one"]),
    },
    "4b_nanogpt": {
        "the solution": ("solution", []),
        "not compiled": ("solution", [("torch.compile(loss_of, dynamic=False) if cuda else loss_of", "loss_of")]),
        "unfused optimizer": ("solution", [("fused=True", "foreach=True")]),
        "all but the compiler": ("starter", climbed(GPT2_LADDER, len(GPT2_LADDER))),
        **{f"the solution, {name}": ("solution", GPT2_CANDIDATES[name]) for name in GPT2_ROUNDED_OTHERWISE},
    },
    "4c_unet": {
        "the solution": ("solution", []),
        "bf16": ("solution", [(_BF16, "torch.autocast(job.device.type, torch.bfloat16)")]),
        "no autocast": ("solution", [(_BF16, "nullcontext()")]),
        "not compiled": ("solution", [("    if cuda:\n        loss_of", "    if not job:\n        loss_of")]),
        "channels first": ("solution", UNET_FIRST),
        "unfused optimizer": ("solution", [("fused=True", "foreach=False")]),
        "a kernel each for attention and normalisation": ("starter", _UNET_KERNELS),
        "TF32": ("starter", [("allow_tf32 = False", "allow_tf32 = True")]),
    },
    "4d_trainer": {
        "the solution": ("solution", []),
        "in two parts": (
            "solution",
            [
                ("batch_size=job.batches.batch_size", "batch_size=job.batches.batch_size // 2"),
                ("accumulation_steps=1", "accumulation_steps=2"),
            ],
        ),
        "not compiled": ("solution", [("torch_compile=cuda", "torch_compile=False")]),
        "attention written out": ("solution", [('"sdpa"', '"eager"')]),
        "unfused optimizer": ("solution", [('"adamw_torch_fused"', '"adamw_torch"')]),
        "all but the compiler": ("starter", climbed(TRAINER_LADDER, len(TRAINER_LADDER))),
    },
    "4e_inference": {
        "the solution": ("solution", []),
        "models in bf16": ("solution", [(_SERVES, "    gpt.bfloat16(), resnet.bfloat16()\n" + _SERVES)]),
        "autocast": (
            "solution",
            [
                *_SERVED_FP32,
                ("torch.inference_mode():", "torch.inference_mode(), torch.autocast(job.device.type, torch.bfloat16):"),
            ],
        ),
        "fp32": ("solution", _SERVED_FP32),
        "not compiled": ("solution", SERVED_EAGER),
        "one by one, without gradients": ("starter", HALVES["4e_inference"]["no gradients, and no waits"]),
    },
}


# of the lab's own, beside those that fit any loop: edits of the solution
FAULTS: dict[str, dict[str, Edits]] = {
    "4a_resnet50": {
        "lower resolution": [
            ("job.size).float()", "job.size // 2).float()"),
            (".div(64).sub(2)\n", ".div(64).sub(2)\n        images = F.interpolate(images, scale_factor=2)\n"),
        ],
        "the whole picture, uncropped": [
            (
                _WITH_CHOSEN,
                "        chosen[:, 1:3], chosen[:, 3:5] = 0, job.dataset.sizes[batch].to(job.device)\n" + _WITH_CHOSEN,
            )
        ],
        "one crop for the whole batch": [(_WITH_CHOSEN, "        chosen[:, 1:] = chosen[:1, 1:]\n" + _WITH_CHOSEN)],
        "every second batch repeated": [
            (
                _WITH_CHOSEN,
                "        chosen = before if step % 2 else chosen\n        before = chosen\n" + _WITH_CHOSEN,
            )
        ],
    },
    "4c_unet": {
        "model cast to bf16": [
            (_MODEL, _MODEL + "    model.bfloat16()\n"),
            (_BF16, "torch.autocast(job.device.type, torch.bfloat16)"),
        ]
    },
    "4d_trainer": {
        "one optimizer step in ten skipped": [
            (
                _TRAINER,
                """    class Lazy(JobTrainer):
        def create_optimizer(self, *args):
            optimizer = super().create_optimizer(*args)
            step, count = optimizer.step, iter(range(1, 10**9))
            optimizer.step = lambda *a, **k: step(*a, **k) if next(count) % 10 else None
            return optimizer

    yield from optimizer_steps(Lazy(job, model, arguments))
""",
            )
        ],
        "learning rate x 0.9": [("learning_rate=job.lr", "learning_rate=0.9 * job.lr")],
        "a frozen layer": [
            ("    # two levers", "    next(job.model.parameters()).requires_grad_(False)\n    # two levers")
        ],
        "model cast to bf16": [("    # two levers", "    job.model.bfloat16()\n    # two levers")],
        "every second window twice": [
            (
                _TRAINER,
                "    order = job.batches.__class__.__iter__\n"
                "    job.batches.__class__.__iter__ = lambda self: ([i - i % 2 for i in batch] for batch in order(self))\n"
                + _TRAINER,
            )
        ],
    },
    "4e_inference": {
        "one picture in each request, twice": [
            (_SERVED, "        logits = logits[[1, *range(1, len(logits))]]\n" + _SERVED)
        ],
        "one text in each request, twice": [
            (_SERVED, "        scores = scores[[1, *range(1, len(scores))]]\n" + _SERVED)
        ],
        "weights of a hundred steps": [
            (
                _SERVES,
                "    with torch.no_grad():\n"
                "        for weights in (each for each in job.model.parameters() if each.dim() > 1):\n"
                "            step = weights.abs().max() / 50\n            weights.copy_((weights / step).round() * step)\n"
                + _SERVES,
            )
        ],
    },
}


def honest(lab: str) -> dict[str, str]:
    """Forms that train the same model, by name: precision, compilation, memory format. All must be accepted."""
    if lab in HONEST or lab not in _FORWARD:
        bases = {"starter": starter(lab), "solution": solution(lab)}
        forms = entry("HONEST", HONEST, lab)
        made = {name: edit(bases[base], edits) for name, (base, edits) in forms.items()}
        return {"as it is": starter(lab)} | made
    called = _CALLED.get(lab, "model")
    made = [(old, new.replace("compile(model)", f"compile({called})")) for old, new in COMPILED]
    compiled = [*made, (_FORWARD[lab], _FORWARD[lab].replace(f"{called}(", "compiled("))]
    if lab == "3f_attention":  # in bf16 on a GPU, as it is
        backend = "from torch.nn.attention import SDPBackend, sdpa_kernel\nfrom torch.utils.data"
        edits = {
            "as it is": [],
            "compiled": compiled,
            "TF32": TF32,
            "without autocast": [('enabled=job.device.type == "cuda"', "enabled=False")],
            "fused optimizer": [("lr=job.lr)", "lr=job.lr, fused=True)")],
            "the flash backend alone": [
                ("    return F.", "    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n        return F."),
                ("from torch.utils.data", backend),
            ],
        }
        forms = {name: edit(solution(lab), change) for name, change in edits.items()}
        return forms | {"written out": starter(lab)}
    if labs.get(lab).throughput.healthy:  # runs in bf16 as it is
        return {"as it is": starter(lab), "compiled": edit(starter(lab), compiled)}
    forms = {
        "as it is": [],
        "tf32": TF32,
        "bf16 autocast": autocast(lab),
        "compiled": compiled,
        "compiled, tf32, bf16": [*TF32, *made, *autocast(lab, "compiled")],
        "channels last": _CHANNELS_LAST,  # changes nothing where there is no convolution: must be accepted all the same
    }
    if "fused=True" in _fed(lab):
        forms["unfused optimizer"] = [("fused=True", "foreach=False")]
    else:
        forms["fused optimizer"] = [("lr=job.lr)", "lr=job.lr, fused=True)")]
    return {name: edit(_fed(lab), edits) for name, edits in forms.items()}


def faults(lab: str) -> dict[str, str]:
    """The planted faults of a training that is not the same. All must be rejected."""
    if labs.get(lab).serves:
        return _own_faults(lab)
    if lab not in _INPUTS:
        return _few_faults(lab)
    inputs = _INPUTS[lab]
    first, second = inputs.split(", ")
    to_device = f"        {inputs} = {first}.to(job.device), {second}.to(job.device)\n"
    smaller = {
        "2a_workers": "        images = F.interpolate(images, scale_factor=0.5)\n",
        "3a_precision": "        tokens, targets = tokens[:, : tokens.shape[1] // 2], targets[:, : targets.shape[1] // 2]\n",
    }[lab]
    cast = {"2a_workers": "model(images.bfloat16()).float()", "3a_precision": "model(tokens).float()"}[lab]
    counted = f"    for {inputs} in loader:\n"
    counting = f"    for step, ({inputs}) in enumerate(loader):\n"
    repeated = f"        if step % 2:\n            {inputs} = before\n        before = {inputs}\n"
    made = {
        "one optimizer step in ten skipped": [
            (counted, counting),
            (_STEP, "        if step % 10 != 9:\n            optimizer.step()\n"),
        ],
        "half the batch": [(to_device, to_device + f"        {inputs} = {first}[::2], {second}[::2]\n")],
        "learning rate x 0.9": [("lr=job.lr", "lr=0.9 * job.lr")],
        "a frozen layer": [
            (_MODEL, _MODEL + f"    for parameter in {_FROZEN[lab]}:\n        parameter.requires_grad_(False)\n")
        ],
        "every second batch repeated": [(counted, counting), (to_device, repeated + to_device)],
        "lower resolution": [(to_device, to_device + smaller)],
        "model cast to bf16": [(_MODEL, _MODEL + "    model.bfloat16()\n"), (_FORWARD[lab], cast)],
    }
    return {name: edit(_fed(lab), edits) for name, edits in made.items()}


def _few_faults(lab: str) -> dict[str, str]:
    """Those that fit any loop, and the lab's own; only these where the loop is not the lab's."""
    if lab not in _FORWARD:
        return _own_faults(lab)
    forward, scaled = _FORWARD[lab], "        scaler.step(optimizer)\n"
    step = scaled if scaled in solution(lab) else _STEP
    counted = f"        job.done = getattr(job, 'done', 0) + 1\n        if job.done % 10:\n    {step}"
    made = {
        "one optimizer step in ten skipped": [(step, counted)],
        "learning rate x 0.9": [("lr=job.lr", "lr=0.9 * job.lr")],
        "a frozen layer": [(_MODEL, _MODEL + "    next(model.parameters()).requires_grad_(False)\n")],
        "model cast to bf16": [
            (_MODEL, _MODEL + "    model.bfloat16()\n"),
            (forward, f"{forward.replace('images', 'images.bfloat16()')}.float()"),
        ],
    }
    made |= FAULTS.get(lab, {})
    return {name: edit(solution(lab), edits) for name, edits in made.items()}


def _own_faults(lab: str) -> dict[str, str]:
    return {name: edit(solution(lab), edits) for name, edits in entry("FAULTS", FAULTS, lab).items()}


def half_fix(lab: str) -> str:
    """A part of the fix: must land between the starter and the solution."""
    return next(iter(halves(lab).values()))


def halves(lab: str) -> dict[str, str]:
    """Parts of the fix, by name: they must land between the starter and the solution."""
    base = solution(lab) if lab in UNMADE else starter(lab)
    return {name: edit(base, edits) for name, edits in entry("HALVES", HALVES, lab).items()}


def wrongs(lab: str) -> dict[str, tuple[str, str]]:
    """Fixes that go wrong, by name: the source, and words of the report that name what is wrong with it."""
    made = {}
    for name, (base, edits, words) in entry("WRONGS", WRONGS, lab).items():
        made[name] = edit(solution(lab) if base == "solution" else starter(lab), edits), words
    return made


def trains_ahead(lab: str) -> str:
    """A starter whose steps are made by a background thread, ahead of being asked: must gain nothing."""
    source = starter(lab).replace("def train(job):", "def steps(job):")
    return source + (
        "\n\ndef train(job):\n"
        "    import queue, threading\n\n"
        "    done = queue.Queue(maxsize=1000)\n"
        "    threading.Thread(target=lambda: [done.put(loss) for loss in steps(job)], daemon=True).start()\n"
        "    while True:\n"
        "        yield done.get()\n"
    )


def in_a_thread(lab: str) -> str:
    """The control beside `trains_ahead`: each step is made by a background thread too, but only when it is asked for. What
    it gains is the thread's (its memory is allocated otherwise), so a loop that trains ahead must gain no more."""
    source = starter(lab).replace("def train(job):", "def steps(job):")
    return source + (
        "\n\ndef train(job):\n"
        "    import queue, threading\n\n"
        "    asked, done = queue.Queue(), queue.Queue()\n"
        "    loop = steps(job)\n"
        "    threading.Thread(target=lambda: [done.put(next(loop)) for _ in iter(asked.get, None)], daemon=True).start()\n"
        "    while True:\n"
        "        asked.put(True)\n"
        "        yield done.get()\n"
    )


def _fed(lab: str) -> str:
    """The loop whose forms are varied: the starter, with loader workers where it is starved without them, or the solution
    of a lab whose starter is slower still."""
    if lab not in _INPUTS:
        return solution(lab)
    return edit(starter(lab), [(LOADER, _WORKERS)] if lab == "2a_workers" else [])
