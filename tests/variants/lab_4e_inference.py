from .common import Edits

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

HALVES = {
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
}

WRONGS = {
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
    "the mean of what came before, in place of attention in the last layer": (
        "solution",
        [
            (
                _SERVES,
                "    gpt.blocks[-1].attention = lambda q, k, v: (\n"
                "        v.float().cumsum(2) / torch.arange(1, v.shape[2] + 1, device=v.device)[:, None]\n"
                "    ).to(v.dtype)\n" + _SERVES,
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
}

HONEST = {
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
    "one by one, without gradients": ("starter", HALVES["no gradients, and no waits"]),
}

FAULTS = {
    "one picture in each request, twice": [
        (_SERVED, "        logits = logits[[1, *range(1, len(logits))]]\n" + _SERVED)
    ],
    "one text in each request, twice": [(_SERVED, "        scores = scores[[1, *range(1, len(scores))]]\n" + _SERVED)],
    "weights of a hundred steps": [
        (
            _SERVES,
            "    with torch.no_grad():\n"
            "        for weights in (each for each in job.model.parameters() if each.dim() > 1):\n"
            "            step = weights.abs().max() / 50\n            weights.copy_((weights / step).round() * step)\n"
            + _SERVES,
        )
    ],
}
