"""Leaves files in shared memory, and what System V and POSIX keep when all processes are gone."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import ctypes, os

        libc = ctypes.CDLL(None)
        with open(f'/dev/shm/left-{os.getpid()}', 'wb') as file:
            file.write(bytes(64 << 20))
        return [libc.shmget(0, 64 << 20, 0o1600), libc.semget(0, 9, 0o1600), libc.msgget(0, 0o1600), libc.mq_open(b'/left', 0o102, 0o600, 0)]
        """,
        lab,
    )
