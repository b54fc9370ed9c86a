"""The learning rate is lowered, which is another training."""

from tests import variants

CATEGORY = "work"
CONTROL = "starter"


def source(lab: str) -> str:
    return variants.faults(lab)["learning rate x 0.9"]
