"""Requests to a child and its replies: JSON lines, of which each may be anything, checked for size, nonce and form."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import time
from typing import Any

from grader.sandbox.child_error import ChildError, of_the_learner
from grader.sandbox.disk import Disk
from grader.sandbox.ending import Ending
from grader.sandbox.setting import Setting

MAX_REPLY = 4 << 20  # bytes of one JSON line
MAX_LOSS = 3.5e38  # more than any fp32 number; larger ones could not even be averaged
NO_SOCKETS = (
    "Where a lab counts memory no socket leads from one process to another, since what is on its way is in nobody's account: use pipes, and loader "
    "workers that are forked, which is the usual way."
)


class Wire:
    """The pipes of one child. requests, replies: their file descriptors here."""

    def __init__(self, setting: Setting, requests: int, replies: int, ending: Ending, disk: Disk) -> None:
        self.setting, self.requests, self.replies, self.ending, self.disk = setting, requests, replies, ending, disk
        self._buffer = b""
        self._next_look = 1.0  # when to look at the disk again, in seconds on the monotonic clock

    def ask(self, limit_s: float, method: str, arguments: dict[str, Any]) -> Any:
        nonce = secrets.token_hex(8)
        line = json.dumps({"nonce": nonce, "do": method, **arguments}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the child is dead: the wait for its reply says how it died
            self._write(line, limit_s)
        answer = self._decode(self._read_line(limit_s, method))
        if answer.get("nonce") != nonce:
            raise ChildError("The grading process sent a reply that answers no request.", kind="wire")
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

    def _read_line(self, limit_s: float, method: str) -> bytes:
        began = time.monotonic()
        poller = select.poll()
        poller.register(self.replies, select.POLLIN)
        poller.register(self.ending.status, select.POLLIN)
        while b"\n" not in self._buffer:
            ready = {fd for fd, _ in poller.poll(250)}
            if self.replies in ready:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(self.replies, 1 << 16)
                    self._buffer += data
                    if len(self._buffer) > MAX_REPLY:
                        raise ChildError("The grading process flooded the reply pipe.", kind="wire")
                    if data:
                        continue
            if self.ending.status in ready or self.replies in ready:
                raise self.ending.error()
            waited = time.monotonic() - began
            if waited > limit_s:
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
                    " If it compiles for that long: fewer shapes, or no `max-autotune`." if method == "run" else ""
                )
                raise ChildError(
                    f"{'It' if self.setting.trusted else 'The submission'} {what.get(method, f'did not finish ({method})')} within {limit_s:.0f} s. "
                    f"Look for a loop that never yields, a deadlock among loader workers, or a wait for input.{compiles}",
                    kind="timeout",
                )
            if waited > 1 and time.monotonic() > self._next_look:
                self._next_look = time.monotonic() + 2
                self.disk.check()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _decode(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line, parse_constant=_no_constant, parse_float=_number, parse_int=_number)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ChildError("The grading process sent something that is not a reply.", kind="wire")
        return answer


def losses_in(reply: Any, steps: int) -> list[float]:
    losses = reply.get("losses") if isinstance(reply, dict) else None
    good = (
        isinstance(losses, list)
        and len(losses) == steps
        and all(isinstance(x, float) and abs(x) <= MAX_LOSS for x in losses)
        and isinstance(reply.get("compiled"), int)
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
