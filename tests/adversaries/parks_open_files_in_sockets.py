"""Keeps activations in files in memory that no process has open: their descriptors are on the way in a socket."""

PARKS = """
import os, socket

def put_away(data):
    file, ends = os.memfd_create("x"), socket.socketpair()
    os.write(file, data)
    socket.send_fds(ends[0], [b"x"], [file])
    os.close(file)
    return ends

def give_back(ends):
    [file] = socket.recv_fds(ends[1], 1, 1)[1]
    data = os.pread(file, os.fstat(file).st_size, 0)
    os.close(file)
    return data
"""
