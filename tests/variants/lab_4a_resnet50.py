from .common import CHANNELS_LAST, CLASSIFY, COMPILED, TF32, Edits, under_autocast

FORWARD = "model(images)"

# rung by rung
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
    *CHANNELS_LAST,
    (
        ".sub_(2)\n        labels",
        ".sub_(2)\n        images = images.contiguous(memory_format=torch.channels_last)\n        labels",
    ),
    *under_autocast(CLASSIFY),
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
    ('lambda file: decode_jpeg(file, mode="RGB")', "blocky"),
    (
        "def load(",
        '''def blocky(file):
    """As decoders do that repeat each pixel of colour, which JPEG stores at half the resolution, in place of interpolating."""
    red, green, blue = decode_jpeg(file, mode="RGB").float()
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

HALVES = {
    "workers": _CROPPED_WORKERS,
    "workers, one pinned copy of bytes a batch, no number read": _BYTES_A_BATCH,
    "the same, bf16 and channels_last": _BF16_CHANNELS_LAST,
    "the same, compiled, with a fused optimizer": [
        *_BF16_CHANNELS_LAST,
        *COMPILED,
        ("model(images)", "compiled(images)"),
        ("foreach=False", "fused=True"),
    ],
}

WRONGS = {
    "each picture cropped once, and the crop kept": (
        "solution",
        [
            ("    for step, batch in", "    kept = {}\n    for step, batch in"),
            (
                "        if cuda:\n            chosen = chosen.pin",
                "        chosen = torch.stack([kept.setdefault(row[0].item(), row) for row in chosen])\n"
                "        if cuda:\n            chosen = chosen.pin",
            ),
        ],
        "not the same training",
    ),
    "the crops of the first step in every step": (
        "solution",
        [("job.crops(step,", "job.crops(0,")],
        "not the same training",
    ),
    "running statistics stay": (
        "solution",
        [
            (
                "    optimizer = torch",
                "    for module in model.modules():\n        module.momentum = 0.0\n    optimizer = torch",
            )
        ],
        "BatchNorm's running statistics are not the starter's",
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
    "half of each batch, twice, once the first steps are over": (  # of the same shape, so nothing is compiled anew
        "solution",
        [
            (
                _WITH_CHOSEN,
                "        if step > 14:\n            chosen[1::2] = chosen[::2].clone()\n" + _WITH_CHOSEN,
            )
        ],
        "GPU: not the same training",
    ),
}

HONEST = {
    "the solution": ("solution", []),
    "TF32 for what is not in bf16": ("solution", TF32),
    "no autocast": ("solution", [("enabled=cuda", "enabled=False")]),
    "bf16": ("solution", [("enabled=cuda", "enabled=True")]),
    "not compiled": ("solution", [("torch.compile(loss_of) if cuda else loss_of", "loss_of")]),
    "crops in bf16": ("solution", [("torch.float16 if pixels.is_cuda else torch.float32", "torch.bfloat16")]),
    "decoded by the CPU": ("solution", [_BY_THE_CPU]),
    "decoded by the CPU, colours in blocks": ("solution", _BLOCKY),
    "decoded in every step": ("solution", DECODED_EACH_STEP),
    "kept by the host": ("solution", KEPT_BY_THE_HOST),
    "crops by interpolate, one by one": ("solution", _ONE_BY_ONE),
    "unfused optimizer": ("solution", [("fused=True", "foreach=True")]),
    "bytes from workers": ("starter", _BYTES_A_BATCH),
}

FAULTS = {
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
}
