"""Leaves processes in sessions of their own that keep every core that is theirs busy while the other loop is timed."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        for _ in range(len(os.sched_getaffinity(0))):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True:
                        pass
                os._exit(0)
        """,
        lab,
    )
