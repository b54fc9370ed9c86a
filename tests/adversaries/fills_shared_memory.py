"""Fills shared memory and the disk, so that the other loop's work gets slow or fails."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        with open('/dev/shm/ballast', 'wb') as file:
            file.write(bytes(256 << 20))
        with open('ballast', 'wb') as file:
            for _ in range(16):
                file.write(os.urandom(64 << 20))
        """,
        lab,
    )
