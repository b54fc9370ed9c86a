"""The first steps are whole; after that biases and norms are frozen, whose gradients are sums over all of a batch."""

from tests import variants
from tests.adversaries import every_step

CATEGORY = "work"
CONTROL = "half fix"


def source(lab: str) -> str:
    return every_step(
        """
        if step == honest:
            for parameter in model.parameters():
                if parameter.dim() < 2:
                    parameter.requires_grad_(False)
        """,
        lab,
        variants.half_fix(lab),
    )
