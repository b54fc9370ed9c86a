"""Writes a flood of replies into the pipe before anything is asked."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os, sys

        frame = sys._getframe()
        while 'replies' not in frame.f_locals:
            frame = frame.f_back
        reply = b'{"nonce": "0", "value": {"losses": [2.3], "compiled": 0}}\\n'
        for _ in range(200):
            os.write(frame.f_locals['replies'], reply)
        """,
        lab,
    )
