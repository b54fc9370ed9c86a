"""A hundred honest steps, then losses along the reference's published curve, with noise, at four times the pace."""

from tests.adversaries import FORGER, wrap

CATEGORY = "work"


def source(lab: str) -> str:
    return wrap(FORGER.format(honest=110, lab=lab, pace=0.25), lab)
