"""The trusted side: starts confined children, talks to them, freezes, watches and kills them.

The parent never imports, unpickles or executes anything of the learner's; replies are JSON, checked for size and nonce."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import hmac
import json
import math
import os
import re
import resource
import secrets
import select
import shutil
import signal
import site
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from grader import machine
from grader.data.cache import cache_dir, make_dir
from grader.sandbox import confine
from grader.sandbox.drive import Drive

# Of this and a grade's seed a request is drawn, so the arms of one process's grade have the same requests. No child knows it:
# what it needs for a turn comes with the turn
_REQUESTS_KEY = secrets.token_bytes(32)
MAX_REPLY = 4 << 20  # bytes of one JSON line
MAX_OUTPUT = 32 << 10  # bytes of what a child prints that are kept, from the beginning and from the end each
COMPILED = {"graphs", "graph_breaks", "recompiles"}  # what a child counts of torch.compile
MAX_MESSAGE = 5_000  # characters of an error, fewer than a report shows; those of torch.compile have some 2,000
MAX_LOSS = 3.5e38  # more than any fp32 number; larger ones could not even be averaged
MAX_DISK = 6 << 30  # bytes in a child's folder, compiler caches and a trace included
MAX_PAGES = 1 << 24  # of one mapping: 64 GiB
SMALL_SHARED = 2 << 30  # bytes of /dev/shm that eight loader workers with batches of 64 pictures stay far below
NO_ROOM = 16 << 20  # bytes left at which a disk, or shared memory, is as good as full
MAX_PROCESSES = 1000
_ROUNDED_S = 0.04  # of a process's processor time: four figures in hundredths of a second
MAX_LOCKS = 256  # on one file, of all processes of a child: a loader with many workers may have one or two in each
MAX_TEMPORARY = 40  # bytes of the path for temporary files; a workspace's and a socket's name come behind it
NO_SOCKETS = (
    "Where a lab counts memory no socket leads from one process to another, since what is on its way is in nobody's account: use pipes, and loader "
    "workers that are forked, which is the usual way."
)
REPOSITORY = Path(__file__).resolve().parents[2]
# where a machine keeps programs from NVLink's multicast; NCCL's own switch is among the NCCL_ ones
NO_MULTICAST = ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
# what ranks talk by; a cluster's own settings may name a network that a child cannot reach
ON_ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
_FOR_COMPILERS = ("CC", "CXX", "CPATH", "LIBRARY_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH")


class ChildError(Exception):
    """The code in a child failed or broke the contract. `message` is for the learner; `details` is a traceback or ''.
    trusted: it was the starter's child, not the learner's. asked: the request that it was asked, "load", "start", ...; "" where
    it was none. within: the line of the job's own file that `line` led to."""

    trusted = False
    asked = ""

    def __init__(
        self,
        message: str,
        details: str = "",
        kind: str = "",
        line: int | None = None,
        name: str = "",
        within: int | None = None,
    ):
        super().__init__(message)
        self.message, self.details, self.kind, self.line, self.name = message, details, kind, line, name
        self.within = within


@dataclass
class Limits:
    """Seconds. `load`: import of the submission; `first_step`: the first step, which may compile; `step`: any other request
    for steps, or 20 times what it is expected to take where that is longer."""

    load: float = 60.0
    first_step: float = 240.0
    step: float = 60.0
    disk_bytes: int = MAX_DISK


# ---------------------------------------------------------------- the fork server


class ForkServer:
    """A process that has torch imported and forks children on request (see `server`), all on this thread's cores. Start it
    early: it takes some seconds to be ready, in the background. Raises ChildError where another process changed these."""

    def __init__(self) -> None:
        self.cores = machine.held_cores()
        self._scheduled = machine.scheduling(0)  # which it begins with
        if self._scheduled[0] != self.cores:
            raise _slowed("the grader")
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.sandbox.server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.owner = os.getpid()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def fork(self, spec: dict[str, Any], fds: list[int]) -> int:
        """Start a child; returns its warden's process id. Raises RuntimeError when the server is dead, and ChildError where
        another process made it slower: its children would begin with the cores and the priority that it has now."""
        with self._lock:
            self.wait_ready()
            if self.alive() and machine.scheduling(self._process.pid) != self._scheduled:
                self.close()  # the next grade has another one
                raise _slowed("the grader")
            answer = b""
            with contextlib.suppress(ConnectionError):  # it is dead
                socket.send_fds(self._socket, [json.dumps(spec).encode()], fds)
                answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the grader's fork server died; its own message stands above")
        return int(answer)

    def wait_ready(self) -> None:
        if not self._ready:
            if self._socket.recv(64) != b"ready":
                raise RuntimeError("the grader's fork server did not start; its own message stands above")
            self._ready = True

    def close(self) -> None:
        self._socket.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            self._process.kill()
            self._process.wait()  # until then it seems alive, and would be asked for the next child


_server: ForkServer | None = None


def fork_server() -> ForkServer:
    """This process's fork server, started at the first call, and anew on other cores: libraries start as many threads as there
    were cores when they were imported."""
    global _server
    if _server and _server.alive() and _server.cores != machine.held_cores():
        _server.close()
    if _server is None or not _server.alive():
        _server = ForkServer()
        atexit.register(_server.close)
    return _server


