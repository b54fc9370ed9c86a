"""Replaces the harness's own functions: a step that is asked for is not made."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import sys

        harness = sys.modules['grader.sandbox.child'].Harness
        step, made = harness._step, []

        def lazy(self):
            if len(made) < (13 if job.device.type == "cpu" else 25):
                made.append(step(self))
            return made[-1].clone()

        harness._step = lazy
        """,
        lab,
    )
