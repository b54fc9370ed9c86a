"""Stops a child for the other side's turn and lets it go on, and sees that nobody cheats meanwhile."""

import contextlib
import math
import os
import select
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from grader import machine
from grader.cores import written
from grader.machine import Scheduling
from grader.sandbox import confine
from grader.sandbox.child_error import ChildError, disturbed, slowed
from grader.sandbox.drive import Drive
from grader.sandbox.memory import Disk
from grader.sandbox.processes import Processes, status
from grader.sandbox.setting import Setting
from grader.sandbox.wire import Ending

MAX_PROCESSES = 1000
MAX_LOCKS = 256  # on one file, of all processes of a child: a loader with many workers may have one or two in each
_ROUNDED_S = 0.04  # of a process's processor time: four figures in hundredths of a second
_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass
class Freezer:
    """Of one child, which runs at first."""

    setting: Setting
    processes: Processes
    ending: Ending
    disk: Disk
    drive: Drive | None  # it stands still with the child
    lifeline: int  # to the child's warden
    cores: frozenset[int]  # the grade's
    began: Scheduling  # of the child's main thread
    drive_began: Scheduling | None

    awake_s: float = 0.0  # seconds in which one of its processes may have run, in turns that have ended
    _awake_since: float = math.inf
    _frozen_at: float = math.inf  # processor time used when it was stopped; infinite while it runs
    _thawed_at: float = math.inf  # when it went on; infinite while it is stopped
    _stopped: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)  # its threads when it was stopped
    _scheduled: dict[int, Scheduling] = field(default_factory=dict)  # each thread as it was stopped, while it is

    @property
    def _watched(self) -> bool:
        """A loop of one's own may choose its cores by itself, and nobody runs beside it who would gain by that."""
        return self.setting.trusted and self.setting.workload != "grader.own.job"

    def freeze(self) -> None:
        """Stop every process of the child. Raises ChildError where that cannot be done, or the turn broke a rule."""
        # until a look finds nobody new and nobody running: who waits for a disk or a driver stops only when that is done
        stopped: set[int] = set()
        all_at_once = False
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            tree = self.processes.tree()
            running = [p for p in tree if p.pid not in stopped or status(p) not in _AT_REST]
            if not running and not all_at_once:
                self._stop_all(deadline - time.monotonic())
                all_at_once = True
                continue
            threads = {} if running else self.processes.threads()
            if not running and all(state in "TtZX" for state, _ in threads.values()):
                awake_s = max(0.0, time.monotonic() - self._awake_since)
                self.awake_s += awake_s
                self._awake_since = math.inf
                self._stopped = threads
                if self.drive:
                    self.check_drive(self.drive.stop())
                self._frozen_at = self.processes.cpu_seconds()
                # a turn begins and ends with a look at each process, those included that ended and that nobody waited for
                if (crowd := len(tree)) > MAX_PROCESSES:
                    said = f"The submission has {crowd} processes. At most {MAX_PROCESSES} are allowed."
                    raise ChildError(said, kind="freeze")
                self.disk.check()
                self._check_locks(tree)
                self._scheduled = self._check_scheduling()
                used_s, self._thawed_at = self._frozen_at - self._thawed_at, math.inf
                self.check_cores(used_s, awake_s, len(tree))
                return
            for process in running:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGSTOP)
                    stopped.add(process.pid)
            time.sleep(0.002)
        raise ChildError("The submission's processes could not be stopped for the other side's turn.", kind="freeze")

    def _stop_all(self, limit_s: float) -> None:
        """Have the warden stop all at once, where it can: also those that a list misses, as each starts the next one and ends."""
        # not at first: where the kernel is old it takes the warden some 10 ms
        poller = select.poll()
        poller.register(self.lifeline, select.POLLIN)
        with contextlib.suppress(OSError):  # the warden is gone, and all its tree
            os.write(self.lifeline, b"s")
            if poller.poll(1e3 * limit_s):
                os.read(self.lifeline, 1)

    def thaw(self, core: int | None = None) -> None:
        """Let every process run again. core: where the loop's main thread wakes up. Raises ChildError when one ran meanwhile."""
        self._thawed_at = self.processes.cpu_seconds()
        ran, self._frozen_at = self._thawed_at - self._frozen_at, math.inf
        if did := f"worked for {ran:.1f} s" if ran > 0.05 else self._woke():
            what = f"The submission's processes {did} while they were stopped for the other side's turn."
            raise ChildError(what, kind="freeze", trusted=self.setting.trusted)
        if self._watched:
            self._check_scheduling()
        self._scheduled = {}  # a thread may choose its own
        if self.drive:
            self.check_drive(self.drive.go_on())
        main, cores = self._keep_on(core) if core is not None else (None, set[int]())
        self._awake_since = time.monotonic()
        for process in reversed(self.processes.tree()):  # workers first: they are there when the main process asks
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        if main:
            with contextlib.suppress(OSError, psutil.Error):  # it died: the next request tells
                deadline = time.monotonic() + 0.1
                while main.cpu_num() != core and time.monotonic() < deadline:
                    time.sleep(0.001)  # a thread that was stopped moves when it wakes
                os.sched_setaffinity(main.pid, cores)

    def _woke(self) -> str:
        """What threads did that should be stopped, or '': one has run since, or has ended, or is there that was not."""
        # a process can have a timer send it the signal to go on. Processor time alone does not tell: that of a process which
        # ended, and that nobody waited for, is in nobody's account. Where all are dead the next request tells how they died
        now, was = self.processes.threads(), self._stopped
        self._stopped = {}
        ran = any(slices > was.get(thread, ("", -1))[1] for thread, (state, slices) in now.items() if state != "Z")
        if ran:
            return "worked"
        # what is stopped does not end by itself
        ended = any(state in "Tt" and now.get(thread, ("X", 0))[0] in "ZX" for thread, (state, _) in was.items())
        if ended and not self.ending.has_come():
            return "ended (they woke up, or were killed, as the kernel does when the machine runs out of memory)"
        return ""

    def _keep_on(self, core: int) -> tuple[psutil.Process | None, set[int]]:
        """Let the loop's main thread run on this core only; returns its process, and the cores that it may use otherwise. Not
        where it has chosen others, or several processes train together."""
        with contextlib.suppress(OSError, psutil.Error, IndexError):  # it died: the next request tells
            main = self.processes.oldest_first()[0]
            cores = os.sched_getaffinity(main.pid)
            if core in cores and self.setting.ranks == 1:
                os.sched_setaffinity(main.pid, {core})
                return main, cores
        return None, set()

    def _check_locks(self, tree: list[psutil.Process]) -> None:
        # whoever closes a file looks through all locks on it, those of others included: 50 000 take it 3 ms. Source of the
        # columns: https://man7.org/linux/man-pages/man5/proc_locks.5.html
        pids, found = {str(process.pid) for process in tree}, Counter[str]()
        with contextlib.suppress(OSError), open("/proc/locks") as locks:
            for row in map(str.split, locks):
                if row[4] in pids:  # of one that waits, another column stands there
                    found[row[5]] += 1
        if (most := max(found.values(), default=0)) > MAX_LOCKS:
            raise ChildError(
                f"The submission locks {most} parts of a file. At most {MAX_LOCKS} are allowed.", kind="freeze"
            )

    def _check_scheduling(self) -> dict[int, Scheduling]:
        """Where and how soon each thread may run now. Raises ChildError where another process made this one slower."""
        # without root all are the same user's, and may. The loop's main thread has what it began with; the others, which
        # libraries may pin, are as they were when they were stopped
        now, processes = dict[int, Scheduling](), self.processes.oldest_first()
        for process in processes:
            with contextlib.suppress(OSError):  # it ended meanwhile
                for thread in map(int, os.listdir(f"/proc/{process.pid}/task")):
                    now[thread] = machine.scheduling(thread)
        as_it_was = self._scheduled | {main.pid: self.began for main in processes[:1]}
        if self._watched and any(now[thread] != was for thread, was in as_it_was.items() if thread in now):
            raise slowed("the starter")
        return now

    def check_cores(self, used_s: float, awake_s: float, processes: int) -> None:
        """Raises ChildError where the turn took others' cores: a loop may choose among the grade's; the system would give it any."""
        # Where it is back on its own when it is stopped, the processor time tells that it took more than these have. Without
        # Landlock the kernel may be one that only imitates Linux, and promises no cores
        own = written(self.cores)
        if others := frozenset[int]().union(*(cores for cores, _, _ in self._scheduled.values())) - self.cores:
            what = f"let a thread run on cores {written(others)}, but this grade has only {own}"
        elif confine.landlock_abi() and used_s > 1.02 * len(self.cores) * awake_s + _ROUNDED_S * (1 + processes):
            what = f"took {used_s:.1f} s of processor time within {awake_s:.1f} s, more than this grade's cores ({own}) have"
        else:
            return
        advice = "Choose cores among those that os.sched_getaffinity(0) returns at first."
        raise ChildError(f"The loop {what}. {advice}", kind="freeze", trusted=self.setting.trusted)

    def check_drive(self, undisturbed: bool) -> None:
        """Raises ChildError where another process disturbed the drive: one of the same user's, on an old kernel, can."""
        assert self.drive is not None
        if not undisturbed or machine.scheduling(self.drive.pid) != self.drive_began:
            raise disturbed("Another program stopped, woke, ended or slowed the drive that a loop reads from.")
