"""A background thread trains ahead of being asked, while the other loop is timed."""

from tests import variants

CATEGORY = "timing"


def source(lab: str) -> str:
    return variants.trains_ahead(lab)
