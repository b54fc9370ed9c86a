"""Attaches to the parent and to the other loop as a debugger does."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import ctypes, os

        libc = ctypes.CDLL(None, use_errno=True)
        return [(pid, libc.ptrace(16, pid, 0, 0), libc.ptrace(0x4206, pid, 0, 0)) for pid in (os.getppid(), os.getpid() + 3, 1)]
        """,
        lab,
    )
