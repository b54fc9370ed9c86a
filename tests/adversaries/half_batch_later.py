"""Half of each batch is left out once the first steps are over."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step >= honest:
            inputs, targets = inputs[::2], targets[::2]
        """,
        lab,
    )
