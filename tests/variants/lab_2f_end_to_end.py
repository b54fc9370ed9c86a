from .common import Edits

FORWARD = "model(images)"
LOSS = "        logits = model(images)\n        loss = F.cross_entropy(logits, labels)\n"

_TABLE: Edits = [
    ("        curve = [(value / 255) ** GAMMA for value in range(256)]\n", ""),
    (
        'torch.frombuffer(array("f", [curve[value] for value in pixels]), dtype=torch.float32)',
        "CURVE[torch.frombuffer(bytearray(pixels), dtype=torch.uint8).int()]",
    ),
    ("GAMMA = 0.4\n", "GAMMA = 0.4\nCURVE = (torch.arange(256) / 255) ** GAMMA\n"),
]

HALVES = {
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
}

WRONGS = {
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
        "Step 0 logged no accuracy",
    ),
}
