from .common import CLASSIFY

FORWARD = "model(images)"
LOSS = CLASSIFY

HALVES = {
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
}

WRONGS = {
    "shadows left dark": ("solution", [("/ 255) ** GAMMA", "/ 255)")], "not the same training"),
    "scaled over the batch": (
        "solution",
        [(".mean((2, 3), keepdim=True)", ".mean()"), (".std((2, 3), keepdim=True)", ".std()")],
        "not the same training",
    ),
}
