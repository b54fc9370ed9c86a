"""The trusted side: starts confined children, talks to them, freezes, watches and kills them.

The parent never imports, unpickles or executes anything of the learner's; replies are JSON, checked for size and nonce."""

import contextlib
import hmac
import math
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Self

from grader import machine
from grader.devices import pretence
from grader.sandbox import confine, rights, whereabouts
from grader.sandbox.child_error import ChildError
from grader.sandbox.drive import Drive
from grader.sandbox.fork_server import fork_server
from grader.sandbox.freeze import Freezer
from grader.sandbox.memory import Disk, Memory
from grader.sandbox.processes import Processes
from grader.sandbox.setting import Setting
from grader.sandbox.wire import MAX_LOSS, Ending, Output, Told, Wire, losses_in
from grader.sandbox.workspace import Workspace

# Of this and a grade's seed a request is drawn, so the arms of one process's grade have the same requests. No child knows it:
# what it needs for a turn comes with the turn
_REQUESTS_KEY = secrets.token_bytes(32)
# of a setting, what the child itself must know
_PASSED_ON = ("workload", "options", "device", "threads", "ranks", "budget", "exact_memory", "trusted", "counted")
COMPILED = {"graphs", "graph_breaks", "recompiles"}  # what a child counts of torch.compile


CROWDED = 0.5  # of the time that a request may take: who was held up for longer could have been done


