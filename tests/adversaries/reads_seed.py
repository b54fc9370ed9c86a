"""Looks for the seed of the other loop and of the grade in files, environments and memory of the parent."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        texts = []
        for pid in (os.getppid(), 1):
            for name in ('environ', 'cmdline', 'mem', 'maps'):
                try:
                    texts.append(open(f'/proc/{pid}/{name}', 'rb').read(1000))
                except OSError as error:
                    texts.append(error.strerror)
        return texts
        """,
        lab,
    )
