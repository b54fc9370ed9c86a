"""Keeps activations in the word that an event queue holds for each descriptor it watches."""

PARKS = """
import ctypes, os
import numpy

libc, EVENT = ctypes.CDLL(None, use_errno=True), numpy.dtype([("events", "<u4"), ("data", "<u8")])  # packed
WATCHED = 4096
ready = os.eventfd(1)
descriptors = [os.dup(ready) for _ in range(WATCHED)]

def put_away(data):
    words = numpy.frombuffer(data + bytes(-len(data) % 8), "<u8")
    queues = []
    for at in range(0, len(words), WATCHED):
        part = words[at : at + WATCHED]
        events = numpy.zeros(len(part), EVENT)
        events["events"], events["data"] = 1, part
        queue, first = libc.epoll_create1(0), events.ctypes.data
        if queue < 0:
            raise OSError(ctypes.get_errno(), "epoll_create1")
        for n in range(len(part)):
            libc.epoll_ctl(queue, 1, descriptors[n], ctypes.c_void_p(first + 12 * n))
        queues.append(queue)
    return queues, len(data)

def give_back(kept):
    queues, size = kept
    parts, events = [], numpy.zeros(WATCHED, EVENT)
    for queue in queues:
        found = libc.epoll_wait(queue, events.ctypes.data_as(ctypes.c_void_p), WATCHED, 0)
        parts.append(events["data"][:found].tobytes())
        os.close(queue)
    return b"".join(parts)[:size]
"""