class Child:
    """A confined process that holds one submission. Use as a context manager: leaving it kills the whole process tree.

    drive: where its files lie, which serves it in its turns only. Raises RuntimeError where file access cannot be confined,
    unless that is allowed, and where several ranks cannot have a network of their own."""

    def __init__(self, workspace: Workspace, setting: Setting, drive: Drive | None = None):
        confined = confine.landlock_abi() > 0
        if not confined and not setting.allow_unconfined:
            raise RuntimeError("this kernel has no Landlock, so a submission's file access cannot be confined")
        if setting.ranks > 1 and (refused := rights.no_own_loopback()):
            raise RuntimeError(
                f"several ranks need a network of their own, and this machine gives them none: {refused}"
            )
        self.workspace, self.setting, self.drive = workspace, setting, drive
        self.steps, self.waited_s = 0, 0.0
        drive_began = machine.scheduling(drive.pid) if drive else None
        if setting.device == "cuda":
            rights.make_uvm()
        files = rights.file_rights(workspace.folder, setting.readable, setting.device, setting.ranks)
        own_shared = not rights.needs_the_machines_shared_memory(files) and rights.has_own_shared_memory(
            workspace.uid > 0
        )
        spec = self._spec(files if confined else None, own_shared)
        requests, requests_end = os.pipe()
        replies_end, replies = os.pipe()
        output, output_write = os.pipe()
        status_end, status = os.pipe()
        lifeline, self._lifeline = (end.detach() for end in socket.socketpair())
        theirs = [requests, replies, output_write, status, lifeline]
        try:
            server = fork_server()
            self.warden = server.fork(spec, theirs)
            began = machine.scheduling(self.warden)
        except BaseException:
            for fd in (requests_end, replies_end, output, status_end, self._lifeline):
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        os.set_blocking(replies_end, False)
        os.set_blocking(requests_end, False)
        self.processes = Processes(self.warden)
        self.ending = Ending(status_end, Output(output), setting.trusted, own_shared)
        self.memory = Memory(workspace, self.processes, own_shared, setting.trusted)
        self.disk = Disk(self.memory, setting.limits.disk_bytes)
        self.wire = Wire(setting, requests_end, replies_end, self.ending, self.disk)
        self.freezer = Freezer(
            setting, self.processes, self.ending, self.disk, drive, self._lifeline, server.cores, began, drive_began
        )
        self.freeze, self.thaw = self.freezer.freeze, self.freezer.thaw
        self.fetch, self.give = workspace.fetch, workspace.give

    def _spec(self, files: list[tuple[str, int]] | None, own_shared: bool) -> dict[str, Any]:
        """What the warden is told, see `server` and `confine.enter`, and the child, see `Harness`."""
        home, setting = self.workspace.folder, self.setting
        own_gpus = {}
        if setting.device == "cuda" and setting.ranks > 1:
            own_gpus = {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus()[: setting.ranks])}
        elif files is not None and machine.other_gpu_files():  # CUDA counts the GPUs that it can open, and that is one
            own_gpus = {"CUDA_VISIBLE_DEVICES": "0"}
        loopback = rights.ON_ONE_HOST if setting.ranks > 1 else {}
        return {
            "home": str(home),
            "uid": self.workspace.uid,
            "files": files,
            "kept": rights.kept_from_children(),
            "processes": confine.PROCESSES,
            "memory": rights.memory_limit(),
            "shared": rights.shared_limit() if own_shared else None,
            "environment": rights.environment()
            | rights.private_environment(home, setting.device)
            | loopback
            | setting.environment
            | own_gpus,
            **{name: getattr(setting, name) for name in _PASSED_ON},
            "pretended": asdict(seen) if setting.device == "cuda" and (seen := pretence()) else None,
        }

    # ---- requests

    def load(self, entry: str = "") -> None:
        self._ask(self.setting.limits.load, "load", entry=entry)

    def number(self, entry: str, seed: int, limit_s: float) -> float:
        """The positive number that the submission's function `entry` returns for the job of `seed`."""
        self._open_drive()
        value = self._ask(limit_s, "number", entry=entry, seed=seed)
        if not isinstance(value, float) or not 0 < value <= MAX_LOSS:
            raise ChildError("The grading process sent a number of the wrong form.", kind="wire")
        return value

    def prepare(self, limit_s: float) -> float:
        """Let the submission prepare its data; returns the seconds it took on this process's clock."""
        self._open_drive()
        began = time.perf_counter()
        self.ask("make_dataset")  # counts: what prepare() should do can be done there, too
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
        """Build the job and call train(job). mark: the name, in a trace, of where each step begins, its number behind it. nudge: 1,
        2, ... for a trusted loop that trains from weights close to the job's, others for each number."""
        self._open_drive()
        self._seed = seed
        keys = self._keys(0, 1) if self.setting.serves else {}  # it may be looked at before it is asked for
        limit_s = self.setting.limits.load
        self._ask(limit_s, "start", None, seed=seed, keep_initial=keep_initial, mark=mark, nudge=nudge, **keys)

    def _keys(self, first: int, end: int) -> dict[str, list[int]]:
        """What these requests are drawn from."""
        drawn = (hmac.digest(_REQUESTS_KEY, f"{self._seed} {n}".encode(), "sha256") for n in range(first, end))
        return {"keys": [int.from_bytes(digest[:8]) for digest in drawn]}

    def _open_drive(self) -> None:
        if self.drive:
            self.drive.open(self.warden, next((process.pid for process in self.processes.oldest_first()), -1))

    def run(self, steps: int, expected_s: float | None = None, first: bool = False) -> tuple[float, list[float], int]:
        """Run `steps` steps. Returns the seconds from request to reply on this process's clock, the losses, and how
        many graphs torch.compile has made so far. first: in one of the first steps each new length may be compiled for."""
        limit_s = self.setting.limits.first_step if first or not self.steps else self.setting.limits.step
        if expected_s is not None:
            limit_s = max(limit_s, 20 * expected_s)
        # a GPU works on an answer while the next request is sent
        ahead = 1 if self.setting.serves and self.setting.device == "cuda" else 0
        seconds, losses, compiled = self._pull(steps, ahead, limit_s, "run", steps=steps)
        if not isinstance(compiled, int):
            raise ChildError("The grading process sent a reply of the wrong form.", kind="wire")
        return seconds, losses, compiled

    def _pull(
        self, count: int, ahead: int, limit_s: float, method: str, **arguments: Any
    ) -> tuple[float, list[float], Any]:
        """Ask for `count` steps: the seconds until the reply, the losses, and what it says of torch.compile. ahead: how many requests
        a child that serves has beyond the next one."""
        answers, keys = list[Any](), dict[str, Any]()

        # who finds more of them than one could answer them at once
        def told(answer: Any) -> dict[str, list[int]]:
            if len(answers) == count:
                raise ChildError("The grading process sent more answers than there were requests.", kind="wire")
            answers.append(answer)
            last = self.steps + len(answers) + ahead
            return self._keys(last, min(last, self.steps + count) + 1)

        if ahead:
            keys = self._keys(self.steps + 1, self.steps + 1 + ahead)
        began = time.perf_counter()
        reply = self._ask(limit_s, method, told if self.setting.serves else None, **arguments, **keys)
        seconds = time.perf_counter() - began
        losses = losses_in(reply, count)
        if self.setting.serves and answers != losses:
            raise ChildError("The grading process changed answers that it had given.", kind="wire")
        self.steps += count
        return seconds, losses, reply.get("compiled")

    def weights(self, file: str, each: bool = False) -> None:
        self._ask(self.setting.limits.load, "weights", file=file, each=each)

    def start_profiler(self, with_stack: bool = False) -> None:
        """Start the profiler, which records nothing yet: see `Arm.profile`."""
        self._ask(self.setting.limits.first_step, "start_profiler", with_stack=with_stack)

    def profile(self, steps: int, file: str) -> tuple[list[float], dict[str, int]]:
        """Record `steps` steps into `file`; two more run. Returns all their losses, and torch.compile's "graphs", "graph_breaks" and
        "recompiles" so far."""
        _, losses, counts = self._pull(steps + 2, 0, self.setting.limits.first_step, "profile", steps=steps, file=file)
        if not isinstance(counts, dict) or counts.keys() != COMPILED or {*map(type, counts.values())} != {int}:
            raise ChildError("The grading process sent a reply of the wrong form.", kind="wire")
        return losses, counts

    def ask(self, method: str, **arguments: Any) -> Any:
        """Any other request, with the limit for loading."""
        return self._ask(self.setting.limits.load, method, **arguments)

    def _ask(self, limit_s: float, method: str, told: Told | None = None, **arguments: Any) -> Any:
        left_s = math.inf if self.setting.trusted else max(0.0, self.setting.limits.whole - self.waited_s)
        began = time.monotonic()
        try:
            return self.wire.ask(min(limit_s, left_s), method, arguments, told)
        except ChildError as error:
            if error.kind == "timeout" and left_s < limit_s:
                minutes = f"{self.setting.limits.whole / 60:.3g} minutes"
                error.message = f"The submission did not finish its part of the grade, which may take {minutes} in all."
            if error.kind == "timeout" and (held_up := self.processes.held_up(time.monotonic() - began)) > CROWDED:
                error.kind = "crowded"
                error.message += f" But other programs kept it from a processor for {held_up:.0%} of that time."
            if error.kind in ("timeout", "crowded") and not self.setting.trusted:
                error.line = whereabouts.line(self.workspace, self.processes, self.setting.ranks)
            if error.kind == "died" and not self.setting.trusted:
                error.line = whereabouts.told(self.workspace, self.setting.ranks)
            error.trusted, error.asked = self.setting.trusted, method
            if self.drive and self.drive.disturbed():  # what the loop says of it is not its fault
                self.freezer.check_drive(False)
            if re.search(r"Bus error|SIGBUS|No space left", error.message) and (
                taken := self.disk.room_that_others_took()
            ):
                error.kind, error.message = "room", taken
            needs_shared = re.search(r"SemLock|shared memory|/dev/shm", error.message + error.details)
            if needs_shared and not rights.shared_memory():
                error.kind, error.message = "small_shared", rights.NO_SHARED_MEMORY
            raise
        finally:
            self.waited_s += time.monotonic() - began

    def output(self) -> str:
        """What the submission printed: the beginning and the end where it was too much."""
        return self.ending.output.text()

    def close(self) -> None:
        """Kill every process of the child and wait until the warden says that none is left."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b"close")  # closed without a word it means that this process died
        for fd in (self._lifeline, self.wire.requests):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.ending.await_all()
        for fd in (self.wire.replies, self.ending.status):
            os.close(fd)
        self.ending.output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def turn(child: Child, core: int | None = None) -> Iterator[None]:
    """Let a frozen child run for the time of the block. core: where its main thread wakes up."""
    child.thaw(core)
    try:
        yield
    finally:
        child.freeze()
