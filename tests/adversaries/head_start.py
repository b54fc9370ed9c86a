"""Loader workers fill queues of a thousand batches while the loop waits, to be served from them when time counts."""

from tests import variants
from tests.adversaries import edit, starter

CATEGORY = "timing"
LABS = ("2a_workers",)
CONTROL = "half fix"


def source(lab: str) -> str:
    return edit(starter(lab), [(variants.LOADER, variants.LOADER + ", num_workers=2, prefetch_factor=500")])
