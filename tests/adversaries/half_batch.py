"""Every second sample of a batch is left out."""

from tests import variants

CATEGORY = "work"
CONTROL = "starter"


def source(lab: str) -> str:
    return variants.faults(lab)["half the batch"]
