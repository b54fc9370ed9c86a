"""Stops, wakes and kills the processes above it and beside it."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os, signal

        sent = []
        for pid in [os.getppid(), os.getppid() - 1, os.getppid() + 1, *range(os.getpid() - 8, os.getpid() + 9)]:
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1):
                try:
                    if pid != os.getpid():
                        os.kill(pid, number)
                        sent.append((pid, number))
                except OSError:
                    pass
        return sent
        """,
        lab,
    )
