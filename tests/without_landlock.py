"""Runs a program as on a kernel without Landlock: python -m tests.without_landlock PROGRAM ARGUMENT ...

A seccomp filter answers Landlock's three system calls with ENOSYS, for this process and all it starts."""

import ctypes
import errno
import os
import struct
import sys

_LOAD, _AT_LEAST, _MORE_THAN, _RETURN = 0x20, 0x35, 0x25, 0x06  # BPF: ld, jge, jgt, ret
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def forbid_landlock() -> None:
    rows = [
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_AT_LEAST, 0, 2, 444),
        (_MORE_THAN, 1, 0, 446),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, program, 0, 0)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid_landlock()
    os.execvp(sys.argv[1], sys.argv[1:])
