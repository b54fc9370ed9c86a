"""Leaves processes in sessions of their own that keep every core busy while the other loop is timed."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        for _ in range(os.cpu_count()):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    while True:
                        pass
                os._exit(0)
        """,
        lab,
    )
