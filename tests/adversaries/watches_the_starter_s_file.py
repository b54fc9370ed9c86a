"""128 queues are told of each read of the archive, which the starter pays for; the loop itself reads a copy."""

from tests.adversaries import starter
from tests.variants import edit

CATEGORY = "machine"
LABS = ("2f_end_to_end",)
DEVICES = ("cpu",)

ATTACK = '''
class Copy:
    def __init__(self, archive):
        import os
        import shutil
        import sqlite3

        self.size, self.count = archive.size, archive.count
        self.path = os.path.join(os.path.expanduser("~"), "copy.sqlite")
        shutil.copy(archive.path, self.path)
        self.connect = lambda: sqlite3.connect(f"file:{self.path}?immutable=1", uri=True)

    def __len__(self):
        return self.count


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
    archive = Copy(job.dataset)
'''


def source(lab: str) -> str:
    return edit(starter(lab), [("def train(job):\n", ATTACK.lstrip("\n")), ("Tiles(job.dataset)", "Tiles(archive)")])
