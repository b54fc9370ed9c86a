"""Each rank trains alone, on whole batches at once, so all hold the same weights; they share the work while they are profiled."""

from tests.adversaries import alone_unless_profiled

CATEGORY = "work"
LABS = ("3j_communication",)
CONTROL = "half fix"


def source(lab: str) -> str:
    return alone_unless_profiled()
