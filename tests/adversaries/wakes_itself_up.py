"""A timer of the kernel's wakes the process up while it is stopped, and a thread trains on."""

from tests import variants
from tests.adversaries import ahead

CATEGORY = "timing"


def source(lab: str) -> str:
    timer = """
        import ctypes

        class Event(ctypes.Structure):
            _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_int * 12)]

        libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
        libc.timer_create(1, ctypes.byref(Event(signo=18)), ctypes.byref(timer))
        libc.timer_settime(timer, 0, ctypes.byref((ctypes.c_long * 4)(0, 50_000_000, 0, 50_000_000)), None)
    """
    return ahead(timer, variants.trains_ahead(lab))
