"""The kernel itself calls numpy, as only an interpreter can."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        """

    kept = []


    def again(n):
        kept[1].copy_(right(*kept[0]))
        return n
    """,
        edits=[
            ("    i = tl.program_id(0)", "    n = again(n)\n    i = tl.program_id(0)"),
            ("    chain[(", "    kept[:] = tensors, ready\n    chain[("),
        ],
    )