def _environment() -> dict[str, str]:
    """What children may know of our environment: where programs and libraries are, the language. No tokens."""
    keep = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ", *_FOR_COMPILERS, *NO_MULTICAST)
    prefixes = ("CUDA_", "NVIDIA_", "NCCL_")
    # CUDA's own order puts the fastest GPU first; NVML, which is asked whether it is in use, counts by bus
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    kept = order | {k: v for k, v in os.environ.items() if k in keep or k.startswith(prefixes)}
    path = [str(REPOSITORY), *_python_path()]
    # what os.cpu_count() says from Python 3.13 on; before, only os.sched_getaffinity(0) tells
    cores = {"PYTHON_CPU_COUNT": str(len(machine.held_cores()))}
    return kept | cores | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _python_path() -> list[str]:
    """The user's PYTHONPATH without folders that hold this repository: children may read what is on the path."""
    entries = [os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if site.ENABLE_USER_SITE:  # what `pip install --user` wrote; HOME is another one in a child
        entries.append(os.path.realpath(site.getusersitepackages()))
    return [path for path in entries if _may_be_read(path)]


def _may_be_read(folder: str | Path) -> bool:
    """Not one in which this repository, the user's cache or home lies: a right holds for all that is below."""
    home = Path(os.path.expanduser("~"))
    return not any(kept.is_relative_to(folder) for kept in (REPOSITORY, cache_dir().resolve(), home))


def _compilers() -> list[str]:
    """Where compilers lie that are not the system's: modules of a cluster, conda."""
    found = [shutil.which(os.environ.get(name) or usual) for name, usual in (("CC", "cc"), ("CXX", "c++"))]
    prefixes = [Path(path).resolve().parents[1] for path in found if path]
    return [str(prefix) for prefix in prefixes if len(prefix.parts) > 2 and _may_be_read(prefix)]


# ---------------------------------------------------------------- one child


@dataclass
class Workspace:
    """The private folder of one submission: its module, its temporary files and its compiler caches. The caches are
    shared by that submission's own children only. Whoever makes one removes it."""

    source: str
    folder: Path = field(init=False)
    uid: int = 0

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="grader-", dir=_temporary()))
        if _may_give_users():
            self.uid = _unused_user()
        (self.folder / "cache").mkdir()
        self._fill()
        if self.uid:
            os.chown(self.folder / "cache", self.uid, -1)

    def _fill(self) -> None:
        for name in ("exchange", "tmp", "lib"):
            (self.folder / name).mkdir()
        # where Python programs that a child starts find this package: they cannot list the folder that it lies in
        (self.folder / "lib" / "grader").symlink_to(REPOSITORY / "grader")
        # a notebook can hold half a surrogate pair, which no file can: in a text it means the same when it is escaped
        (self.folder / "submission.py").write_text(self.source, encoding="utf-8", errors="backslashreplace")
        if self.uid:
            for path in (self.folder, *self.folder.iterdir(), self.folder / "lib" / "grader"):
                os.chown(path, self.uid, -1, follow_symlinks=False)

    def empty(self) -> None:
        """Make all but the compiler caches anew. Called when all its processes are gone."""
        confine.clear_shared_memory(self.uid)
        for path in self.folder.iterdir():
            if path.name != "cache":
                confine.clear_away(str(path), 0)
        self._fill()

    def remove(self) -> None:
        confine.clear_away(str(self.folder), self.uid)


def _temporary() -> Path:
    """Where workspaces lie: not where the paths of sockets in them, those of loader workers, would be too long (107 bytes)."""
    folder = Path(tempfile.gettempdir())
    return Path("/tmp") if len(os.fsencode(folder)) > MAX_TEMPORARY and os.access("/tmp", os.W_OK | os.X_OK) else folder


def _unused_user() -> int:
    """A user id that nobody has; below 65536, since a container may not map others. An even one: the next one is for who ends
    this one's processes."""
    while True:
        uid = 30_000 + 2 * secrets.randbelow(15_000)
        if not confine.is_used(uid) and not confine.is_used(uid + 1):
            return uid


@functools.lru_cache(maxsize=1)
def _may_give_users() -> bool:
    """Whether children can have users of their own: this process is root, its container maps other ids, and those can read
    what a child needs (root in a container has often no right to give them that)."""
    if os.geteuid() != 0:
        return False
    needed = [sys.prefix, sys.base_prefix, REPOSITORY / "grader", REPOSITORY / "data", make_dir(cache_dir())]
    program = (
        "import os, sys, tempfile; from grader.sandbox import confine\n"
        "with tempfile.TemporaryDirectory() as folder: os.chown(folder, 30_000, -1)\n"
        "confine.give_up_root(30_000)\n"
        "for path in sys.argv[1:]: os.listdir(path)"
    )
    command = [sys.executable, "-c", program, *map(str, needed)]
    return subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, check=False).returncode == 0


def waited_s(thread: str) -> float:
    """Seconds that a thread, as /proc names it, could have run but had to wait for a processor; 0 where the kernel does not tell.
    Source: https://docs.kernel.org/scheduler/sched-stats.html"""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc", thread, "schedstat").read_text().split()[1]) / 1e9
    return 0.0


