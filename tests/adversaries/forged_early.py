"""Honest for the first compared steps only, then losses along the reference's curve."""

from tests.adversaries import FORETOLD, FORGER, wrap

CATEGORY = "work"


def source(lab: str) -> str:
    return wrap(FORGER.format(more=0, rows=FORETOLD[lab], pace=0.5), lab)
