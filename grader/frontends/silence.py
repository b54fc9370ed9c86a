"""Says what it may mean that nothing is said: where a submission runs, nothing is timed, and it takes long."""

import contextvars
import re
import threading
from collections.abc import Callable

from grader.sandbox.setting import Limits

SILENCE_S = 15
PREPARED = 0.02  # up to this share data are made, once on a machine: how long that took says nothing of the rest
# how what is said of such phases begins
UNTIMED = ("the first step", "first steps of the submission", "loading")


class Silence:
    """A thread that sleeps: nothing of it disturbs a measurement."""

    def __init__(self, say: Callable[[str, str], None], stop: str) -> None:
        """say: called with a phase and what to think of it, once a phase; stop: how the reader stops it, a sentence's start."""
        self._say, self._stop = say, stop
        self._lock = threading.Lock()
        self._phases = 0  # how often a phase began, or all ended
        self._timer: threading.Timer | None = None

    def after(self, what: str, show: Callable[[], None] = lambda: None) -> None:
        """A phase begins, which `show` shows; "" for none."""
        with self._lock:
            self._phases += 1
            show()
            phase = self._phases
        if self._timer:
            self._timer.cancel()
        if not what.startswith(UNTIMED):
            return
        # the context has the cell that this is shown below
        self._timer = threading.Timer(SILENCE_S, contextvars.copy_context().run, (self._warn, phase, what))
        self._timer.daemon = True
        self._timer.start()

    def _warn(self, phase: int, what: str) -> None:
        with self._lock:
            if self._phases == phase:
                self._say(what, self._means(what))

    def _means(self, what: str) -> str:
        ends = f"{self._stop} stops it. It ends by itself after"
        if what.startswith("loading"):
            return (
                f"The cell isn't loaded after {SILENCE_S} s. What does it do on import? {ends} {Limits().load:.0f} s."
            )
        limit = re.search(r"for at most (\d+ s)", what)
        if what.startswith("the first step "):
            why = f"No step for {SILENCE_S} s yet. Is it compiling, or does the loop never yield?"
        else:
            why = f"Not done after {SILENCE_S} s. Is it compiling, are steps slow, or does the loop never yield?"
        return f"{why} {ends} {limit[1] if limit else 'some minutes'}."
