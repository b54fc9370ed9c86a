"""Keeps activations in the buffers of sockets that are themselves on the way in a socket."""

PARKS = """
import os, socket

def put_away(data):
    inner, outer = socket.socketpair(), socket.socketpair()
    inner[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    inner[0].sendall(data)
    socket.send_fds(outer[0], [b"x"], [inner[1].fileno()])
    return outer, len(data)

def give_back(ticket):
    outer, size = ticket
    [fd] = socket.recv_fds(outer[1], 1, 1)[1]
    with socket.socket(fileno=fd) as inner:
        return inner.recv(size, socket.MSG_WAITALL)
"""
