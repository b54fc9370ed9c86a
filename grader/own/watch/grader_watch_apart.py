"""What belongs to no step of a job: evaluation and checkpoints."""

from __future__ import annotations

import time
import weakref


class Apart:
    """Seconds that steps do not count, since the last step and in all."""

    def __init__(self) -> None:
        self.since_step_s = 0.0
        self.total_s = {"evaluation": 0.0, "checkpoints": 0.0}
        self.counts = {"evaluation": 0, "checkpoints": 0}
        self.began: float | None = None  # of an evaluation that goes on
        self.module: weakref.ref | None = None  # that is evaluated
        self.close = lambda: None  # ends what watches for its end

    @property
    def evaluating(self) -> bool:
        return self.began is not None

    def evaluation_begins(self, module) -> None:
        self.began, self.module = time.perf_counter(), weakref.ref(module)

    def in_training_again(self) -> bool:
        """Whether the evaluated model trains: some frameworks set `training` without calling train()."""
        module = self.module() if self.module is not None else None
        return module is not None and module.training

    def evaluation_ends(self, before_s: float = 0.0) -> None:
        """before_s: so long ago, for it was not seen at once."""
        if self.began is not None:
            self.close()
            began, self.began, self.close = self.began, None, lambda: None
            self.add("evaluation", max(0.0, time.perf_counter() - before_s - began))

    def add(self, kind: str, seconds: float) -> None:
        self.total_s[kind] += seconds
        self.counts[kind] += 1
        self.since_step_s += seconds

    def take(self) -> float:
        """Seconds since the last step; from now on they count for the next one."""
        seconds, self.since_step_s = self.since_step_s, 0.0
        return seconds
