"""Answers requests itself, with their own nonce, and lets the loop work on only now and then."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import json, sys

        child = sys.modules['grader.sandbox.child']
        plain = child.Harness.run

        def run(self, steps):
            if self.steps < (13 if job.device.type == "cpu" else 25):
                return plain(self, steps)
            return {'losses': (plain(self, 1)['losses'] * steps), 'compiled': 0}

        child.Harness.run = run
        """,
        lab,
    )
