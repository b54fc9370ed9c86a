"""What belongs to no step of a job: evaluation and checkpoints."""

from __future__ import annotations

import time
import weakref

EVERY_STEP = 5  # steps in a row that evaluate one module: then that is a part of each step


class Apart:
    """Seconds that steps do not count, since the last step and in all."""

    def __init__(self) -> None:
        self.since_step: dict[str, float] = {}  # seconds by kind
        self.total_s = {"evaluation": 0.0, "checkpoints": 0.0}
        self.counts = {"evaluation": 0, "checkpoints": 0}  # of steps before which there was one
        self.began: float | None = None  # of an evaluation that goes on
        self.module: weakref.ref | None = None  # that is evaluated
        self.close = lambda: None  # ends what watches for its end
        self.evaluated: dict[int, tuple[int, int]] = {}  # by the module's id: last step, steps in a row

    @property
    def evaluating(self) -> bool:
        return self.began is not None

    def evaluation_begins(self, module, step: int) -> bool:
        """Whether one begins: a teacher, or an attack on the model, is a part of every step."""
        last, row = self.evaluated.get(id(module), (-1, 0))
        if last != step:
            row = row + 1 if last == step - 1 else 1
            self.evaluated[id(module)] = step, row
        if row == EVERY_STEP:
            self.total_s["evaluation"], self.counts["evaluation"] = 0.0, 0
        if row >= EVERY_STEP:
            return False
        self.began, self.module = time.perf_counter(), weakref.ref(module)
        return True

    def in_training_again(self) -> bool:
        """Whether the evaluated model trains: some frameworks set `training` without calling train()."""
        module = self.module() if self.module is not None else None
        return module is not None and module.training

    def evaluation_ends(self, before_s: float = 0.0, least_s: float = 0.0) -> None:
        """before_s: so long ago, for it was not seen at once. A shorter one than least_s is none."""
        if self.began is not None:
            self.close()
            began, self.began, self.close = self.began, None, lambda: None
            seconds = max(0.0, time.perf_counter() - before_s - began)
            if seconds >= least_s:
                self.add("evaluation", seconds)

    def add(self, kind: str, seconds: float) -> None:
        """Several files of one checkpoint are one."""
        self.total_s[kind] += seconds
        self.counts[kind] += kind not in self.since_step
        self.since_step[kind] = self.since_step.get(kind, 0.0) + seconds

    def take(self) -> float:
        """Seconds since the last step; from now on they count for the next one."""
        if not self.since_step:
            return 0.0
        seconds, self.since_step = sum(self.since_step.values()), {}
        return seconds
