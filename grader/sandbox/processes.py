"""A child's processes and threads, looked at from outside."""

import contextlib
import ctypes
import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub
from pathlib import Path

import psutil

from grader import machine
from grader.cores import ran_and_waited_s, waited_s

_OF_A_PROCESS = 2  # the clock of its processor time, beside its id: clock_getcpuclockid(3)


@dataclass(frozen=True)
class Doing:
    """What several ranks have done so far, or do in a step."""

    sent: float  # bytes that they sent to each other, over the loopback that only they have
    ran_s: tuple[float, ...]  # each rank's processor time


def per_step(turns: Sequence[tuple[Doing | None, Doing | None]], steps: int) -> Doing | None:
    """What was done per step, in so many steps of these turns, before and after each of which was looked; None where one look failed."""
    looks = [(before, after) for before, after in turns if before and after]
    if not steps or not turns or len(looks) < len(turns):
        return None
    ran_s = zip(*(map(sub, after.ran_s, before.ran_s) for before, after in looks), strict=True)
    return Doing(
        sum(after.sent - before.sent for before, after in looks) / steps, tuple(sum(each) / steps for each in ran_s)
    )


class Processes:
    """All that a child has started, and itself. warden: its warden's process id, see `server`."""

    def __init__(self, warden: int) -> None:
        self.warden = warden
        self._worked_s, _ = machine.processor_time()

    def tree(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.warden).children(recursive=True)
        except psutil.Error:
            return []

    def oldest_first(self) -> list[psutil.Process]:
        """The child's processes; the one that it began as, which is the loop's, first."""
        return sorted(self.tree(), key=psutil.Process.create_time)

    def threads(self) -> dict[tuple[int, int], tuple[str, int]]:
        """By process and thread: its state (proc_pid_stat(5)), and how many times it was given a processor
        (https://docs.kernel.org/scheduler/sched-stats.html). Empty where the kernel does not tell."""
        found = {}
        for process in self.tree():
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{process.pid}/task"):
                    with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
                        state = _state(entry.path)
                        slices = int(Path(entry.path, "schedstat").read_text().split()[2])
                        found[process.pid, int(entry.name)] = state, slices
        return found

    def waited(self) -> dict[tuple[int, int], float]:
        """`waited_s` of each thread (process id, thread id)."""
        found = {}
        for process in self.tree():
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{process.pid}/task"):
                    found[process.pid, int(entry.name)] = waited_s(f"{process.pid}/task/{entry.name}")
        return found

    def cpu_seconds(self) -> float:
        """Processor time that the child's processes have used so far, those included that ended."""
        total = 0.0
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])  # its own and its children's, user and system
        with contextlib.suppress(psutil.Error):
            total += sum(psutil.Process(self.warden).cpu_times()[2:4])  # of those that had lost their parent
        return total

    def held_up(self, seconds: float) -> float:
        """The share of the last so many seconds that other programs kept a thread of these from a processor, at most: all that it
        ever waited counts, but no more than their share of the processors' work since these processes began."""
        most = max(self.waited().values(), default=0.0)
        done = machine.processor_time()[0] - self._worked_s
        others = max(0.0, done - self.cpu_seconds()) / max(done, 1e-9)
        return min(most / max(seconds, 1e-9), others)

    def main_seconds(self) -> float:
        """Processor time that the loop's main process has used so far, in all its threads; 0 where it has ended."""
        with contextlib.suppress(psutil.Error, IndexError):
            return sum(self.oldest_first()[0].cpu_times()[:2])
        return 0.0

    def doing(self, ranks: int) -> Doing | None:
        """What the child's so many ranks have done so far, as the kernel counts it; None where it is one process, or a rank has ended."""
        if ranks < 2:
            return None
        with contextlib.suppress(psutil.Error, OSError, IndexError, StopIteration):
            launcher = self.oldest_first()[0]
            found = sorted(launcher.children(), key=lambda process: (process.create_time(), process.pid))
            ran_s = tuple(time.clock_gettime(~process.pid << 3 | _OF_A_PROCESS) for process in found)
            devices = Path(f"/proc/{launcher.pid}/net/dev").read_text().splitlines()
            counts = next(line.split(":")[1] for line in devices if line.strip().startswith("lo:"))
            return Doing(float(counts.split()[0]), ran_s) if len(ran_s) == ranks else None
        return None

    def main_thread(self) -> tuple[float, float]:
        """Seconds that the loop's main thread has run so far, and that it has waited for a processor; 0 where it has ended."""
        with contextlib.suppress(psutil.Error, IndexError):
            main = self.oldest_first()[0].pid
            return ran_and_waited_s(f"{main}/task/{main}")
        return 0.0, 0.0


def status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.Error:
        return psutil.STATUS_DEAD


def living(pid: int) -> str:
    """Where /proc tells of a process: at one of its threads, for that which it began with may have ended, and then tells nothing."""
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        path = f"{pid}/task/{thread}"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if _state(f"/proc/{path}") not in "ZX":
                return path
    return str(pid)


def _state(path: str) -> str:
    """Of a thread, by its folder in /proc: see proc_pid_stat(5). Its name, which stands before that, may be no text."""
    return Path(path, "stat").read_bytes().rpartition(b")")[2].split()[0].decode()


def same_files(one: int, other: int) -> bool:
    """Whether two threads have the same descriptors; False where the kernel does not tell: see kcmp(2)."""
    number, kcmp_files = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine), 2
    return number is not None and ctypes.CDLL(None).syscall(number, one, other, kcmp_files, 0, 0) == 0


@functools.cache
def can_compare_files() -> bool:
    return same_files(os.getpid(), os.getpid())
