"""Rewrites the starter and the package, so that what it is compared with is slow."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        package = os.path.realpath('lib/grader')
        for path in (f'{package}/labs/2a_workers/starter.py', f'{package}/measure/blocks.py', f'{package}/sandbox/child.py'):
            with open(path, 'a') as file:
                file.write('\\nimport time; time.sleep(9)')
        """,
        lab,
    )
