"""What a child prints, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time

from grader.sandbox import rights
from grader.sandbox.child_error import ChildError

MAX_OUTPUT = 32 << 10  # bytes of what a child prints that are kept, from the beginning and from the end each
SMALL_SHARED = 2 << 30  # bytes of /dev/shm that eight loader workers with batches of 64 pictures stay far below


class Ending:
    """Of one child. status: where its warden says how it ended."""

    def __init__(self, status: int, output: Output, trusted: bool, own_shared: bool) -> None:
        self.status, self.output, self.trusted, self.own_shared = status, output, trusted, own_shared

    def has_come(self, limit_s: float = 0.0) -> bool:
        """Whether the warden says so, within this time."""
        poller = select.poll()
        poller.register(self.status, select.POLLIN)
        return bool(poller.poll(1e3 * limit_s))

    def error(self) -> ChildError:
        """Say how the child ended, from its wait status as the warden reports it."""
        text = os.read(self.status, 4096) if self.has_come(3.0) else b""
        status = json.loads(text)["status"] if text else None
        kind = "died"
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGKILL:
                how = (
                    "was killed by the kernel, most likely because the machine ran out of memory. Fewer loader workers, "
                    "a smaller prefetch_factor or a smaller cache need less"
                )
            elif number == signal.SIGBUS:
                there = os.statvfs("/dev/shm")
                size = there.f_blocks * there.f_frsize
                how = (
                    f"crashed with SIGBUS, most likely because shared memory was full: all its processes may have {min(size, rights.shared_limit()) / 1e9:.2g} "
                    "GB together. Fewer loader workers, or a smaller prefetch_factor, need less"
                )
                if not self.own_shared and size < SMALL_SHARED:  # as Docker makes it
                    kind = "small_shared"
                    how += f". /dev/shm is small on this machine; a container has more with `--shm-size={SMALL_SHARED >> 30}g`"
            else:
                known = number in set(signal.Signals)
                how = f"crashed with {signal.Signals(number).name if known else f'signal {number}'}"
        else:
            how = f"ended by itself (exit status {os.waitstatus_to_exitcode(status) if status is not None else '?'})"
        whose = "it" if self.trusted else "the submission"
        return ChildError(f"The process that ran {whose} {how}.", details=self.output.text()[-4000:], kind=kind)

    def await_all(self) -> None:
        """Wait until the warden says that no process of the child is left, 10 s at most."""
        poller = select.poll()
        poller.register(self.status, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if not poller.poll(1000):
                continue
            if not os.read(self.status, 4096):
                break


class Output:
    """Reads what a child prints, so that it never blocks, and keeps the beginning and the end."""

    def __init__(self, fd: int) -> None:
        self.head, self.tail, self.total = b"", b"", 0
        self._fd = fd
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 1 << 16):
                room = MAX_OUTPUT - len(self.head)
                self.head += data[:room]
                self.tail = (self.tail + data[room:])[-MAX_OUTPUT:]
                self.total += len(data)

    def close(self) -> None:
        self._thread.join(2)
        if not self._thread.is_alive():
            os.close(self._fd)

    def text(self) -> str:
        """All that was printed until now; a child that never stops printing is not waited for."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        deadline = time.monotonic() + 0.5
        while self._thread.is_alive() and poller.poll(0) and time.monotonic() < deadline:
            time.sleep(0.002)
        if self._thread.is_alive():
            time.sleep(0.002)  # what was just read is being put in its place
        dropped = self.total - len(self.head) - len(self.tail)
        middle = f"\n... {dropped / 1e6:.1f} MB of output left out ...\n".encode() if dropped > 0 else b""
        return (self.head + middle + self.tail).decode("utf-8", "replace")
