"""Looks for the reference solution and for other submissions, to hand them in."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import glob, os

        found = []
        for root in (os.path.dirname(os.path.realpath('lib/grader')), '/root', '/home', '/tmp', '/'):
            for pattern in ('solutions/*/*.ipynb', 'submitted/*/*/*.ipynb', 'grader-*/submission.py', '*/solutions/*'):
                found += glob.glob(os.path.join(root, pattern))
        return [open(path).read()[:80] for path in found if os.path.realpath(path) != os.path.realpath('submission.py')]
        """,
        lab,
    )
