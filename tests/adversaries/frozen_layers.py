"""The first layers are frozen, so that their gradients need not be computed."""

from tests import variants

CATEGORY = "work"
CONTROL = "starter"


def source(lab: str) -> str:
    return variants.faults(lab)["a frozen layer"]
