"""Numpy calculates, and a kernel of Triton's copies what it has made."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(BY_NUMPY)
