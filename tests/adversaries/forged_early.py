"""Honest for the first compared steps only, then losses along the reference's published curve."""

from tests.adversaries import FORGER, wrap

CATEGORY = "work"


def source(lab: str) -> str:
    return wrap(FORGER.format(more=0, lab=lab, pace=0.5), lab)
