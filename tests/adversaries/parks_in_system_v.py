"""Keeps activations in segments of System V's shared memory that nobody has attached."""

PARKS = """
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]

def put_away(data):
    number = libc.shmget(0, ctypes.c_size_t(len(data)), 0o1600)
    if number < 0:
        raise OSError(ctypes.get_errno(), "no segment")
    at = libc.shmat(number, None, 0)
    ctypes.memmove(at, data, len(data))
    libc.shmdt(at)
    return number, len(data)

def give_back(ticket):
    number, size = ticket
    at = libc.shmat(number, None, 0)
    data = ctypes.string_at(at, size)
    libc.shmdt(at)
    libc.shmctl(number, 0, None)
    return data
"""
