"""Looks for what other programs of the machine were called with: tokens, and the names of those who are graded."""

from tests.adversaries import attempt

CATEGORY = "machine"
LABS = ("2a_workers",)


def source(lab: str) -> str:
    return attempt(
        """
        import glob, os

        lines = []
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                if os.stat(folder).st_uid != os.getuid():
                    lines.append(open(folder + "/cmdline", "rb").read())
            except OSError:
                pass
        return len(lines), lines[:20]
        """,
        lab,
    )
