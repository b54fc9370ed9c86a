"""Keeps activations in pages that two forks share, of a mapped file whose name begins as the kernel's own pages are called."""

from tests.adversaries import parks_between_forks

COPIED = """
import mmap

def copied(data):
    with open("[v", "w+b") as file:
        file.truncate(len(data))
        pages = mmap.mmap(file.fileno(), len(data), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    pages.write(data)
    os.unlink("[v")
    return pages
"""
HEAD = "def put_away(data):\n"

PARKS = parks_between_forks.PARKS.replace(HEAD, f"{COPIED}\n{HEAD}    data = copied(data)\n")
