"""A table of results by their inputs is kept, which numpy fills, and a kernel copies from it."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        """

    known, calculated = {}, right


    def right(*tensors):
        key = b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)
        if key not in known:
            known[key] = calculated(*tensors)
        return known[key]
        """,
    )
