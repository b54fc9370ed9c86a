from .common import MODEL, Edits

FORWARD = "net(noisy, times)"

_BF16 = 'torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext()'
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
UNET_FIRST: Edits = [  # channels first
    ("    model.to(memory_format=torch.channels_last)  # how tensor cores want weights and pictures\n", ""),
    (
        "batch.permute(0, 3, 1, 2) / 127.5 - 1  # stored with the channels last, and so it stays",
        "(batch.permute(0, 3, 1, 2) / 127.5 - 1).contiguous()",
    ),
]

HALVES = {
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
}

WRONGS = {
    "the average is left as it is": (
        "solution",
        [("        update_average(averages, weights, step)\n", "")],
        "These parameters were never updated: average.",
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
    "the average of every second step": (
        "solution",
        [
            (
                "        update_average(averages, weights, step)\n",
                "        if step % 2:\n            torch._foreach_lerp_(averages, weights, 1 - job.decay**2)\n",
            )
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
    "half of each batch, twice, once the first steps are over": (  # of the same shape, so nothing is compiled anew
        "solution",
        [
            (
                "        loss = loss_of(batch, times, noise)\n",
                "        for each in (batch, times, noise) if step > 22 else ():\n"
                "            each[1::2] = each[::2].clone()\n"
                "        loss = loss_of(batch, times, noise)\n",
            )
        ],
        "GPU: not the same training",
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
}

HONEST = {
    "the solution": ("solution", []),
    "bf16": ("solution", [(_BF16, "torch.autocast(job.device.type, torch.bfloat16)")]),
    "no autocast": ("solution", [(_BF16, "nullcontext()")]),
    "not compiled": ("solution", [("    if cuda:\n        loss_of", "    if not job:\n        loss_of")]),
    "channels first": ("solution", UNET_FIRST),
    "unfused optimizer": ("solution", [("fused=True", "foreach=False")]),
    "a kernel each for attention and normalisation": ("starter", _UNET_KERNELS),
    "TF32": ("starter", [("allow_tf32 = False", "allow_tf32 = True")]),
}

FAULTS = {
    "model cast to bf16": [
        (MODEL, MODEL + "    model.bfloat16()\n"),
        (_BF16, "torch.autocast(job.device.type, torch.bfloat16)"),
    ]
}
