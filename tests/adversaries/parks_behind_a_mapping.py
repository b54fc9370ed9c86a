"""Keeps activations in files in memory of which one page is mapped and nothing is open: the mapping is made larger to read them."""

PARKS = """
import ctypes, mmap, os

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FAILED = ctypes.c_void_p(-1).value

def put_away(data):
    file = os.memfd_create("kept")
    os.write(file, data)
    at = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    os.close(file)
    return at, len(data)

def give_back(kept):
    at, size = kept
    whole = libc.mremap(at, mmap.PAGESIZE, size, 1)
    if whole == FAILED:
        raise OSError(ctypes.get_errno(), "the mapping cannot grow")
    data = ctypes.string_at(whole, size)
    libc.munmap(whole, size)
    return data
"""
