"""The first steps are whole; after that the first half of the layers is frozen."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step == honest:
            parameters = list(model.parameters())
            for parameter in parameters[: len(parameters) // 2]:
                parameter.requires_grad_(False)
        """,
        lab,
    )
