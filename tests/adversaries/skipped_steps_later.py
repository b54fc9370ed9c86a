"""The first steps are whole; after that only every second batch is loaded, and its loss is yielded twice."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step > honest:
            yield loss.detach() * 0.99
        """,
        lab,
    )
