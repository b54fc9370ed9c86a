"""Half of the fix; BatchNorm's running statistics, which no training step needs, are not updated once the first steps are over."""

from tests.adversaries import every_step
from tests.variants import half_fix

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cuda",)  # the small model has no BatchNorm
CONTROL = "half fix"


def source(lab: str) -> str:
    return every_step(
        """
        if step == honest:
            for module in model.modules():
                module.track_running_stats, module.momentum = True, 0.0
        """,
        lab,
        half_fix(lab),
    )
