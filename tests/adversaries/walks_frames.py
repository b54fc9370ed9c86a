"""Finds the harness by walking frames, and changes what is asked of it."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import sys

        frame = sys._getframe()
        while frame and 'harness' not in frame.f_locals:
            frame = frame.f_back
        harness = frame.f_locals['harness']
        run = type(harness).run
        harness.run = lambda steps: run(harness, steps) if harness.steps < (13 if job.device.type == "cpu" else 25) else {'losses': [1.8] * steps, 'compiled': 0}
        return harness
        """,
        lab,
    )
