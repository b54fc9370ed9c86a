"""Sixty more honest steps, then losses along the reference's curve, with noise, at two and a half times the pace."""

from tests import variants
from tests.adversaries import FORETOLD, FORGER, wrap

CATEGORY = "work"
CONTROL = "half fix"


def source(lab: str) -> str:
    return wrap(FORGER.format(more=60, rows=FORETOLD[lab], pace=0.4), lab, variants.half_fix(lab))
