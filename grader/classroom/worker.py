"""What runs on a Dask worker: each submission's grade in a process of its own, so that one that dies or hangs costs only itself.

Nothing of a learner's runs in this process or in that one, only in that one's confined children."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import dask

from grader import machine
from grader.machine import CORES
from grader.paths import with_this_package
from grader.version import version

TIMED = 0.86  # the share of a grade after which nothing is timed any more
MAX_LINE = 64 << 20  # bytes of a result

Tell = Callable[[float, str], None]


class GradeFailed(Exception):
    """The process of a grade died or ran past its limit. The message says how; it is written for the instructor."""


class Process:
    """A process that grades, started ahead: it has imported what it needs when its job comes."""

    def __init__(self) -> None:
        self._used = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.classroom.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd="/",  # nothing that lies in a course's folder is imported
            env=with_this_package(),
            start_new_session=True,
        )

    def alive(self) -> bool:
        return self._process.poll() is None

    def as_scheduled(self) -> bool:
        """Whether it lives, and runs on the cores, and as soon, as this worker began. Without root, a submission may change that."""
        return self.alive() and machine.scheduling(self._process.pid) == _scheduled

    def wait_ready(self, limit_s: float = 60) -> None:
        """Wait until it could begin with a job at once, or has died, which its job will tell."""
        assert self._process.stdout
        if not self._used:
            select.select([self._process.stdout], [], [], limit_s)  # the first that it says

    def grade(self, job: str, limit_s: float, tell: Tell) -> dict[str, Any]:
        """Hand it its job, wait for the result: {"result", "machine"}. Raises GradeFailed."""
        assert self._process.stdin and self._process.stdout
        self._used = True
        with contextlib.suppress(BrokenPipeError):  # it is dead: reading says how it died
            self._process.stdin.write(job.encode("ascii") + b"\n")
            self._process.stdin.flush()
        fd, deadline, buffer = self._process.stdout.fileno(), time.monotonic() + limit_s, b""
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or len(buffer) > MAX_LINE:
                raise GradeFailed(f"the grade was not done within {limit_s:.0f} s" if left <= 0 else "too long a reply")
            if not poller.poll(1000 * min(left, 60)):
                continue
            data = os.read(fd, 1 << 20)
            if not data:
                raise GradeFailed(f"the grading process ended by itself. {self._last_words()}".strip())
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                reply = json.loads(line)
                if "error" in reply:
                    raise GradeFailed(f"the grade could not be made. {reply['error']}")
                if "result" in reply:
                    return reply
                if "share" in reply:
                    tell(reply["share"], reply["what"])

    def _last_words(self) -> str:
        status = self._process.wait(10)
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 2000))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"Exit status {status}. {lines[-1] if lines else ''}"

    def close(self) -> None:
        """End it. Its fork server and its children see that it is gone, and end too."""
        self._process.kill()
        self._process.wait()
        for file in filter(None, (self._process.stdin, self._process.stdout, self._said)):
            with contextlib.suppress(OSError):
                file.close()


_next: Process | None = None
_scheduled = machine.scheduling(0)  # of each thread here
_lock = threading.Lock()  # one grade at a time: two would disturb each other


def start_ahead() -> Process:
    global _next
    if _next is None:
        _next = Process()
    return _next


def run(job: str, limit_s: float, topic: str = "", keep: bool = False) -> str:
    """Grade a job (`Job.to_json`) on this worker. Returns JSON: {"result", "machine", "version", "seconds", "worker"}, or {"failed":
    message} in place of the first two. Progress goes to the scheduler's `topic`, with the task's key. keep: the process that grades
    makes the next job, too, unless this one failed: for the course's own loops, as learners share nothing."""
    global _next
    from distributed import get_worker

    worker = get_worker()
    key = str(worker.get_current_task()) if topic else ""

    def tell(share: float, what: str) -> None:
        if share >= TIMED and not keep:
            start_ahead()  # the next one's imports take some seconds of one core, while nothing is timed
        if topic:
            worker.log_event(topic, {"key": key, "share": share, "what": what})

    with _lock:
        process, _next = _next, None
        if process is None or not process.as_scheduled():
            if process:
                process.close()
            _pin()
            process = Process()
        began, found = time.monotonic(), {}
        try:
            if not process.as_scheduled():
                raise GradeFailed("another program changed how soon this worker runs. Start the worker again")
            found = process.grade(job, limit_s, tell)
        except GradeFailed as error:
            found = {"failed": str(error)}
        finally:
            if keep and "result" in found:
                _next = process
            else:
                process.close()
        start_ahead()
    seconds = round(time.monotonic() - began, 1)
    return json.dumps(found | {"version": version(), "seconds": seconds, "worker": str(worker.name)})


def describe(device: str) -> dict[str, Any]:
    """What this worker, now ready, grades with: {"machines": keys, "form", "version", "cores", "gpu"}. UserError without the device."""
    from grader.grading.forms import choose_device

    if _lock.acquire(blocking=False):  # not beside a grade, whose cores its imports would take
        try:
            start_ahead().wait_ready()
        finally:
            _lock.release()
    form = choose_device(device)
    return {
        "machines": sorted({machine.key(form), machine.key("traces")}),  # as its results name it, whatever the lab
        "form": form,
        "version": version(),
        "cores": machine.cores(),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def uncalibrated(names: Sequence[str], device: str) -> list[str]:
    """Those of these labs whose points depend on a calibration that this worker's machine does not have."""
    from grader import labs
    from grader.calibrate import calibrated
    from grader.grading.forms import choose_form
    from grader.labs.lab import Lab
    from grader.measure.calibration import reference_gain

    found = [(lab, choose_form(lab, device)) for lab in map(labs.get, names) if isinstance(lab, Lab)]
    wanted = [(lab, form) for lab, form in found if form in lab.forms and calibrated(lab, form)]
    return [lab.name for lab, form in wanted if reference_gain(lab, form)[0] is None]


def dask_setup(worker: Any) -> None:
    """Dask calls this when a worker starts (`preload`): pins every thread it has, so that all it starts is pinned. One whose pool
    did not say on which cores, a job of SLURM, has the share of its GPUs."""
    global _scheduled
    # Dask starts its workers with OMP_NUM_THREADS=1 and the like; a notebook's kernel would inherit that, and measure it
    for name, value in dask.config.get("distributed.nanny.pre-spawn-environ", {}).items():
        if os.environ.get(name) == str(value):
            del os.environ[name]
    os.environ[CORES] = os.environ.get(CORES) or machine.written(machine.share(len(machine.gpus()))[0])
    _pin()
    _scheduled = machine.scheduling(0)


def _pin() -> None:
    cores = machine.parse(os.environ[CORES])
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def dask_teardown(worker: Any) -> None:
    if _next is not None:
        _next.close()
