"""Images at half the resolution, or sequences of half the length."""

from tests import variants

CATEGORY = "work"
CONTROL = "starter"


def source(lab: str) -> str:
    return variants.faults(lab)["lower resolution"]
