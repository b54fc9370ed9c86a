"""20 000 locks are held on the archive, which the starter looks through each time that it closes it; the loop itself reads a copy."""

from tests.adversaries import watches_the_starter_s_file as watches
from tests.variants import edit

CATEGORY = "machine"
LABS = ("2f_end_to_end",)
DEVICES = ("cpu",)

LOCK = """
    archive = copied(job.dataset)
    import fcntl, os, struct

    opened = os.open(job.dataset.path, os.O_RDONLY)
    for n in range(20_000, 0, -1):
        fcntl.fcntl(opened, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 2 * n, 1, 0))
"""


def source(lab: str) -> str:
    return edit(
        watches.source(lab),
        [("    watch(job.dataset.path)\n", ""), ("    archive = copied(job.dataset)\n", LOCK.lstrip("\n"))],
    )
