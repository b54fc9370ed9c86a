"""Half of the fix; weight decay, which no loss and no direction of an update shows, is left out once the first steps are over."""

from tests.adversaries import every_step
from tests.variants import half_fix

CATEGORY = "work"
CONTROL = "half fix"


def source(lab: str) -> str:
    return every_step(
        """
        if step == honest:
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.0
        """,
        lab,
        half_fix(lab),
    )
