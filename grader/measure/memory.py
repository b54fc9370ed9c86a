"""How much memory a loop holds, seen from outside: by NVML and the operating system, not by the process that is judged."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from grader import machine
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import Child

INTERVAL_S = 0.05  # between two looks while a loop runs
MAX_LOOK_S = 0.3  # of processor time, for one look: some 5 ms are usual, and nobody sees what comes and goes meanwhile


@dataclass(frozen=True)
class Level:
    """Bytes that a loop held after so many steps. largest: of `main`, those of the process that holds most."""

    steps: int
    gpu: int
    main: int
    largest: int = 0


class Meter:
    """Looks at one child during its turns. levels: one for the end of each turn. peak: bytes at the most that were seen, on a GPU of
    its memory, on a CPU of main memory beside what the child held before the submission was imported."""

    def __init__(self, child: Child, on_gpu: bool):
        self.child, self.on_gpu = child, on_gpu
        self.levels: list[Level] = []
        self.peak = 0
        child.ask("ready")
        self._base = child.memory.main()
        self._gpu_base = machine.gpu_memory() if on_gpu else 0  # what an import takes is the child's, too

    # 50 lines and more: the looks that go on beside each other, and what each tells the others
    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Look while the child has its turn and the other one stands still: on a GPU where NVML does not tell processes apart, all
        that comes or goes meanwhile is the child's. Raises ChildError where the child hid its memory meanwhile."""
        held = self.levels[-1].gpu if self.levels else 0
        before = machine.gpu_memory() if self.levels and self.on_gpu else self._gpu_base
        end, failed = threading.Event(), []
        files, looked, shared = 0, time.monotonic(), 0

        def gpu() -> int:
            own = self.child.memory.on_gpu()
            return max(0, held + machine.gpu_memory() - before) if own is None else own

        def look() -> None:
            nonlocal files, looked
            if self.on_gpu:
                self.peak = max(self.peak, gpu())
                return
            began = time.thread_time()
            anonymous, files = self.child.memory.anonymous(), self.child.memory.in_files()
            if time.thread_time() - began > MAX_LOOK_S:
                raise ChildError(
                    "The loop has so many processes, mappings or files that nobody sees its memory in time."
                )
            self.peak, looked = max(self.peak, anonymous + files + shared - self._base), time.monotonic()

        def glance() -> None:
            """While a look at all that the child has opened takes long."""
            if time.monotonic() - looked > 4 * INTERVAL_S:
                self.peak = max(self.peak, self.child.memory.anonymous() + files + shared - self._base)

        def look_at_pages() -> None:
            nonlocal shared
            shared = self.child.memory.shared_by_helpers()

        def watch(what: Callable[[], None]) -> None:
            try:
                while not end.wait(INTERVAL_S):
                    what()
            except ChildError as error:
                failed.append(error)

        watched = (look,) if self.on_gpu else (look, glance, look_at_pages)
        threads = [threading.Thread(target=watch, args=(what,), daemon=True) for what in watched]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            for thread in threads:
                thread.join()
            if not self.on_gpu:
                look_at_pages()
            look()
            main, largest = self.child.memory.main(), self.child.memory.largest()
            self.levels.append(Level(self.child.steps, gpu() if self.on_gpu else 0, main, largest))
        if failed:
            raise failed[0]


def growth(levels: Sequence[Level]) -> tuple[float, float] | None:
    """Bytes by which the GPU's and main memory grew from step to step, or None where fewer than two stretches of steps were
    seen. The median of the stretches: a leak grows in each of them, a cache or a buffer once."""
    stretches = [(a, b) for a, b in pairwise(levels) if b.steps > a.steps]
    if len(stretches) < 2:
        return None
    gpu = median((b.gpu - a.gpu) / (b.steps - a.steps) for a, b in stretches)
    return gpu, median((b.main - a.main) / (b.steps - a.steps) for a, b in stretches)
