"""Gradients of a quarter of the batch, scaled up: the norm is about right, the direction is not."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        quarter = len(inputs) // 4
        inputs, targets = inputs[:quarter], targets[:quarter]
        for parameter in model.parameters():
            if step == 0:
                parameter.register_hook(lambda gradient: 4 * gradient)
        """,
        lab,
    )
