"""Which thread of a process trains."""

from __future__ import annotations

import sys
import threading
import time

from grader_watch_steps import backward_runs_in

BESIDE_S = 2.0  # without a step of the thread whose steps count: then another thread's may


class Threads:
    """The one whose steps count, and those that train models of their own beside it."""

    def __init__(self) -> None:
        self.main = 0
        self.others: set[int] = set()

    @property
    def trains(self) -> bool:
        """Whether this is the thread whose steps count."""
        return self.main == threading.get_ident()

    @property
    def reads_for_another(self) -> bool:
        """Whether what a loader gives in this thread is for a model of its own."""
        return threading.get_ident() in self.others

    def steps(self) -> None:
        """This thread ended a step that counts."""
        self.main = threading.get_ident()
        self.others.discard(self.main)

    def beside(self, last_at: float, ends_steps: bool = True) -> bool:
        """Whether this one trains a model of its own. last_at: when a step that counts ended; ends_steps: by what it just did."""
        thread = threading.get_ident()
        if self.main in (0, thread) or backward_runs_in() >= 0 or not (ends_steps or thread in self.others):
            return False
        beside = time.perf_counter() - last_at < BESIDE_S and self.main in sys._current_frames()
        (self.others.add if beside else self.others.discard)(thread)
        return beside
