"""What confinement this machine really offers: a confined process tries what is forbidden, and tells what got through.

Run as `python -m grader.sandbox.probe` it is that process, which reads on standard input what to try."""

import contextlib
import ctypes
import functools
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.paths import DATA, REPOSITORY, course, with_this_package
from grader.sandbox import confine
from grader.sandbox.rights import file_rights, kept_from_children, memory_limit
from grader.sandbox.workspace import Workspace

# what Landlock leaves open to a process of the same user
_OF_THE_SAME_USER = ("modes of files", "times of files", "limits of processes", "scheduling of processes")
TRIAL_S = 60.0  # it takes one or two
FEW_PROCESSES = 64  # the limit while it is tried: to start thousands of them would take seconds


@dataclass(frozen=True)
class Barrier:
    """One kind of confinement. holds: the confined process could not get through; means: what that says, in words."""

    name: str
    holds: bool
    means: str


@dataclass(frozen=True)
class Confinement:
    """What keeps a submission in on this machine. `landlock`: the kernel's Landlock ABI, 0 for none."""

    landlock: int
    barriers: tuple[Barrier, ...]

    @property
    def files(self) -> bool:
        """Whether a submission is kept away from files that are not its own. Without that no marks are given."""
        return next(barrier.holds for barrier in self.barriers if barrier.name == "files")

    def lines(self) -> list[str]:
        """One line a barrier, to be printed."""
        return [f"{b.name:<10} {'holds' if b.holds else 'OPEN':<6} {b.means}" for b in self.barriers]

    def to_dict(self) -> dict[str, Any]:
        """What a result records: {"landlock": ABI, "files": True, ...}."""
        return {"landlock": self.landlock} | {barrier.name: barrier.holds for barrier in self.barriers}


@functools.lru_cache(maxsize=1)
def confinement() -> Confinement:
    """Start a confined process, let it try, and say what held. Raises RuntimeError when that cannot be done."""
    confine.require_linux()
    with _trial() as spec:
        through = _tried(spec)
    return Confinement(confine.landlock_abi(), _barriers(through, spec["memory"]))


@contextlib.contextmanager
def _trial() -> Iterator[dict[str, Any]]:
    """What is forbidden, set up to be tried: a file that is open to all by its mode, sockets that listen."""
    memory = memory_limit()
    workspace, outside = Workspace(source=""), Path(tempfile.mkdtemp(prefix="outside-"))
    outside.chmod(0o777)
    secret = outside / "secret"
    secret.touch()
    secret.chmod(0o666)
    try:
        with (
            _listener(socket.SOCK_STREAM) as tcp,
            _listener(socket.SOCK_DGRAM) as udp,
            _local("") as abstract,  # the kernel chooses a name
            _local("socket", outside),
            _sleeping() as other,
        ):
            (outside / "socket").chmod(0o700)  # D-Bus of a user's session is such a one, and starts programs
            yield {
                "home": str(workspace.folder),
                "uid": workspace.uid,
                "files": file_rights(workspace.folder, [], "cuda") if confine.landlock_abi() else None,
                "kept": kept_from_children(),
                "processes": FEW_PROCESSES,
                "memory": memory,
                "outside": str(outside),
                "tcp": tcp.getsockname()[1],
                "udp": udp.getsockname()[1],
                "abstract": abstract.getsockname().decode(),
                "pid": os.getpid(),
                "other": other,
                "user": os.geteuid(),
            }
    finally:
        workspace.remove()
        shutil.rmtree(outside)


def _tried(spec: dict[str, Any]) -> dict[str, bool]:
    """By attempt: whether it got through."""
    failed = "The confinement of submissions could not be tried out on this machine"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grader.sandbox.probe"],
            input=json.dumps(spec),
            capture_output=True,
            text=True,
            env=with_this_package(),
            cwd=REPOSITORY,  # nothing that lies in the working folder is imported
            timeout=TRIAL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{failed}: it took more than {TRIAL_S:.0f} s. Wait until the machine is free.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"{failed}: {last}")
    return json.loads(done.stdout)


def _listener(kind: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, kind)
    listener.bind(("127.0.0.1", 0))
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener


