"""A training command as it is, watched from outside: started unchanged, with a folder on PYTHONPATH through which each of its
Pythons loads `watch/`. What the watching finds comes back through files in a folder; nothing else is exchanged."""

import contextlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from grader.errors import UserError
from grader.measure.blocks import lost_since
from grader.paths import temporary
from grader.result import made_writable
from grader.sandbox.processes import Processes

WATCH = Path(__file__).parent / "watch"
TORCH_SEEN = "torch-seen"
POLL_S = 0.3
STOP_S = 10.0  # that a stopped job has to end before it is killed
GRACE_S = 2.0  # that what a command started may take to end after it
MUCH_LOST = 0.02  # share of the time that other programs may take before it is named
NO_STEP_S = 300.0  # without a first step: said once


@dataclass
class Seen:
    """What is known of a job so far."""

    processes: list[dict[str, Any]] = field(default_factory=list)  # of those that train, by rank
    torch: bool = False  # some process imported it
    step: str = ""  # module:function that ends a step, as it was asked for
    failed: str = ""  # why a process of it could not be watched
    full: str = ""  # why the last that its processes told could not be written
    gpu_busy: list[float] = field(default_factory=list)  # as nvidia-smi shows it, 0 to 1, while steps were timed
    looks: int = 0  # complete measurements, each of all ranks of a training
    # the last one: process and look
    measured: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)  # share of each measurement, 0 to 1, that went to other programs
    status: int | None = None  # exit status of the command
    cut_short: bool = False  # it was ended at its limit
    left: list[int] = field(default_factory=list)  # process ids of what went on after the command's end
    seconds: float = 0.0
    # measurements of each process, by its id, that `next_look` gave
    taken: dict[int, int] = field(default_factory=dict)

    def next_look(self) -> bool:
        """Take the next measurement as `measured`, once all who train side by side have come to it. Whether there was one."""
        number = {each["pid"]: self.taken.get(each["pid"], 0) for each in self.processes}
        done = [each for each in self.processes if len(each["looks"]) > number[each["pid"]]]
        first = min((number[each["pid"]] for each in done), default=0)
        if any(
            number[each["pid"]] == first and len(each["looks"]) <= first and _trains(each) for each in self.processes
        ):
            return False
        self.measured = [(each, each["looks"][first]) for each in done if number[each["pid"]] == first]
        self.taken |= {each["pid"]: first + 1 for each, _ in self.measured}
        self.looks += bool(self.measured)
        return bool(self.measured)


@dataclass(frozen=True)
class Files:
    """In place of this process's own."""

    input: bytes
    output: Path


def run_watched(
    command: Sequence[str],
    folder: Path,
    options: dict[str, Any],
    *,
    looked: Callable[[Seen], bool] = lambda seen: False,
    say: Callable[[str], None] = lambda text: None,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    files: Files | None = None,
    limit_s: float = math.inf,
) -> Seen:
    """Run a command to its end, or until `looked`, called after each complete measurement, returns True: then it is stopped.

    The command has this process's terminal, output and signals. Where `files` are given it has those, and a signal that ends this
    process ends the job first. limit_s: after which it is stopped. options: see `Options` in watch/grader_watch.py.
    say: gets lines for the user. Raises UserError where the command cannot be started."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    began = time.monotonic()
    with _signals_are_ours() if files else _signals_are_the_jobs() as forward:
        process = _start(command, watched_environment(folder, options, environment or {}), cwd, files)
        forward(process)
        seen = Seen(step=options.get("step", ""))
        try:
            stopped = _watch(process, folder, seen, looked, say, began, limit_s)
        except BaseException:
            stop(process, folder)
            raise
    seen.left = [] if stopped else _left(folder, seen)
    seen.seconds = time.monotonic() - began
    seen.status = 0 if stopped else process.returncode if process.returncode >= 0 else 128 - process.returncode
    try:
        made_writable(folder)
    except UserError as error:
        seen.full = str(error)
    return seen


def watched_environment(folder: Path, options: dict[str, Any], more: dict[str, str]) -> dict[str, str]:
    """In which every Python of a command is watched."""
    given = json.dumps({**options, "folder": str(folder.resolve())})
    # 99: the profiler writes no lines of its own
    env = {"KINETO_LOG_LEVEL": "99", **os.environ, **more, "GRADER_WATCH": given}
    env["PYTHONPATH"] = os.pathsep.join([str(WATCH), *filter(None, [env.get("PYTHONPATH", "")])])
    return env


def _start(
    command: Sequence[str], env: dict[str, str], cwd: Path | None, files: Files | None
) -> subprocess.Popen[bytes]:
    try:
        if files is None:
            return subprocess.Popen(list(command), env=env, cwd=cwd)
        with tempfile.TemporaryFile(dir=temporary()) as given, open(files.output, "ab") as log:
            given.write(files.input)
            given.seek(0)
            return subprocess.Popen(list(command), env=env, cwd=cwd, stdin=given, stdout=log, stderr=log)
    except OSError as error:
        advice = "Give the command as you type it, after `--`. For what only a shell knows: bash -c '...'"
        if "=" in command[0]:
            advice = f"A variable is set before `grader`, as in: {command[0]} grader ..."
        elif " " in command[0]:
            advice = "Leave out the quotes around the whole command."
        elif not isinstance(error, FileNotFoundError):
            advice = f"It can't be started by itself. Give what runs it, as in: python {command[0]}"
        raise UserError(f"{command[0]}: {error.strerror}. {advice}") from None


def _watch(
    process: subprocess.Popen[bytes],
    folder: Path,
    seen: Seen,
    looked: Callable[[Seen], bool],
    say: Callable[[str], None],
    began: float,
    limit_s: float,
) -> bool:
    """Until the job has ended. Returns whether it was ended from here."""
    warned, stopped, running = False, False, True
    family, measuring = Processes(os.getpid()), False
    lost = lost_since(family, times_them=False)
    while running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        running = process.poll() is None
        gather(folder, seen)
        before, measuring = measuring, any(each["measuring"] for each in seen.processes)
        if measuring and not before:
            lost = lost_since(family, times_them=False)
        if measuring:
            seen.gpu_busy += _utilisation(seen)
        passed = time.monotonic() - began
        enough = seen.cut_short = running and passed > limit_s
        while not enough and seen.next_look():
            seen.lost.append(lost())
            enough = looked(seen)
        if enough and running:
            stopped, running = True, False
            stop(process, folder)
            gather(folder, seen)  # it went on while it was looked at
        if not (warned or seen.processes) and passed > NO_STEP_S:
            warned = True
            advice = never_called(seen) or "--step MODULE:FUNCTION names what ends one."
            say(f"no step was seen in {NO_STEP_S / 60:.0f} minutes. {advice}")
    return stopped


def _trains(process: dict[str, Any]) -> bool:
    """Whether more may come of it. One that was killed could not say that it is over."""
    return not process["over"] and (process["host"] != platform.node() or psutil.pid_exists(process["pid"]))


def never_called(seen: Seen) -> str:
    """What is said of a function that --step names, where no step was seen; nothing if it names none."""
    if not seen.step:
        return ""
    return f"{seen.step} is not there, or was not called. Its module is the script, such as train.py, or what `import` calls it."


def mean_step_s(look: dict[str, Any]) -> float:
    """Seconds per step, over both windows of a measurement."""
    return fmean(second for window in look["step_s"] for second in window)


@contextlib.contextmanager
def _signals_are_the_jobs() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """A terminal's Ctrl-C reaches the job by itself; what only this process gets is passed on. The job decides what comes of it."""
    job: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        for process in job:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    passed = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    with _handled({signal.SIGINT: lambda *_: None, **dict.fromkeys(passed, pass_on)}):
        yield job.append


