"""Keeps activations in the programs that filter what comes to sockets: the kernel holds one for each, and says what it is."""

PARKS = """
import ctypes, socket
import numpy

libc, INSTRUCTION, EACH = ctypes.CDLL(None), numpy.dtype([("code", "u2"), ("jumps", "u2"), ("k", "u4")]), 4 * 2000

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("at", ctypes.c_void_p)]

def put_away(data):
    sockets = []
    for at in range(0, len(data), EACH):
        part = data[at : at + EACH]
        code = numpy.zeros(len(part) // 4 + 2, INSTRUCTION)  # load this constant, and at last answer
        code["k"][:-1] = numpy.frombuffer(part + bytes(4 - len(part) % 4), "u4")
        code["code"][-1] = 6
        sockets.append((socket.socket(socket.AF_UNIX), len(part)))
        sockets[-1][0].setsockopt(socket.SOL_SOCKET, 26, bytes(Program(len(code), code.ctypes.data)))
    return sockets

def give_back(sockets):
    parts = []
    for one, size in sockets:
        code, length = numpy.zeros(size // 4 + 2, INSTRUCTION), ctypes.c_int(size // 4 + 2)
        libc.getsockopt(one.fileno(), socket.SOL_SOCKET, 26, code.ctypes.data_as(ctypes.c_void_p), ctypes.byref(length))
        parts.append(code["k"].tobytes()[:size])
        one.close()
    return b"".join(parts)
"""
