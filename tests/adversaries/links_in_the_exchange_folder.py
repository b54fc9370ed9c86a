"""Puts symbolic links in place of the exchange files, for the parent to write through."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        for name in ('last.safetensors', 'trace.json'):
            os.symlink(os.environ['GRADER_CACHE'] + '/calibration.json', f'exchange/{name}')
        """,
        lab,
    )
