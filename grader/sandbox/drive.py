"""A drive whose every read waits, like one across a network: for labs about loading on machines that decode quickly.

The wait must not be the learner's to leave out, so a process of the drive's own serves the files (see `drive_server`), to one child
and in that one's turns only. Reads at the same time wait at the same time."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from grader.sandbox import drive_server

ANSWERS_S = 10.0  # how long it may take to say what it has served


class Counts(NamedTuple):
    """How many files were read, how many by the main process, how many different ones; how many checkpoints have their names."""

    reads: int
    reads_in_main: int
    files: int
    saved: int


class Written(NamedTuple):
    """Steps of renamed checkpoints in order, of those written under their final name; kept files by step; bytes of the smallest."""

    steps: tuple[int, ...]
    direct: tuple[int, ...]
    files: dict[int, Path]
    least: int


class Drive:
    """A process that serves the files below `folder` on a Unix socket at `path`, each after `read_s` seconds, until the context ends.

    write_bps: bytes a second that can be written to it; 0 for none, and then it takes none. folder: "" for no files. opened: this
    process and those that it starts are served; else nobody is, until `open`. user: the only one that may connect, who gets the
    socket; 0: this process's own. waits: by name, the seconds that one request after another of that name takes, over and over."""

    # a request is a path that begins with `folder` and a newline, the answer the length in four bytes and the content; the
    # connection ends where there is no such file

    def __init__(
        self,
        path: str | Path,
        folder: str | Path,
        read_s: float,
        opened: bool = True,
        user: int = 0,
        write_bps: float = 0.0,
        waits: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ):
        self._channel, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(ANSWERS_S)
        with channel, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            os.chmod(path, 0o600)
            if user:
                os.chown(path, user, -1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # its connections have that from it
            listener.setblocking(False)
            listener.listen(128)
            fds = [channel.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", drive_server.__file__, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._stopped, self._counts = False, Counts(0, 0, 0, 0)
        self._say(folder=str(folder), read_s=read_s, user=user, write_bps=write_bps, waits=dict(waits))
        if opened:
            self.open(os.getpid(), os.getpid())

    def open(self, ancestor: int, main: int) -> None:
        """From now on serve the process `ancestor` and its descendants; what the one called `main` reads is counted apart."""
        self._ask(whose=(ancestor, main))

    def forget(self) -> None:
        """Count reads from 0 again."""
        self._ask(forget=True)

    def written(self, folder: Path) -> Written:
        """The files that were written until now, put into `folder`."""
        self._ask(dump=str(folder))
        try:
            index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        except FileNotFoundError:  # it has been stopped or ended, which `stop` tells
            return Written((), (), {}, 0)
        files = {n: folder / str(n) for n in index["kept"]}
        return Written(tuple(index["steps"]), tuple(index["direct"]), files, index["least"])

    @property
    def counts(self) -> Counts:
        """What was read so far; where it is stopped, or has been ended, until then."""
        if not self._stopped:
            self._ask()
        return self._counts

    def stop(self) -> bool:
        """Stop it, and see that it has. Returns whether it ran undisturbed until now, see `disturbed`."""
        if self._stopped:
            return True
        self._ask()
        disturbed = self.disturbed()
        self._send(signal.SIGSTOP, os.WSTOPPED)
        self._stopped = True
        return not disturbed

    def go_on(self) -> bool:
        """Let it serve again. Returns whether it stood still until now."""
        if not self._stopped:
            return True
        disturbed = self.disturbed()
        self._send(signal.SIGCONT, os.WCONTINUED)
        self._stopped = False
        return not disturbed

    def disturbed(self) -> bool:
        """Whether another process has stopped or ended it, or let it go on: the kernel keeps that for its parent, see waitid(2)."""
        changes = os.WSTOPPED | os.WCONTINUED | os.WEXITED
        return os.waitid(os.P_PID, self.pid, changes | os.WNOHANG | os.WNOWAIT) is not None

    def _send(self, sig: int, change: int) -> None:
        """Send it a signal, wait until that has changed its state, or it has ended, and take note of that."""
        os.kill(self.pid, sig)  # an ended one keeps its id until `__exit__`
        os.waitid(os.P_PID, self.pid, change | os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ChildProcessError):  # it has ended
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)

    def _say(self, **what: object) -> None:
        self._channel.send(json.dumps(what).encode())

    def _ask(self, **what: object) -> None:
        """Says something; the answer is what was read so far. Without one it has been stopped or ended, which `stop` tells."""
        try:
            self._say(**what)
            counts = json.loads(self._channel.recv(drive_server.MAX_MESSAGE))
        except (OSError, ValueError):
            return
        if (
            isinstance(counts, list)
            and len(counts) == len(Counts._fields)
            and all(type(n) is int and n >= 0 for n in counts)
        ):
            self._counts = Counts(*counts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._channel.close()
