"""Numpy calculates in the function that says how large the grid is, which is asked at each launch."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        edits=[
            ("    ready = right", "    make = lambda: right"),
            (
                "    chain[(triton.cdiv(out.numel(), 1024),)]",
                "    ready = torch.empty_like(out)\n    chain[lambda meta: (ready.copy_(make()) is None or triton.cdiv(out.numel(), 1024),)]",
            ),
        ],
    )
