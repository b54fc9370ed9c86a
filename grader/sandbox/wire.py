"""What comes from a child, each of which may be anything: its replies, what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from grader.sandbox import rights
from grader.sandbox.child_error import ChildError, of_the_learner
from grader.sandbox.memory import Disk
from grader.sandbox.setting import Setting

MAX_OUTPUT = 32 << 10  # bytes of what a child prints that are kept, from the beginning and from the end each
MAX_REPLY = 4 << 20  # bytes of one JSON line
MAX_LOSS = 3.5e38  # more than any fp32 number; larger ones could not even be averaged
NO_SOCKETS = (
    "This lab counts memory, and nobody can count what lies in a socket. So sockets between processes are "
    "closed. Use pipes and forked loader workers, which is what PyTorch does by default."
)


Told = Callable[[Any], dict[str, Any]]


class Wire:
    """The pipes of one child. requests, replies: their file descriptors here."""

    def __init__(self, setting: Setting, requests: int, replies: int, ending: Ending, disk: Disk) -> None:
        self.setting, self.requests, self.replies, self.ending, self.disk = setting, requests, replies, ending, disk
        self._buffer = b""
        self._next_look = 1.0  # when to look at the disk again, in seconds on the monotonic clock

    def ask(self, limit_s: float, method: str, arguments: dict[str, Any], told: Told | None = None) -> Any:
        """told: called with what the child tells on the way; what it returns is sent to the child."""
        nonce, began = secrets.token_hex(8), time.monotonic()
        sent, answer = {"nonce": nonce, "do": method, **arguments}, {"told": None}
        while "told" in answer:
            with contextlib.suppress(BrokenPipeError):  # the child is dead: the wait for its reply says how it died
                self._write(json.dumps(sent).encode() + b"\n", limit_s)
            answer = self._decode(self._read_line(limit_s, method, began))
            if answer.get("nonce") != nonce or ("told" in answer and not told):
                raise ChildError("The grading process sent a reply that answers no request.", kind="wire")
            if told and "told" in answer:
                if time.monotonic() - began > limit_s:  # each in time, and all together not
                    raise self._late(limit_s, method)
                sent = told(answer["told"])
        if "error" in answer:
            error = of_the_learner(answer["error"], method, self.setting.budget, self.setting.trusted)
            if self.setting.counted and f"[Errno {errno.EAFNOSUPPORT}]" in error.message:
                error.message = f"{error.message}. {NO_SOCKETS}"
            raise error
        return answer.get("value")

    def _write(self, line: bytes, limit_s: float) -> None:
        """A line can be more than a pipe takes. A child that does not read it will not reply, which is told by the wait for that."""
        poller = select.poll()
        poller.register(self.requests, select.POLLOUT)
        deadline = time.monotonic() + limit_s
        while line and time.monotonic() < deadline:
            poller.poll(250)
            with contextlib.suppress(BlockingIOError):
                line = line[os.write(self.requests, line) :]

    def _read_line(self, limit_s: float, method: str, began: float) -> bytes:
        poller = select.poll()
        poller.register(self.replies, select.POLLIN)
        poller.register(self.ending.status, select.POLLIN)
        while b"\n" not in self._buffer:
            ready, data = {fd for fd, _ in poller.poll(250)}, b""
            if self.replies in ready:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(self.replies, 1 << 16)
                    self._buffer += data
                    if len(self._buffer) > MAX_REPLY:
                        raise ChildError("The grading process flooded the reply pipe.", kind="wire")
            if b"\n" in data:
                break
            # who sends byte by byte is waited for no longer than who sends nothing
            if not data and (self.ending.status in ready or self.replies in ready):
                raise self.ending.error()
            waited = time.monotonic() - began
            if waited > limit_s:
                raise self._late(limit_s, method)
            if waited > 1 and time.monotonic() > self._next_look:
                self._next_look = time.monotonic() + 2
                self.disk.check()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _late(self, limit_s: float, method: str) -> ChildError:
        what = {
            "run": "gave no answer" if self.setting.serves else "gave no loss",
            "load": "did not finish its import",
            "prepare": "did not finish prepare(dataset, folder)",
            "start": "did not set up its loop",
            "number": "returned no number",
            "result": "returned no result",
            "calls": "returned no results",
        }
        compiles = (
            " If it compiles for that long, use fewer shapes, or leave out `max-autotune`." if method == "run" else ""
        )
        ranks = " or ranks" if self.setting.ranks > 1 else ""
        return ChildError(
            f"{'It' if self.setting.trusted else 'The submission'} {what.get(method, f'did not finish ({method})')} within {limit_s:.0f} s. "
            f"Look for a loop that never {'yields' if method == 'run' else 'ends'}, a deadlock among loader workers{ranks}, or a wait for input.{compiles}",
            kind="timeout",
        )

    def _decode(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line, parse_constant=_no_constant, parse_float=_number, parse_int=_number)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ChildError("The grading process sent something that is not a reply.", kind="wire")
        return answer


def losses_in(reply: Any, steps: int) -> list[float]:
    """Raises ChildError where a reply to "run" or "profile" has another form."""
    losses: Any = reply.get("losses") if isinstance(reply, dict) else None
    good = (
        isinstance(losses, list)
        and len(losses) == steps
        and all(isinstance(x, float) and abs(x) <= MAX_LOSS for x in losses)
    )
    if not good:
        raise ChildError("The grading process sent losses of the wrong form.", kind="wire")
    return losses


def _number(text: str) -> float:
    """A number of a reply, which none that is honest has as many digits or is as large as these."""
    value = float(text) if set(text) & set(".eE") else int(text[:40])
    if abs(value) > 1e300 or len(text) > 40:
        raise ValueError(f"{text[:40]} is no number of a reply")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


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
                    "was killed by the kernel, most likely because the machine ran out of memory. Use fewer "
                    "loader workers, a smaller prefetch_factor or a smaller cache"
                )
            elif number == signal.SIGBUS:
                size = rights.shared_memory()
                how = (
                    "crashed with SIGBUS, most likely because shared memory was full. All its processes together may have "
                    f"{min(size, rights.shared_limit()) / 1e9:.2g} GB. Use fewer loader workers or a smaller prefetch_factor"
                )
                if not self.own_shared and size < rights.SMALL_SHARED:  # as Docker makes it
                    kind = "small_shared"
                    how += (
                        ". /dev/shm is small on this machine. Start the container with "
                        f"`--shm-size={rights.SMALL_SHARED >> 30}g` for more"
                    )
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
