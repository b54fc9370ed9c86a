"""Fills the disk with files below so many folders that no path is long enough to name them, and whoever counts them misses them."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        folder = os.open(".", os.O_RDONLY)
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=folder)
            folder = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        with open(os.open("ballast", os.O_WRONLY | os.O_CREAT, dir_fd=folder), "wb") as file:
            for _ in range(4):
                file.write(os.urandom(64 << 20))
        """,
        lab,
    )