class Child:
    """A confined process that holds one submission. Use as a context manager: leaving it kills the whole process tree.

    workload, options, threads, environment: the lab's form. trusted: it runs our own starter, so its errors are not a
    learner's. drive: where its files lie, which serves it in its turns only. ranks: how many processes train
    together (see `ranks`). counted: `main_memory` will be asked for, so there is nowhere to put bytes that it does not see.
    budget, exact_memory, serves: see `Form`. Raises RuntimeError where file access cannot be confined,
    unless `allow_unconfined`, and where several ranks cannot have a network of their own."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        workload: str,
        options: dict[str, Any],
        device: str,
        readable: Iterable[str | Path] = (),
        threads: int | None = None,
        environment: dict[str, str] | None = None,
        limits: Limits | None = None,
        trusted: bool = False,
        allow_unconfined: bool = False,
        drive: Drive | None = None,
        ranks: int = 1,
        budget: int | None = None,
        exact_memory: bool = False,
        serves: bool = False,
        counted: bool = False,
    ):
        confined = confine.landlock_abi() > 0
        if not confined and not allow_unconfined:
            raise RuntimeError("this kernel has no Landlock, so a submission's file access cannot be confined")
        if ranks > 1 and (refused := _no_own_loopback()):
            raise RuntimeError(
                f"several ranks need a network of their own, and this machine gives them none: {refused}"
            )
        self.workspace, self.limits, self.trusted, self.budget = workspace, limits or Limits(), trusted, budget
        self.ranks, self.drive, self.serves, self._counted = ranks, drive, serves, counted
        self._drive_began = machine.scheduling(drive.pid) if drive else None
        home = workspace.folder
        own_gpus = {}
        if device == "cuda" and ranks > 1:
            own_gpus = {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus()[:ranks])}
        elif confined and machine.other_gpu_files():  # CUDA counts the GPUs that it can open, and that is one
            own_gpus = {"CUDA_VISIBLE_DEVICES": "0"}
        loopback = ON_ONE_HOST if ranks > 1 else {}
        if device == "cuda":
            _make_uvm()
        files = file_rights(home, readable, device, ranks)
        own_shared = not _needs_the_machines_shared_memory(files) and _has_own_shared_memory(workspace.uid > 0)
        spec = {
            "home": str(home),
            "uid": workspace.uid,
            "files": files if confined else None,
            "processes": confine.PROCESSES,
            "memory": memory_limit(),
            "trusted": trusted,
            "counted": counted,
            "shared": shared_limit() if own_shared else None,
            "environment": _environment()
            | _private_environment(home, device)
            | loopback
            | (environment or {})
            | own_gpus,
            "ranks": ranks,
            "workload": workload,
            "options": options,
            "device": device,
            "threads": threads,
            "budget": budget,
            "exact_memory": exact_memory,
        }
        self._own_shared = own_shared
        self.steps = 0
        self.awake_s = 0.0  # seconds in which one of its processes may have run, in turns that have ended
        self._awake_since = math.inf
        self._shown = False  # what its processes have mapped
        self._frozen_at = math.inf  # processor time used when it was stopped; infinite while it runs
        self._thawed_at = math.inf  # when it went on; infinite while it is stopped
        self._stopped: dict[tuple[int, int], tuple[str, int]] = {}  # its threads when it was stopped
        # a loop of one's own may choose its cores by itself, and nobody runs beside it who would gain by that
        self._watched = trusted and workload != "grader.own.job"
        self._scheduled: dict[int, tuple] = {}  # each thread as it was stopped, while it is
        self._next_look = 1.0  # when to look at the disk again, in seconds on the monotonic clock
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        output, output_write = os.pipe()
        self._status, status = os.pipe()
        lifeline, self._lifeline = (end.detach() for end in socket.socketpair())
        theirs = [requests, replies, output_write, status, lifeline]
        try:
            server = fork_server()
            self.warden, self.cores = server.fork(spec, theirs), server.cores
            self._began = machine.scheduling(self.warden)
        finally:
            for fd in theirs:
                os.close(fd)
        os.set_blocking(self._replies, False)
        os.set_blocking(self._requests, False)
        self._buffer = b""
        self._output = _Output(output)

    # ---- requests

    def load(self, entry: str = "") -> None:
        self._ask(self.limits.load, "load", entry=entry)

    def number(self, entry: str, seed: int, limit_s: float) -> float:
        """The positive number that the submission's function `entry` returns for the job of `seed`."""
        value = self._ask(limit_s, "number", entry=entry, seed=seed)
        if not isinstance(value, float) or not 0 < value <= MAX_LOSS:
            raise ChildError("The grading process sent a number of the wrong form.", kind="wire")
        return value

    def prepare(self, limit_s: float) -> float:
        """Let the submission prepare its data; returns the seconds it took on this process's clock. Those in which its data
        set is made count: what prepare() should do can be done there, too."""
        self._open_drive()
        began = time.perf_counter()
        self.ask("make_dataset")
        self._ask(limit_s, "prepare")
        return time.perf_counter() - began

    def logs(self) -> list[dict[str, Any]]:
        """What the loop logged with job.log, step by step: numbers, or None, by name."""
        logs = self.ask("logs")
        if not isinstance(logs, list) or not all(isinstance(values, dict) for values in logs):
            raise ChildError("The grading process sent logs of the wrong form.", kind="wire")
        return logs

    def counted(self) -> dict[str, float]:
        """What the workload counts itself, per step so far, by name."""
        counts = self.ask("counted")
        if not isinstance(counts, dict) or not all(isinstance(value, float) for value in counts.values()):
            raise ChildError("The grading process sent counts of the wrong form.", kind="wire")
        return counts

    def start(self, seed: int, keep_initial: bool = False, mark: str = "", nudge: int = 0) -> None:
        """Build the job and call train(job). mark: a name that marks in a trace where each step begins, its number behind it.
        nudge: 1, 2, ... for a trusted loop that trains from weights close to the job's, others for each number."""
        self._open_drive()
        self._seed = seed
        keys = self._keys(0, 1)  # the first one may be looked at before it is asked for
        self._ask(self.limits.load, "start", seed=seed, keep_initial=keep_initial, mark=mark, nudge=nudge, **keys)

    def _keys(self, first: int, end: int) -> dict[str, list[int]]:
        """What these requests are drawn from, for a child that serves: in it are never more than those of its turn, and the next
        one, which may be taken when the last of the turn is answered."""
        if not self.serves:
            return {}
        drawn = (hmac.digest(_REQUESTS_KEY, f"{self._seed} {n}".encode(), "sha256") for n in range(first, end))
        return {"keys": [int.from_bytes(digest[:8]) for digest in drawn]}

    def _next_keys(self, steps: int) -> dict[str, list[int]]:
        return self._keys(self.steps + 1, self.steps + 1 + steps)

    def _open_drive(self) -> None:
        if self.drive:
            self.drive.open(self.warden, next((process.pid for process in self._oldest_first()), -1))

    def _check_drive(self, undisturbed: bool) -> None:
        """Raises ChildError where another process disturbed the drive: without root all of them are the same user's, and an old
        kernel lets them."""
        if not undisturbed or machine.scheduling(self.drive.pid) != self._drive_began:
            raise _trusted("Another program stopped, woke, ended or slowed the drive that a loop reads from.")

    def run(self, steps: int, expected_s: float | None = None, first: bool = False) -> tuple[float, list[float], int]:
        """Run `steps` steps. Returns the seconds from request to reply on this process's clock, the losses, and how
        many graphs torch.compile has made so far. first: in one of the first steps each new length may be compiled for."""
        limit = self.limits.first_step if first or not self.steps else self.limits.step
        if expected_s is not None:
            limit = max(limit, 20 * expected_s)
        keys = self._next_keys(steps)
        began = time.perf_counter()
        reply = self._ask(limit, "run", steps=steps, **keys)
        seconds = time.perf_counter() - began
        self.steps += steps
        return seconds, _losses(reply, steps), int(reply.get("compiled", 0))

    def weights(self, file: str) -> None:
        self._ask(self.limits.load, "weights", file=file)

    def start_profiler(self, with_stack: bool = False) -> None:
        """Start the profiler, which records nothing yet: see `Arm.profile`."""
        self._ask(self.limits.first_step, "start_profiler", with_stack=with_stack)

    def profile(self, steps: int, file: str) -> dict[str, int]:
        """Record `steps` steps into `file`; two more are run. Returns what torch.compile has done so far: "graphs",
        "graph_breaks", "recompiles"."""
        keys = self._next_keys(steps + 2)
        reply = self._ask(self.limits.first_step, "profile", steps=steps, file=file, **keys)
        counts = reply.get("compiled") if isinstance(reply, dict) else None
        if not isinstance(counts, dict) or counts.keys() != COMPILED or {*map(type, counts.values())} != {int}:
            raise ChildError("The grading process sent a reply of the wrong form.", kind="wire")
        self.steps += steps + 2
        return counts

    def ask(self, method: str, **arguments: Any) -> Any:
        """Any other request, with the limit for loading."""
        return self._ask(self.limits.load, method, **arguments)

    def _ask(self, limit_s: float, method: str, **arguments: Any) -> Any:
        try:
            return self._asked(limit_s, method, arguments)
        except ChildError as error:
            error.trusted, error.asked = self.trusted, method
            if self.drive and self.drive.disturbed():  # what the loop says of it is not its fault
                self._check_drive(False)
            if re.search(r"Bus error|SIGBUS|No space left", error.message) and (taken := self._room_that_others_took()):
                error.kind, error.message = "room", taken
            raise

    def _asked(self, limit_s: float, method: str, arguments: dict[str, Any]) -> Any:
        nonce = secrets.token_hex(8)
        line = json.dumps({"nonce": nonce, "do": method, **arguments}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the child is dead: the wait for its reply says how it died
            self._write(line, limit_s)
        answer = self._decode(self._read_line(limit_s, method))
        if answer.get("nonce") != nonce:
            raise ChildError("The grading process sent a reply that answers no request.", kind="wire")
        if "error" in answer:
            error = _learner_error(answer["error"], method, self.budget, self.trusted)
            if self._counted and f"[Errno {errno.EAFNOSUPPORT}]" in error.message:
                error.message = f"{error.message}. {NO_SOCKETS}"
            raise error
        return answer.get("value")

    def _write(self, line: bytes, limit_s: float) -> None:
        """A line can be more than a pipe takes. A child that does not read it will not reply, which is told by the wait for that."""
        poller = select.poll()
        poller.register(self._requests, select.POLLOUT)
        deadline = time.monotonic() + limit_s
        while line and time.monotonic() < deadline:
            poller.poll(250)
            with contextlib.suppress(BlockingIOError):
                line = line[os.write(self._requests, line) :]

    def _read_line(self, limit_s: float, method: str) -> bytes:
        began = time.monotonic()
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        poller.register(self._status, select.POLLIN)
        while b"\n" not in self._buffer:
            ready = {fd for fd, _ in poller.poll(250)}
            if self._replies in ready:
                with contextlib.suppress(BlockingIOError):
                    data = os.read(self._replies, 1 << 16)
                    self._buffer += data
                    if len(self._buffer) > MAX_REPLY:
                        raise ChildError("The grading process flooded the reply pipe.", kind="wire")
                    if data:
                        continue
            if self._status in ready or self._replies in ready:
                raise self._death()
            waited = time.monotonic() - began
            if waited > limit_s:
                what = {
                    "run": "gave no answer" if self.serves else "gave no loss",
                    "load": "did not finish its import",
                    "prepare": "did not finish prepare(dataset, folder)",
                    "start": "did not set up its loop",
                    "number": "returned no number",
                    "result": "returned no result",
                    "calls": "returned no results",
                }
                compiles = (
                    " If it compiles for that long: fewer shapes, or no `max-autotune`." if method == "run" else ""
                )
                raise ChildError(
                    f"{'It' if self.trusted else 'The submission'} {what.get(method, f'did not finish ({method})')} within {limit_s:.0f} s. "
                    f"Look for a loop that never yields, a deadlock among loader workers, or a wait for input.{compiles}",
                    kind="timeout",
                )
            if waited > 1 and time.monotonic() > self._next_look:
                self._next_look = time.monotonic() + 2
                self._check_disk()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _check_disk(self) -> None:
        """What it has on the disk, and in shared memory where that is not its alone: files without a name, too."""
        folder, shared = os.stat(self.workspace.folder).st_dev, os.stat("/dev/shm").st_dev
        files = dict(confine.held_in(str(self.workspace.folder)))
        files |= dict(confine.held_in("/dev/shm", self.workspace.uid)) if self.workspace.uid else {}
        for process in self._tree():
            with contextlib.suppress(OSError):  # it ended, or does not show them
                files |= _opened(process.pid)
        for device, where, most in (
            (folder, "to its folder", self.limits.disk_bytes),
            (shared, "to shared memory", shared_limit()),
        ):
            used = sum(size for (each, _), size in files.items() if each == device)
            if used > most:
                raise ChildError(
                    f"The submission wrote {used / 1e9:.1f} GB {where}; at most {most / 1e9:.1f} GB are allowed.",
                    kind="disk",
                )

    def _room_that_others_took(self) -> str:
        """Whether shared memory or the disk is full, and not by this child, in words."""
        places = [(self.workspace.folder, dict(confine.held_in(str(self.workspace.folder))))]
        if not self._own_shared:
            places.append((Path("/dev/shm"), dict(self._shared_memory())))
        for place, own in places:
            there = os.statvfs(place)
            used = (there.f_blocks - there.f_bfree) * there.f_frsize
            if there.f_bavail * there.f_frsize < NO_ROOM and 2 * sum(own.values()) < used:
                return f"other programs have filled {place if place == Path('/dev/shm') else place.parent}, and the loop found no room there."
        return ""

    def _check_crowd(self, tree: list[psutil.Process]) -> None:
        """A turn begins and ends with a look at each process, those included that ended and that nobody waited for."""
        if len(tree) > MAX_PROCESSES:
            raise ChildError(
                f"The submission has {len(tree)} processes; at most {MAX_PROCESSES} are allowed.", kind="freeze"
            )

    def _check_locks(self, tree: list[psutil.Process]) -> None:
        """Whoever closes a file looks through all locks on it, those of others included: 50 000 take it 3 ms. Source of the columns:
        https://man7.org/linux/man-pages/man5/proc_locks.5.html"""
        pids, found = {str(process.pid) for process in tree}, Counter()
        with contextlib.suppress(OSError), open("/proc/locks") as locks:
            for row in map(str.split, locks):
                if row[4] in pids:  # of one that waits, another column stands there
                    found[row[5]] += 1
        if (most := max(found.values(), default=0)) > MAX_LOCKS:
            raise ChildError(
                f"The submission locks {most} parts of a file; at most {MAX_LOCKS} are allowed.", kind="freeze"
            )

    def _decode(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line, parse_constant=_no_constant, parse_float=_number, parse_int=_number)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ChildError("The grading process sent something that is not a reply.", kind="wire")
        return answer

    def _death(self) -> ChildError:
        """Say how the child ended, from its wait status as the warden reports it."""
        text = os.read(self._status, 4096) if self._is_dead(3.0) else b""
        status = json.loads(text)["status"] if text else None
        kind = "died"
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGKILL:
                how = (
                    "was killed by the kernel, most likely because the machine ran out of memory. Fewer loader workers, "
                    "a smaller prefetch_factor or a smaller cache need less"
                )
            elif number == signal.SIGBUS:
                there = os.statvfs("/dev/shm")
                size = there.f_blocks * there.f_frsize
                how = (
                    f"crashed with SIGBUS, most likely because shared memory was full: all its processes may have {min(size, shared_limit()) / 1e9:.2g} "
                    "GB together. Fewer loader workers, or a smaller prefetch_factor, need less"
                )
                if not self._own_shared and size < SMALL_SHARED:  # as Docker makes it
                    kind = "small_shared"
                    how += f". /dev/shm is small on this machine; a container has more with `--shm-size={SMALL_SHARED >> 30}g`"
            else:
                known = number in set(signal.Signals)
                how = f"crashed with {signal.Signals(number).name if known else f'signal {number}'}"
        else:
            how = f"ended by itself (exit status {os.waitstatus_to_exitcode(status) if status is not None else '?'})"
        whose = "it" if self.trusted else "the submission"
        return ChildError(f"The process that ran {whose} {how}.", details=self.output()[-4000:], kind=kind)

    # ---- the exchange folder

    @property
    def exchange(self) -> Path:
        return self.workspace.folder / "exchange"

    def fetch(self, file: str, max_bytes: int, hint: str = "", take: bool = False) -> bytes:
        """The contents of a file that the child wrote to the exchange folder; take: which has it no more then. Raises ChildError when
        it is missing, too large (then with `hint`, what to do), or no plain file (a link could point to anything)."""
        try:
            # in two steps: the exchange folder itself could be a link as well
            folder = os.open(self.exchange, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                if take:
                    os.unlink(file, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ChildError(
                f"The submission's process left no readable {file} ({error.strerror}).", kind="wire"
            ) from None
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise ChildError(f"The submission's process left a {file} of the wrong kind.", kind="wire")
            if info.st_size > max_bytes:
                raise ChildError(
                    f"The submission's process left a {file} of {info.st_size / 1e6:.1f} MB; at most {max_bytes / 1e6:.1f} MB are read.{hint}",
                    kind="wire",
                )
            with os.fdopen(fd, "rb", closefd=False) as handle:
                return handle.read(max_bytes)
        finally:
            os.close(fd)

    def give(self, file: str, data: bytes) -> None:
        """Put a file into the child's exchange folder."""
        target = self.exchange / file
        target.write_bytes(data)
        target.chmod(0o644)

    # ---- freeze, thaw, kill

    def freeze(self) -> None:
        """Stop every process of the child. Repeats until a look finds nobody new and nobody running (a process that waits
        for a disk or a driver stops only when that is done)."""
        stopped: set[int] = set()
        all_at_once = False
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            tree = self._tree()
            running = [p for p in tree if p.pid not in stopped or _status(p) not in _AT_REST]
            if not running and not all_at_once:
                self._stop_all(deadline - time.monotonic())
                all_at_once = True
                continue
            threads = {} if running else self._threads()
            if not running and all(state in "TtZX" for state, _ in threads.values()):
                awake_s = max(0.0, time.monotonic() - self._awake_since)
                self.awake_s += awake_s
                self._awake_since = math.inf
                self._stopped = threads
                if self.drive:
                    self._check_drive(self.drive.stop())
                self._frozen_at = self.cpu_seconds()
                self._check_crowd(tree)
                self._check_disk()
                self._check_locks(tree)
                self._scheduled = self._check_scheduling()
                used_s, self._thawed_at = self._frozen_at - self._thawed_at, math.inf
                self._check_cores(used_s, awake_s, len(tree))
                return
            for process in running:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGSTOP)
                    stopped.add(process.pid)
            time.sleep(0.002)
        raise ChildError("The submission's processes could not be stopped for the other side's turn.", kind="freeze")

    def _stop_all(self, limit_s: float) -> None:
        """Have the warden stop all at once, where it can: those, too, that a list of processes misses, as each starts the next
        one and ends. Not at first: where the kernel is old it takes the warden some 10 ms."""
        poller = select.poll()
        poller.register(self._lifeline, select.POLLIN)
        with contextlib.suppress(OSError):  # the warden is gone, and all its tree
            os.write(self._lifeline, b"s")
            if poller.poll(1e3 * limit_s):
                os.read(self._lifeline, 1)

    def thaw(self, core: int | None = None) -> None:
        """Let every process run again. core: where the loop's main thread wakes up. Raises ChildError when one ran in the
        meantime: a process can have a timer send it the signal to go on."""
        self._thawed_at = self.cpu_seconds()
        ran, self._frozen_at = self._thawed_at - self._frozen_at, math.inf
        if did := f"worked for {ran:.1f} s" if ran > 0.05 else self._woke():
            error = ChildError(
                f"The submission's processes {did} while they were stopped for the other side's turn.", kind="freeze"
            )
            error.trusted = self.trusted
            raise error
        if self._watched:
            self._check_scheduling()
        self._scheduled = {}  # a thread may choose its own
        if self.drive:
            self._check_drive(self.drive.go_on())
        main, cores = self._keep_on(core) if core is not None else (None, ())
        self._awake_since = time.monotonic()
        for process in reversed(self._tree()):  # workers first, so that they are there when the main process asks
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        if main:
            with contextlib.suppress(OSError, psutil.Error):  # it died: the next request tells
                deadline = time.monotonic() + 0.1
                while main.cpu_num() != core and time.monotonic() < deadline:
                    time.sleep(0.001)  # a thread that was stopped moves when it wakes
                os.sched_setaffinity(main.pid, cores)

    def _woke(self) -> str:
        """What was done by threads that should be stopped, or '': one has run since, or has ended, or a process is there that was
        not. Processor time alone does not tell: that of a process which ended, and that nobody waited for, is in nobody's
        account. Where the whole child is dead the next request tells how it died."""
        now, was = self._threads(), self._stopped
        self._stopped = {}
        ran = any(slices > was.get(thread, ("", -1))[1] for thread, (state, slices) in now.items() if state != "Z")
        if ran:
            return "worked"
        # what is stopped does not end by itself
        ended = any(state in "Tt" and now.get(thread, ("X", 0))[0] in "ZX" for thread, (state, _) in was.items())
        if ended and not self._is_dead():
            return "ended (they woke up, or were killed, as the kernel does when the machine runs out of memory)"
        return ""

    def _is_dead(self, limit_s: float = 0.0) -> bool:
        """Whether the warden says so, within this time."""
        poller = select.poll()
        poller.register(self._status, select.POLLIN)
        return bool(poller.poll(1e3 * limit_s))

    def _threads(self) -> dict[tuple[int, int], tuple[str, int]]:
        """By process and thread: its state (proc_pid_stat(5)), and how many times it was given a processor
        (https://docs.kernel.org/scheduler/sched-stats.html). Empty where the kernel does not tell."""
        found = {}
        for process in self._tree():
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{process.pid}/task"):
                    with contextlib.suppress(OSError, IndexError, ValueError):  # it ended meanwhile
                        state = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[0]
                        slices = int(Path(entry.path, "schedstat").read_text().split()[2])
                        found[process.pid, int(entry.name)] = state, slices
        return found

    def _keep_on(self, core: int) -> tuple[psutil.Process | None, Collection[int]]:
        """Let the loop's main thread run on this core only; returns its process, and the cores that it may use otherwise.
        None where that is not this core (a loop may choose its own), and where several processes train together."""
        with contextlib.suppress(OSError, psutil.Error, IndexError):  # it died: the next request tells
            main = self._oldest_first()[0]
            cores = os.sched_getaffinity(main.pid)
            if core in cores and self.ranks == 1:
                os.sched_setaffinity(main.pid, {core})
                return main, cores
        return None, ()

    def _check_scheduling(self) -> dict[int, tuple]:
        """Where and how soon each thread may run now. Raises ChildError where another process made this one slower: without
        root all of them are the same user's, and may. The loop's main thread has what it began with; the others, which
        libraries may pin, are as they were when they were stopped."""
        now, processes = {}, self._oldest_first()
        for process in processes:
            with contextlib.suppress(OSError):  # it ended meanwhile
                for thread in map(int, os.listdir(f"/proc/{process.pid}/task")):
                    now[thread] = machine.scheduling(thread)
        as_it_was = self._scheduled | {main.pid: self._began for main in processes[:1]}
        if self._watched and any(now[thread] != was for thread, was in as_it_was.items() if thread in now):
            raise _slowed("the starter")
        return now

    def _check_cores(self, used_s: float, awake_s: float, processes: int) -> None:
        """A loop may choose among the grade's cores; the system would give it others, too. Where it is back on its own when it is
        stopped, the processor time tells that it took more than these have. Without Landlock the kernel may be one that only
        imitates Linux, and promises no cores."""
        own = machine.written(self.cores)
        if others := frozenset().union(*(cores for cores, _, _ in self._scheduled.values())) - self.cores:
            what = f"let a thread run on cores {machine.written(others)}, which are not this grade's: it has {own}"
        elif confine.landlock_abi() and used_s > 1.02 * len(self.cores) * awake_s + _ROUNDED_S * (1 + processes):
            what = f"took {used_s:.1f} s of processor time within {awake_s:.1f} s, more than this grade's cores ({own}) have"
        else:
            return
        error = ChildError(
            f"The loop {what}. Choose cores among what os.sched_getaffinity(0) says at first.", kind="freeze"
        )
        error.trusted = self.trusted
        raise error

    def cpu_seconds(self) -> float:
        """Processor time that the child's processes have used so far, those included that ended."""
        total = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])  # its own and its children's, user and system
        with contextlib.suppress(psutil.Error):
            total += sum(psutil.Process(self.warden).cpu_times()[2:4])  # of those that had lost their parent
        return total

    def main_seconds(self) -> float:
        """Processor time that the loop's main process has used so far, in all its threads; 0 where it has ended."""
        with contextlib.suppress(psutil.Error, IndexError):
            return sum(self._oldest_first()[0].cpu_times()[:2])
        return 0.0

    def gpu_memory(self) -> int | None:
        """Bytes of GPU memory that the child's processes hold, CUDA's own included; None where NVML does not tell."""
        return machine.gpu_memory_of({process.pid for process in self._tree()})

    def largest_memory(self) -> int:
        """Bytes of main memory, as in `main_memory`, of the process that holds most."""
        pids = [process.pid for process in self._tree()]
        return max((self._anonymous([pid]) + self._in_files([pid]) for pid in pids), default=0)

    def main_memory(self) -> int:
        """Bytes of main memory that the child's processes hold: shared memory, what was swapped out and files of their own
        that they have mapped included; not libraries and data."""
        pids = [process.pid for process in self._oldest_first()]
        return self._anonymous(pids) + self._in_files(pids)

    def anonymous_memory(self) -> int:
        """Of `main_memory` what is no file: quick to see, whatever the loop has opened."""
        return self._anonymous([process.pid for process in self._oldest_first()])

    def _anonymous(self, pids: list[int]) -> int:
        """Of the processes that the main one started only what it does not share with it: their own, and what it has given up
        since and two of them share."""
        own = sum(_kilobytes(pid, "status", _ANONYMOUS) for pid in pids[:1])
        return own + sum(map(_private, pids[1:])) + _shared_without(pids)

    def file_memory(self) -> int:
        """The rest of `main_memory`."""
        return self._in_files([process.pid for process in self._oldest_first()])

    def _in_files(self, pids: list[int]) -> int:
        """Shared memory is among these; where they are not shown, it is what the system says."""
        shown = max((_kilobytes(pid, "status", ("RssShmem",)) for pid in pids[:1]), default=0)
        return max(self._own_files(pids), shown)

    def _shared_memory(self) -> Iterator[tuple[tuple[int, int], int]]:
        """What it has in /dev/shm, mapped or not; nothing where that is shared with others of the same user."""
        if not self._own_shared:
            return confine.held_in("/dev/shm", self.workspace.uid) if self.workspace.uid else iter(())
        return confine.held_in(f"/proc/{self.warden}/root/dev/shm")

    def _own_files(self, pids: Collection[int]) -> int:
        """Bytes of the files that these processes may have written, each once: those that are mapped; those in memory or without a
        name that are open; what waits in pipes; what lies in the child's folder and in shared memory, where one of these is
        its alone. Raises ChildError where a process no longer lets anybody but root see them; on some machines that is so from
        the beginning, and they count as none."""
        folder, mapped = os.fsencode(os.path.realpath(self.workspace.folder)), {}
        # nobody judges what a trusted loop keeps in files, and weights are given to it there
        whole = {} if self.trusted else dict(confine.held_in(str(self.workspace.folder)))
        whole |= dict(self._shared_memory())
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
                try:
                    for part, size in _mapped(pid, folder):
                        mapped[part] = max(size, mapped.get(part, 0))
                    whole |= _opened(pid)
                    self._shown = True
                except PermissionError:
                    if self._shown:
                        raise ChildError("A process of the loop does not let others see its memory.") from None
        files: dict[tuple[int, int], int] = {}
        for (_, file), size in mapped.items():
            files[file] = files.get(file, 0) + size
        return sum(max(files.get(file, 0), whole.get(file, 0)) for file in files | whole)

    def waited(self) -> dict[tuple[int, int], float]:
        """`waited_s` of each thread (process id, thread id)."""
        found = {}
        for process in self._tree():
            with contextlib.suppress(OSError):
                for entry in os.scandir(f"/proc/{process.pid}/task"):
                    found[process.pid, int(entry.name)] = waited_s(f"{process.pid}/task/{entry.name}")
        return found

    def _oldest_first(self) -> list[psutil.Process]:
        """The child's processes; the one that it began as, which is the loop's, first."""
        return sorted(self._tree(), key=psutil.Process.create_time)

    def _tree(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.warden).children(recursive=True)
        except psutil.Error:
            return []

    def output(self) -> str:
        """What the submission printed: its beginning and its end where it printed too much."""
        return self._output.text()

    def close(self) -> None:
        """Kill every process of the child and wait until the warden says that none is left."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b"close")  # closed without a word it means that this process died
        for fd in (self._lifeline, self._requests):
            with contextlib.suppress(OSError):
                os.close(fd)
        poller = select.poll()
        poller.register(self._status, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if not poller.poll(1000):
                continue
            if not os.read(self._status, 4096):
                break
        for fd in (self._replies, self._status):
            os.close(fd)
        self._output.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def _slowed(whom: str) -> ChildError:
    return _trusted(f"Another program changed on which cores {whom} runs, or how soon.")


def _trusted(message: str) -> ChildError:
    """Whoever it was: nothing is measured, and nobody blamed."""
    error = ChildError(message, kind="freeze")
    error.trusted = True
    return error


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.Error:
        return psutil.STATUS_DEAD


_ANONYMOUS = ("RssAnon", "VmSwap")
_PAGE = resource.getpagesize()
_PRESENT, _OF_A_FILE, _FRAME = 1 << 63, 1 << 61, (1 << 55) - 1  # https://docs.kernel.org/admin-guide/mm/pagemap.html


def _shared_without(pids: list[int]) -> int:
    """Bytes that two or more of the processes after the first share, and the first does not. Only root sees that: 0 for others."""
    if len(pids) < 3 or sum(_kilobytes(pid, "smaps_rollup", ("Shared_Dirty",)) > 0 for pid in pids[1:]) < 2:
        return 0
    seen, frames = np.unique(np.concatenate([_frames(pid) for pid in pids[1:]]), return_counts=True)
    return _PAGE * len(np.setdiff1d(seen[frames > 1], _frames(pids[0])))


def _frames(pid: int) -> np.ndarray:
    """The page frames that a process has in memory and that are no files; none where the kernel does not tell."""
    found = [np.zeros(0, np.uint64)]
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{_living(pid)}/maps") as maps,
        open(f"/proc/{_living(pid)}/pagemap", "rb") as pages,
    ):
        for line in maps:
            first, last = (int(end, 16) // _PAGE for end in line.split(None, 1)[0].split("-"))
            if "[v" in line or last - first > MAX_PAGES:  # the kernel's own pages; CUDA's terabytes of addresses
                continue
            pages.seek(8 * first)
            part = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
            found.append(part[(part & _PRESENT != 0) & (part & _OF_A_FILE == 0)] & _FRAME)
    every = np.unique(np.concatenate(found))
    return every[every > 0]


def _mapped(pid: int, folder: bytes) -> Iterator[tuple[tuple[bytes, tuple[int, int]], int]]:
    """The parts of files that a process has mapped and may have written: offset and file (device and inode), and bytes. Files
    are its own where it can write to them, where they have no name any more (shared memory is such a file), and in the
    folders in which it can make some.

    All of a part counts: of what a process wrote to a file nothing is lost when its pages are no longer the process's, and
    it has them again as soon as it looks. So does a page it never touched; whoever makes a mapping of memory wants it.
    https://man7.org/linux/man-pages/man5/proc_pid_maps.5.html"""
    with open(f"/proc/{_living(pid)}/maps", "rb") as lines:  # bytes: a name may hold what ends a line of text
        for line in lines:
            if b"/" not in line and b"s " not in line:  # neither a path nor shared: most, and this is asked often
                continue
            span, rights, *part = line.rstrip(b"\n").split(None, 5)  # offset, device, inode, and mostly a path
            path = part[-1]
            device = path.startswith(b"/dev/") and not path.startswith((b"/dev/shm/", b"/dev/zero"))  # a GPU's, say
            own = b"w" in rights and b"s" in rights  # a path of shared memory can be any name in brackets
            own |= path.endswith(b" (deleted)") or path.startswith((b"/dev/shm/", folder + b"/"))
            if own and not device:
                first, last = (int(end, 16) for end in span.split(b"-"))
                offset, (major, minor), inode = part[0], part[1].split(b":"), int(part[2])
                yield (offset, (os.makedev(int(major, 16), int(minor, 16)), inode)), last - first


