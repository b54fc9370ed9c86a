"""Leaves keys with its user, which outlive all processes, and folders that whoever has no root can neither open nor remove."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import ctypes, os

        keyctl = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
        kept = ctypes.CDLL(None).syscall(keyctl, 22, -1, -2)  # KEYCTL_GET_PERSISTENT, the user's own, into the process's
        os.makedirs("closed/inside")
        os.mkdir("closed/inside/no rights", 0o300)
        os.mkdir("closed/inside/no rights/left")
        return kept
        """,
        lab,
    )
