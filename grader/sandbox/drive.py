"""A drive whose every read waits, like one across a network: for labs about loading on machines that decode quickly.

The wait must not be the learner's to leave out, so it is not in the process that is graded. The files are served from
here, and a confined child can read them in no other way. Reads at the same time wait at the same time. Nothing is served
before the child's time counts, nor while it is frozen: another's turn must not be slowed by what it has asked for."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "drive"  # of the socket in a child's home
MAX_CONNECTIONS = 256  # one a process or thread that reads; more wait until one of these closes
MAX_PATH = 4096  # bytes of a request
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


class Drive:
    """Serves the files below `folder` on a Unix socket at `path`, each after `read_s` seconds. A request is a path and a
    newline, the answer the length in four bytes and the content; the connection ends where there is no such file, and while
    the drive is not `opened`. serving: cleared while reads must wait. reads: how many files were read so far. reads_in_main: those
    of them that the process `main` asked for, in any of its threads. files: which ones were read."""

    def __init__(self, path: Path, folder: str | Path, read_s: float, opened: bool = True):
        root, room = Path(folder).resolve(), threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.reads, self.opened, self.closed = 0, opened, False
        self.reads_in_main, self.main = 0, -1
        self.files: set[Path] = set()
        self.serving = threading.Event()
        self.serving.set()
        counting = threading.Lock()
        drive = self

        class Reader(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                # whatever the other side does, it loses its connection only
                with contextlib.suppress(OSError, ValueError):
                    for line, sender in _lines(self.request):
                        drive.serving.wait()
                        path = Path(os.fsdecode(line))
                        if not drive.opened or ".." in path.parts:
                            return
                        file = path.resolve()
                        if not file.is_relative_to(root):
                            return
                        with counting:
                            drive.reads += 1
                            drive.reads_in_main += sender == drive.main
                            drive.files.add(file)
                        time.sleep(read_s)
                        data = file.read_bytes()
                        self.request.sendall(struct.pack("!I", len(data)) + data)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads, block_on_close, request_queue_size = True, False, 128

            def process_request(self, request: Any, address: Any) -> None:
                while not room.acquire(timeout=0.1):
                    if drive.closed:
                        return
                super().process_request(request, address)

            def process_request_thread(self, request: Any, address: Any) -> None:
                try:
                    super().process_request_thread(request, address)
                finally:
                    room.release()

        self._server = Server(str(path), Reader)
        self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # its connections have that from it
        path.chmod(0o666)  # the child is another user
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> Drive:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed, self.opened = True, False
        self.serving.set()
        self._server.shutdown()
        self._server.server_close()


def _lines(connection: socket.socket) -> Iterator[tuple[bytes, int]]:
    """Each line, without its end, and which process sent that. The kernel says so of each message: who made the connection says
    nothing, for connections can be handed on and inherited. See SCM_CREDENTIALS in unix(7)."""
    rest = b""
    while len(rest) < MAX_PATH:
        data, said, _, _ = connection.recvmsg(MAX_PATH, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not data:
            return
        sender = next((_CREDENTIALS.unpack(value)[0] for _, kind, value in said if kind == socket.SCM_CREDENTIALS), 0)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line, sender


_mine = threading.local()  # one connection a thread; a forked process makes its own


def read(drive: str, file: str | Path) -> bytes:
    """The content of a file on the drive whose socket is `drive`. Raises OSError where there is none."""
    if getattr(_mine, "owner", None) != (os.getpid(), drive):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(drive)
        _mine.owner, _mine.stream = (os.getpid(), drive), connection.makefile("rwb")
    _mine.stream.write(os.fsencode(file) + b"\n")
    _mine.stream.flush()
    head = _mine.stream.read(4)
    if len(head) < 4:
        raise FileNotFoundError(
            f"the drive has no file {file}, or it was asked too early: it serves prepare() and train(job), not an import"
        )
    return _mine.stream.read(struct.unpack("!I", head)[0])
