"""The model is cast to bf16 and returns weights that are cast back to fp32."""

from tests import variants
from tests.adversaries import edit

CATEGORY = "work"


def source(lab: str) -> str:
    back = "    job.weights = lambda: {n: t.float() for n, t in model.state_dict().items()}\n    loader ="
    return edit(variants.faults(lab)["model cast to bf16"], [("    loader =", back)])
