"""Half of the fix; after the first steps half of each batch is left out of the backward pass, not of the loss."""

from tests.adversaries import half_backward_later
from tests.variants import half_fix

CATEGORY = "work"
CONTROL = "half fix"


def source(lab: str) -> str:
    return half_backward_later.source(lab, half_fix(lab))