def _opened(pid: int) -> dict[tuple[int, int], int]:
    """What a process has opened that holds bytes and that no folder shows: files in memory or without a name, and pipes, with
    what waits in them. Device and inode, and bytes. Threads can have descriptors of their own."""
    found, shared = {}, os.stat("/dev/shm").st_dev
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
            for entry in os.scandir(f"/proc/{pid}/task/{thread}/fd"):
                with contextlib.suppress(FileNotFoundError):  # it closed it
                    status = os.stat(entry.path)
                    file = status.st_dev, status.st_ino
                    if stat.S_ISFIFO(status.st_mode) and file not in found:
                        found[file] = _waiting_in(entry.path)
                    elif stat.S_ISREG(status.st_mode) and (not status.st_nlink or status.st_dev == shared):
                        found[file] = status.st_blocks * 512
    return found


def _waiting_in(pipe: str) -> int:
    """Bytes that were written to a pipe, given by a path in /proc, and not yet read."""
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    finally:
        os.close(fd)


def _private(pid: int) -> int:
    """Bytes that a process shares with no other."""
    return _kilobytes(pid, "smaps_rollup", ("Private_Dirty", "Swap"))


def _living(pid: int) -> str:
    """Where /proc tells of a process: at one of its threads, for that which it began with may have ended, and then tells nothing."""
    for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        path = f"{pid}/task/{thread}"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path("/proc", path, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return path
    return str(pid)


def _kilobytes(pid: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines of a file in /proc/PID, in bytes; 0 when the process has ended."""
    found = 0
    with contextlib.suppress(OSError), open(f"/proc/{_living(pid)}/{file}") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in names:
                found += int(value.split()[0]) << 10
    return found


class _Output:
    """Reads what a child prints, so that it never blocks, and keeps the beginning and the end."""

    def __init__(self, fd: int) -> None:
        self.head, self.tail, self.total = b"", b"", 0
        self._fd = fd
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 1 << 16):
                room = MAX_OUTPUT - len(self.head)
                self.head += data[:room]
                self.tail = (self.tail + data[room:])[-MAX_OUTPUT:]
                self.total += len(data)

    def close(self) -> None:
        self._thread.join(2)
        if not self._thread.is_alive():
            os.close(self._fd)

    def text(self) -> str:
        """All that was printed until now; a child that never stops printing is not waited for."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        deadline = time.monotonic() + 0.5
        while self._thread.is_alive() and poller.poll(0) and time.monotonic() < deadline:
            time.sleep(0.002)
        if self._thread.is_alive():
            time.sleep(0.002)  # what was just read is being put in its place
        dropped = self.total - len(self.head) - len(self.tail)
        middle = f"\n... {dropped / 1e6:.1f} MB of output left out ...\n".encode() if dropped > 0 else b""
        return (self.head + middle + self.tail).decode("utf-8", "replace")


def _losses(reply: Any, steps: int) -> list[float]:
    losses = reply.get("losses") if isinstance(reply, dict) else None
    good = (
        isinstance(losses, list)
        and len(losses) == steps
        and all(isinstance(x, float) and abs(x) <= MAX_LOSS for x in losses)
        and isinstance(reply.get("compiled"), int)
    )
    if not good:
        raise ChildError("The grading process sent losses of the wrong form.", kind="wire")
    return losses


def _number(text: str) -> float:
    """A number of a reply, which none that is honest has as many digits or is as large as these."""
    value = float(text) if set(text) & set(".eE") else int(text[:40])
    if abs(value) > 1e300 or len(text) > 40:
        raise ValueError(f"{text[:40]} is no number of a reply")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _whole(message: str) -> str:
    """A message, which may be a flood; an honest one is never cut."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} [cut: {len(message):,} characters]"


def _learner_error(error: Any, method: str, budget: int | None, trusted: bool) -> ChildError:
    get: Callable[[str], str] = lambda key: str(error.get(key) or "") if isinstance(error, dict) else ""  # noqa: E731
    kind, message = get("kind"), _whole(get("message"))
    line, within = (
        error.get(key) if isinstance(error, dict) and isinstance(error.get(key), int) else None
        for key in ("line", "within")
    )
    if kind in ("contract", "weights"):
        text = message
    elif kind == "out_of_memory" and trusted:
        text = (
            "CUDA ran out of memory in a loop that the submission is compared with. While both are there they share the GPU: keep "
            "fewer batches on the device, and free what you do not need. " + message
        )
    elif kind == "out_of_memory" and budget:
        text = f"The submission needs more GPU memory than the {budget / 1e9:.2f} GB that it may use. {message}"
    elif kind == "out_of_memory":
        text = (
            "CUDA ran out of memory in the submission. Two loops share the GPU while they are compared: keep fewer "
            "batches on the device, and free what you do not need. " + message
        )
    else:
        where = {
            "load": "while it was imported",
            "prepare": "in prepare(dataset, folder)",
            "start": "when its loop was called",
            "weights": "in job.weights()",
            "result": "when it was called",
            "calls": "when it was called",
        }.get(method, "in its loop")
        text = f"{'It' if trusted else 'The submission'} raised {kind or 'an error'} {where}: {message}"
    return ChildError(text, get("traceback")[:6000], kind, line, get("name")[:200], within)


def memory_limit() -> int:
    """Bytes of private data that one process of a submission may have."""
    return machine.allowed_memory() * 3 // 4


def shared_limit() -> int:
    """Bytes of shared memory that the processes of a submission may have together."""
    return machine.allowed_memory() // 4


def _needs_the_machines_shared_memory(files: Iterable[tuple[str, int]]) -> bool:
    """Whether some of what a child may touch lies there: temporary folders do, on some machines, and data."""
    return any(os.path.realpath(path).startswith("/dev/shm/") for path, _ in files)


@functools.lru_cache(maxsize=2)
def _has_own_shared_memory(own_user: bool) -> bool:
    """Whether a child, with a user of its own or not, can have a /dev/shm of its own."""
    program = f"from grader.sandbox import confine; confine.own_shared_memory(4096); {own_user} and confine.give_up_root(30_000)"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _private_environment(home: Path, device: str) -> dict[str, str]:
    cache, temporary = home / "cache", str(home / "tmp")
    return {
        "HOME": str(home),
        "USER": "learner",  # getpass has no entry for the child's user id, and Inductor asks
        "LOGNAME": "learner",
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": str(cache),
        "GRADER_CACHE": str(cache_dir()),  # the course's data; HOME is not the user's here
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        **({"TRITON_CACHE_MANAGER": "grader.sandbox.flat_cache:FlatCache"} if confine.landlock_abi() == 1 else {}),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "TORCH_EXTENSIONS_DIR": str(cache / "extensions"),
        "PYTHONPATH": os.pathsep.join([str(home / "lib"), *_python_path(), str(home)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # without a GPU all that the profiler's log would tell the learner is an error: that there is none
        **({"KINETO_LOG_LEVEL": "6"} if device == "cpu" else {}),
    }


# Of /etc only what programs look up: a child that was root's may read files whatever their mode, /etc/shadow too.
_SETTINGS = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "passwd", "group", "nsswitch.conf", "hosts", "host.conf",
    "localtime", "timezone", "locale.alias", "os-release", "mime.types", "alternatives", "fonts", "ssl/certs", "ssl/openssl.cnf",
    "nvidia", "OpenCL", "vulkan", "nccl.conf", "python3", "magic",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "dxg")  # the last is the GPU in WSL2


def _make_uvm() -> None:
    """CUDA's first start makes this device file, with a program that belongs to root: a confined process cannot."""
    if Path("/dev/nvidiactl").exists() and not Path("/dev/nvidia-uvm").exists():
        with contextlib.suppress(OSError):
            subprocess.run(["nvidia-modprobe", "-c0", "-u"], stderr=subprocess.DEVNULL, check=False)


@functools.lru_cache(maxsize=1)
def _no_own_loopback() -> str:
    """Why a process of this user cannot have a loopback of its own, '' where it can."""
    program = "from grader.sandbox import confine; confine.own_loopback()"
    tried = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    return (tried.stderr.strip().splitlines() or ["no reason given"])[-1] if tried.returncode else ""


def file_rights(home: Path, readable: Iterable[str | Path], device: str, ranks: int = 1) -> list[tuple[str, int]]:
    """What a child may touch: its own folder, shared memory and its GPU in full; Python, system libraries, this package
    and the lab's data read-only. Solutions, calibration, results and the gradebook are not among them. Several ranks may
    open all GPUs: NCCL asks NVML about theirs, and NVML does not start where one cannot be opened."""
    python = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
    python |= {*_python_path(), *_compilers()}
    code = [REPOSITORY / "grader", *sorted((REPOSITORY / "data").glob("*.py"))]
    system = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys"]
    # the driver's daemons; the second knows how the GPUs of a virtual machine are linked: NCCL asks it
    daemons = ["/run/nvidia-persistenced", "/run/nvidia-topologyd"]
    system += [f"/etc/{name}" for name in _SETTINGS]
    rights = [(str(home), confine.WRITE), ("/dev/shm", confine.WRITE)]
    # CUDA writes and truncates files in /proc/self and fails (error 304) where it cannot. Without root little outside
    # the child's own processes can be written there: of the same user's, how soon they are killed when memory runs out
    rights.append(("/proc", confine.WRITE if device == "cuda" else confine.READ))
    rights += [(str(path), confine.READ) for path in (*sorted(python), *code, *system, *readable)]
    rights += [(path, confine.READ | confine.CONNECT) for path in daemons]
    # not the repository itself: the names of a class's submissions are in it, and a right holds for all that is below
    rights += [(str(path), confine.LIST) for path in (REPOSITORY / "data", "/dev")]
    gpus = {str(path) for path in Path("/dev").glob("nvidia*")}
    if device != "cuda" or ranks == 1:
        gpus -= machine.other_gpu_files()
    writable = [f"/dev/{name}" for name in _DEVICES] + sorted(gpus)
    return rights + [(path, confine.WRITE) for path in writable]


@contextlib.contextmanager
def turn(child: Child, core: int | None = None) -> Iterator[None]:
    """Let a frozen child run for the time of the block. core: where its main thread wakes up."""
    child.thaw(core)
    try:
        yield
    finally:
        child.freeze()
