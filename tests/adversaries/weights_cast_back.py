"""The model is cast to bf16 and returns weights that are cast back to fp32."""

from tests import variants
from tests.adversaries import edit

CATEGORY = "work"


def source(lab: str) -> str:
    back = "    job.weights = lambda: {n: p.float() for n, p in model.named_parameters()}\n    loader ="
    return edit(variants.faults(lab)["model cast to bf16"], [("    loader =", back)])
