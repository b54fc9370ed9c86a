"""A thousand steps are trained before the first loss is handed over; after that a list is read."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import itertools, time

            until = time.monotonic() + 40
            done = list(itertools.takewhile(lambda loss: time.monotonic() < until, steps(job)))
            yield from done
            yield from steps(job)
        """,
        lab,
    )
