"""Numpy calculates when the tensor that was returned is asked for its numbers."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        edits=[
            (
                "    return out\n",
                """    def detach():
        return out.copy_(right(*(t.cpu() for t in tensors)))

    out.detach = detach
    return out
""",
            )
        ],
    )
