"""Keeps activations in a second process, in pages that it has told the kernel to free when somebody needs them; nobody does."""

PARKS = """
import ctypes, mmap, os, signal

libc = ctypes.CDLL(None, use_errno=True)
FREE = 8  # MADV_FREE

def put_away(data):
    inlet, outlet = os.pipe()
    ask, asked = os.pipe()
    ready, done = os.pipe()
    shared = mmap.mmap(-1, len(data), mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    shared[:] = data
    if (pid := os.fork()) == 0:
        own = mmap.mmap(-1, len(data), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        own[:] = shared[:]
        own.madvise(FREE)
        shared.close()
        os.write(done, b"x")
        os.read(ask, 1)
        view = memoryview(own)
        while view:
            view = view[os.write(outlet, view) :]
        signal.pause()
    shared.close()
    os.read(ready, 1)
    for end in (outlet, ask, ready, done):
        os.close(end)
    return len(data), inlet, asked, pid

def give_back(kept):
    size, inlet, asked, pid = kept
    os.write(asked, b"x")
    data = bytearray()
    while len(data) < size:
        data += os.read(inlet, 1 << 16)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(inlet)
    os.close(asked)
    return bytes(data)
"""
