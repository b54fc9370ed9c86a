"""The client of the fork server (see `server`), which starts children."""

import atexit
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import psutil

from grader import machine
from grader.sandbox import confine, rights
from grader.sandbox.child_error import slowed


class ForkServer:
    """Forks children on request, on this thread's cores; ready after some seconds. Raises ChildError where the cores were changed."""

    def __init__(self) -> None:
        for name in ("torch", "torchvision"):
            if importlib.util.find_spec(name) is None:  # said here, since a server says it in a traceback
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        self.cores = machine.held_cores()
        self._scheduled = machine.scheduling(0)  # which it begins with
        if self._scheduled[0] != self.cores:
            raise slowed("the grader")
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.sandbox.server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=rights.environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.owner = os.getpid()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def fork(self, spec: dict[str, Any], fds: list[int]) -> int:
        """Start a child; returns its warden's process id. RuntimeError when the server is dead, ChildError where it was made slower."""
        with self._lock:
            self.wait_ready()
            if self.alive() and machine.scheduling(self._process.pid) != self._scheduled:
                self.close()  # the next grade has another one
                raise slowed("the grader")
            answer = b""
            with contextlib.suppress(ConnectionError):  # it is dead
                socket.send_fds(self._socket, [json.dumps(spec).encode()], fds)
                answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the grader's fork server died. Its own message stands above")
        return int(answer)

    def wait_ready(self) -> None:
        if not self._ready:
            if self._socket.recv(64) != b"ready":
                raise RuntimeError("the grader's fork server did not start. Its own message stands above")
            self._ready = True

    def kill(self) -> None:
        """End it, and whatever it has started."""
        with contextlib.suppress(psutil.Error):
            top = psutil.Process(self._process.pid)
            for process in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.close()

    def close(self) -> None:
        self._socket.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            self._process.kill()
            self._process.wait()  # until then it seems alive, and would be asked for the next child


_server: ForkServer | None = None


def fork_server() -> ForkServer:
    """This process's fork server, started at the first call, and anew on other cores."""
    global _server  # libraries start as many threads as there were cores when they were imported
    confine.require_linux()
    if _server and _server.alive() and _server.cores != machine.held_cores():
        _server.close()
    if _server is None or not _server.alive():
        _server = ForkServer()
        atexit.register(_server.close)
    return _server