@contextlib.contextmanager
def _signals_are_ours() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """What ends this process is an exception here, so that its job is ended too."""

    def end_all(*_: object) -> None:
        raise KeyboardInterrupt

    with _handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), end_all)):
        yield lambda process: None


@contextlib.contextmanager
def _handled(handlers: dict[signal.Signals, Callable[..., None]]) -> Iterator[None]:
    """What is ignored stays so, for the job too: nohup does that."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        wanted = {number: each for number, each in handlers.items() if signal.getsignal(number) is not signal.SIG_IGN}
        before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End a job and all that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        end([*{parent, *parent.children(recursive=True), *of_the_job(folder)}])
    process.wait()


def end(family: Sequence[psutil.Process]) -> None:
    """Asked first, killed after STOP_S."""
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.terminate()
    _, alive = psutil.wait_procs(family, STOP_S)
    for each in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def _left(folder: Path, seen: Seen) -> list[int]:
    """What trains on after the command's end; where nothing trained yet, what runs on. A loader's workers end by themselves."""
    running = of_the_job(folder)
    if seen.processes:
        trained = {each["pid"] for each in seen.processes}
        return [each.pid for each in running if each.pid in trained]
    return [each.pid for each in psutil.wait_procs(running, GRACE_S)[1]]


def of_the_job(folder: Path) -> list[psutil.Process]:
    """What runs of it, those too that it left to themselves: its environment names the folder."""
    named, found = json.dumps(str(folder.resolve())), []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if named in each.environ().get("GRADER_WATCH", "") and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def gather(folder: Path, seen: Seen) -> None:
    """What the processes of a job have told so far."""
    told = []
    for path in folder.glob("process-*.json"):
        with contextlib.suppress(OSError, ValueError):
            told.append(json.loads(path.read_text(encoding="utf-8")))
    stepping = [each for each in told if each["steps"]]
    most = max((each["steps"] for each in stepping), default=0)
    # a process that made a step or two on the side is no rank of the job
    ranks = [each for each in stepping if 10 * each["steps"] >= most]
    started = sorted(ranks, key=lambda each: each["pid"])
    turn = {each["pid"]: [other["rank"] for other in started[:n]].count(each["rank"]) for n, each in enumerate(started)}
    seen.processes = sorted(started, key=lambda each: (turn[each["pid"]], each["rank"]))  # one training after another
    alone = [each for each in seen.processes if each["world"] == 1]
    if len(alone) > 1:  # they are no group
        for number, each in enumerate(alone):
            each["rank"] = number
    seen.torch = (folder / TORCH_SEEN).exists()
    for path in folder.glob("failed-*"):
        seen.failed = path.read_text(encoding="utf-8", errors="replace")


def _utilisation(seen: Seen) -> list[float]:
    """Of the job's GPUs, 0 to 1, as nvidia-smi shows it."""
    wanted = [each["gpu"] for each in seen.processes if each["gpu"]]
    if not wanted:
        return []
    import pynvml  # here: only where there is a GPU

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{gpu}") for gpu in wanted]
        return [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]
    except pynvml.NVMLError:
        return []
