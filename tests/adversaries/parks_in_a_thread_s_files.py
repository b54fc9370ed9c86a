"""Keeps activations in files in memory that only a thread with descriptors of its own has open."""

PARKS = """
import ctypes, os, queue, threading

asked, done = queue.Queue(), queue.Queue()

def keep():
    ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
    while True:
        data = asked.get()
        if isinstance(data, bytes):
            file = os.memfd_create("x")
            os.write(file, data)
            done.put(file)
        else:
            done.put(os.pread(data, os.fstat(data).st_size, 0))
            os.close(data)

threading.Thread(target=keep, daemon=True).start()

def put_away(data):
    asked.put(data)
    return done.get()

give_back = put_away
"""
