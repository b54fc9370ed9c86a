"""After the first steps nothing is computed and the last loss is yielded for ever."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        while step >= honest:
            yield loss.detach()
        """,
        lab,
    )
