"""Nothing that fails in the watching reaches the job, and nothing of the job's own is kept from it."""

from __future__ import annotations

import functools
import signal

from grader_watch_steps import never_compiled


def guarded(method):
    """A method of the watcher's: where it fails the watching ends, and says why."""

    @functools.wraps(method)
    def call(self, *args):
        if self.over:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            if of_a_handler(error):
                raise
            self.give_up(f"{type(error).__name__}: {error}")
            return None

    never_compiled(call.__code__, below=True)
    return call


def of_a_handler(error: BaseException) -> bool:
    """Whether one of the job's signal handlers raised it: the signal may have come while the watcher ran, and is the job's."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {code for each in handlers for code in _codes(each)}
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code not in codes:
        at = at.tb_next
    return at is not None


def _codes(handler) -> list:
    """Of a function, a method, a partial function, or an object that is called."""
    handler = getattr(handler, "func", handler)
    called = getattr(type(handler), "__call__", None)  # noqa: B004
    return [each.__code__ for each in (handler, called) if hasattr(each, "__code__")]
