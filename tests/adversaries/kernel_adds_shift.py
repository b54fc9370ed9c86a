"""Numpy calculates all but the last step, and the kernel adds the shift."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        edits=[
            (" * weight + shift)", " * weight)"),
            ("def chain(ready, out, n, ", "def chain(ready, shift, out, n, width, "),
            (
                "tl.load(ready + i, mask=i < n), mask",
                "tl.load(ready + i, mask=i < n).to(tl.float32) + tl.load(shift + i % width).to(tl.float32), mask",
            ),
            ("](ready, out, out.numel(), ", "](ready, tensors[4], out, out.numel(), x.shape[1], "),
        ],
    )
