"""Has the system forget what it keeps of the archive, so that the starter reads it from the disk; the loop itself reads a copy."""

from tests.adversaries import starter, watches_the_starter_s_file
from tests.variants import edit

CATEGORY = "machine"
LABS = ("2f_end_to_end",)
DEVICES = ("cpu",)

ATTACK = '''
def evicting(loop, path):
    """Evict the file's pages at the end of each step."""
    import os

    file = os.open(path, os.O_RDONLY)
    for loss in loop:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        yield loss


def train(job):
    return evicting(steps(job), job.dataset.path)


def steps(job):
    archive = copied(job.dataset)
'''


def source(lab: str) -> str:
    copy = watches_the_starter_s_file.ATTACK.split("def watch")[0]
    return edit(
        starter(lab), [("def train(job):\n", (copy + ATTACK).lstrip("\n")), ("Tiles(job.dataset)", "Tiles(archive)")]
    )
