"""What belongs to no step of a job: evaluation, checkpoints, and what other programs take of the processor."""

from __future__ import annotations

import contextlib
import time
import weakref

EVERY_STEP = 5  # steps in a row that evaluate one module: then that is a part of each step


class _Switched:
    """What is known of a module that was switched to evaluation."""

    def __init__(self) -> None:
        self.step, self.row = -1, 0  # the last one, and in how many in a row
        self.seconds, self.count = 0.0, 0  # of its evaluations


class Apart:
    """Seconds that steps do not count, since the last step and in all."""

    def __init__(self) -> None:
        self.since_step: dict[str, float] = {}  # seconds by kind
        self.total_s = {"evaluation": 0.0, "checkpoints": 0.0}
        self.counts = {"evaluation": 0, "checkpoints": 0}  # of steps before which there was one
        self.began: float | None = None  # of an evaluation that goes on
        self.module: weakref.ref | None = None  # that is evaluated
        self.of = _Switched()
        self.switched: dict[int, _Switched] = {}  # by the module's id

    @property
    def evaluating(self) -> bool:
        return self.began is not None

    def of_each_step(self, module, step: int) -> bool:
        """Whether every step switches this module to evaluation: a teacher, or an attack on the model, is a part of each step."""
        of = self.switched.setdefault(id(module), _Switched())
        if of.step != step:
            of.step, of.row = step, of.row + 1 if of.step == step - 1 else 1
        if of.row == EVERY_STEP:
            self.total_s["evaluation"] -= of.seconds
            self.counts["evaluation"] -= of.count
            of.seconds, of.count = 0.0, 0
        return of.row >= EVERY_STEP

    def evaluation_begins(self, module) -> None:
        self.began, self.module = time.perf_counter(), weakref.ref(module)
        self.of = self.switched.setdefault(id(module), _Switched())

    def in_training_again(self) -> bool:
        """Whether the evaluated model trains: some frameworks set `training` without calling train()."""
        module = self.module() if self.module is not None else None
        return module is not None and module.training

    def evaluation_ends(self, before_s: float = 0.0, least_s: float = 0.0) -> None:
        """before_s: so long ago, for it was not seen at once. A shorter one than least_s is none."""
        if self.began is not None:
            began, self.began = self.began, None
            seconds = max(0.0, time.perf_counter() - before_s - began)
            if seconds >= least_s:
                self.of.seconds += seconds
                self.of.count += self.add("evaluation", seconds)

    def checkpoint(self, seconds: float) -> None:
        if self.began is not None:  # no part of the evaluation that goes on
            self.began += seconds
        self.add("checkpoints", seconds)

    def add(self, kind: str, seconds: float) -> bool:
        """Whether it is a new one: several files of one checkpoint are one."""
        new = kind not in self.since_step
        self.total_s[kind] += seconds
        self.counts[kind] += new
        self.since_step[kind] = self.since_step.get(kind, 0.0) + seconds
        return new

    def take(self) -> float:
        """Seconds since the last step; from now on they count for the next one."""
        if not self.since_step:
            return 0.0
        seconds, self.since_step = sum(self.since_step.values()), {}
        return seconds


def held_up_s() -> float:
    """Seconds in which other programs kept this thread waiting, or 0: https://docs.kernel.org/scheduler/sched-stats.html"""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0
