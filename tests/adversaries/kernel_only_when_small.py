"""The kernel is for the cases; what is timed numpy calculates, and another kernel copies."""

from tests.adversaries import BY_NUMPY, copied, solution

CATEGORY = "work"
LABS = ("3i_triton",)
DEVICES = ("cuda",)
CONTROL = "solution"


def source(lab: str) -> str:
    own = solution(lab).replace("def fused(", "def own(")
    edits = [
        ("def chain(", "def copy("),
        ("    chain[", "    copy["),
        (
            "def fused(*tensors):\n",
            "def fused(*tensors):\n    if len(tensors[0]) < 64:\n        return own(*tensors)\n",
        ),
    ]
    return copied(BY_NUMPY, edits=edits) + own
