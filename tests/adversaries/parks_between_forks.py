"""Keeps activations in pages that two forks share, and that the main process has given up."""

PARKS = """
import os, signal

def put_away(data):
    inlet, outlet = os.pipe()
    ask, asked = os.pipe()
    forks = []
    for first in (True, False):
        if (pid := os.fork()) == 0:
            if first:
                os.read(ask, 1)
                view = memoryview(data)
                while view:
                    view = view[os.write(outlet, view) :]
            signal.pause()
        forks.append(pid)
    return len(data), inlet, asked, forks

def give_back(kept):
    size, inlet, asked, forks = kept
    os.write(asked, b"x")
    data = bytearray()
    while len(data) < size:
        data += os.read(inlet, 1 << 16)
    for pid in forks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return bytes(data)
"""
