"""The model itself is cast to bf16, its weights and all."""

from tests import variants

CATEGORY = "work"
CONTROL = "starter"


def source(lab: str) -> str:
    return variants.faults(lab)["model cast to bf16"]
