"""128 queues are told of each read of the archive, which the starter pays for; the loop itself reads a copy."""

from tests.adversaries import starter
from tests.variants import edit

CATEGORY = "machine"
LABS = ("2f_end_to_end",)
DEVICES = ("cpu",)

ATTACK = '''
def copied(archive):
    import copy
    import os
    import shutil

    copied = copy.copy(archive)
    copied.path = os.path.join(os.path.expanduser("~"), "copy.sqlite")
    shutil.copy(archive.path, copied.path)
    return copied


def watch(path):
    """Whoever opens or reads the file from now on writes an event into 128 queues."""
    import ctypes
    import os

    libc, watches = ctypes.CDLL(None), 0
    while (queue := libc.inotify_init1(0)) >= 0:
        for each in (path, path.parent):
            watches += libc.inotify_add_watch(queue, os.fsencode(str(each)), 0xFFF) >= 0
    print("watches", watches, flush=True)


def train(job):
    watch(job.dataset.path)
    archive = copied(job.dataset)
'''


def source(lab: str) -> str:
    return edit(starter(lab), [("def train(job):\n", ATTACK.lstrip("\n")), ("Tiles(job.dataset)", "Tiles(archive)")])