@contextlib.contextmanager
def _sleeping() -> Iterator[int]:
    """Another process of the grader's user, that nobody needs."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _local(name: str, folder: Path | None = None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    if folder:
        with _short(folder) as short:
            listener.bind(f"{short}/{name}")
    else:
        listener.bind(name)
    listener.listen()
    return listener


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Another path of a folder: that of a socket may not be longer than 107 bytes."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _barriers(through: dict[str, bool], memory: int) -> tuple[Barrier, ...]:
    def barrier(name: str, attempts: tuple[str, ...], closed: str, open: str) -> Barrier:
        some = [attempt for attempt in attempts if through[attempt]]
        return Barrier(name, not some, open.format(", ".join(some)) if some else closed)

    return (
        barrier(
            "files",
            ("read", "write", "create", "empty", "the calibration", "a solution"),
            "reads only Python, system libraries, the grader's code and the lab's data, and writes only its own folder",
            "files outside its own folder: {} went through. A submission could read the solutions and change results",
        ),
        barrier(
            "network",
            ("TCP", "UDP", "abstract sockets"),
            "no TCP, no UDP, no abstract sockets",
            "{} went through. Only a grader that runs as root can close the network altogether",
        ),
        barrier(
            "sockets",
            ("sockets with a path",),
            "no sockets in the file system that are for the grader's user",
            "{} can be reached. D-Bus and others that listen there can start programs for a submission. Run "
            "the grader as root, or use Linux 7.1, to prevent it",
        ),
        barrier(
            "others",
            ("signals", "a look into the grader's process", "watches of files", *_OF_THE_SAME_USER),
            "no signals to processes outside and no look into them, no change of how they run or of files' "
            "modes and times, no watches of files",
            "{} went through",
        ),
        barrier("user", ("as the grader's user",), "a user of its own", "the user who grades (only root changes that)"),
        barrier(
            "processes",
            ("processes",),
            f"at most {confine.PROCESSES} processes and threads",
            "as many as the user who grades may start, because only root can set a limit",
        ),
        barrier(
            "memory",
            ("memory",),
            f"at most {memory / 1e9:.0f} GB a process. If the machine runs out of memory, submissions are ended first",
            "no limit. If the machine runs out of memory, submissions are ended first",
        ),
    )


# ---------------------------------------------------------------- the confined process


def _try_all(spec: dict[str, Any]) -> dict[str, bool]:
    outside = Path(spec["outside"])
    ip = "127.0.0.1"
    attempts: dict[str, Callable[[], object]] = {
        "read": lambda: (outside / "secret").read_bytes(),
        "write": lambda: (outside / "secret").write_bytes(b"changed"),
        "create": lambda: (outside / "new").touch(),
        "empty": lambda: os.truncate(outside / "secret", 0),
        "the calibration": lambda: (DATA / "measured" / "calibration.json").read_bytes(),
        "a solution": lambda: (course() / "solutions" / "2a_workers" / "2a_workers.ipynb").read_bytes(),
        "TCP": lambda: socket.create_connection((ip, spec["tcp"]), timeout=5),
        "UDP": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", (ip, spec["udp"])),
        "abstract sockets": lambda: socket.socket(socket.AF_UNIX).connect(spec["abstract"]),
        "sockets with a path": lambda: _connect("socket", outside),
        "signals": lambda: os.kill(spec["pid"], signal.SIGCONT),  # does nothing to a process that runs
        "a look into the grader's process": lambda: Path(f"/proc/{spec['pid']}/environ").read_bytes(),
        "watches of files": _watch_files,
        "modes of files": lambda: _change_mode(outside / "secret"),
        "times of files": lambda: _change_time(outside / "secret"),
        "limits of processes": lambda: resource.prlimit(spec["other"], resource.RLIMIT_CORE, (0, 0)),
        "scheduling of processes": lambda: _change_scheduling(spec["other"]),
        "memory": lambda: mmap.mmap(-1, spec["memory"] + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
        "processes": _start_too_many,
    }
    return {name: _gets_through(attempt) for name, attempt in attempts.items()} | {
        "as the grader's user": os.geteuid() == spec["user"]
    }


def _connect(name: str, folder: Path) -> None:
    with _short(folder) as short:
        socket.socket(socket.AF_UNIX).connect(f"{short}/{name}")


def _watch_files() -> None:
    # a process that reads a file which others watch does that for each of them
    _check(ctypes.CDLL(None).inotify_init1(0) >= 0)


# these may report success and do nothing


def _change_mode(path: Path) -> None:
    path.chmod(0o640)
    _check(path.stat().st_mode & 0o777 == 0o640)


def _change_time(path: Path) -> None:
    os.utime(path, (1, 1))
    _check(path.stat().st_mtime == 1)


def _change_scheduling(pid: int) -> None:
    os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
    _check(os.sched_getscheduler(pid) == os.SCHED_BATCH)


def _check(changed: bool) -> None:
    if not changed:
        raise PermissionError


def _gets_through(attempt: Callable[[], object]) -> bool:
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: "can't start new thread"
        attempt()
        return True
    return False


def _start_too_many() -> None:
    end = threading.Event()
    try:
        for _ in range(FEW_PROCESSES + 1):
            threading.Thread(target=end.wait, daemon=True).start()
    finally:
        end.set()


if __name__ == "__main__":
    spec = json.load(sys.stdin)
    os.setsid()  # as a child: within a session one may always be woken
    confine.enter(spec)
    print(json.dumps(_try_all(spec)))
