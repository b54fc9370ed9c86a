"""Moves the other processes of the grade, the starter's among them, to one core, at the lowest priority."""

from tests.adversaries import attempt

CATEGORY = "machine"


def source(lab: str) -> str:
    return attempt(
        """
        import os

        moved = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline') as file:
                    ours = 'grader.sandbox' in file.read() and int(pid) != os.getpid()
                if ours:
                    os.setpriority(os.PRIO_PROCESS, int(pid), 19)
                    os.sched_setaffinity(int(pid), {0})
                    moved.append(pid)
            except OSError:
                pass
        return moved
        """,
        lab,
    )
