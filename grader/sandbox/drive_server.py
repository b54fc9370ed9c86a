"""The process that serves a drive's files (see `drive`): one loop over all connections, each file after its wait.

What is written stays in its memory, through one link of so many bytes a second (see `_Store`).

It answers only processes that descend from the one that the grader names. A request is looked up in a list made at the start, never
on the disk. Each of MAX_CONNECTIONS costs one request and one answer in memory; what more they send waits in their own sockets.

Run as `python -I -S drive_server.py CHANNEL LISTENER`, two sockets that are open in it: of the grader's private channel, and the one to
serve on. It imports a few modules of the standard library, so that it starts in some 0.1 s."""

import contextlib
import ctypes
import heapq
import itertools
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

MAX_CONNECTIONS = 256  # one a process or thread that reads; more wait until one of these closes
MAX_PATH = 4096  # bytes of a request
MAX_MESSAGE = 1 << 16  # bytes on the channel
MAX_WRITTEN = 1 << 28  # bytes of a file
MAX_UNNAMED = 4  # files that have no final name yet
KEPT = 2  # files with final names, of the first and of the last
_PIECE = 1 << 20  # bytes of what is written that are received at once
_FINAL = re.compile(rb"step-([1-9][0-9]{0,8})")
ACCEPTED_AT_ONCE = 8  # then those that are connected already have their turn
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group
_PR_SET_PDEATHSIG = 1
_ONCE = select.EPOLLONESHOT


class _Connection:
    """A peer: its socket and process, what it has sent of a next request, what is left to send of an answer; the file it writes."""

    def __init__(self, connected: socket.socket, process: int):
        self.socket, self.process, self.rest, self.answer = connected, process, b"", memoryview(b"")
        self.name, self.to_come, self.size = b"", 0, 0


class _Store:
    """Files that are written, in memory, one after another through the link. A checkpoint, `step-N`, gets that name by a rename."""

    def __init__(self, write_bps: float):
        self.write_bps, self.free_at = write_bps, 0.0
        self.unnamed: dict[bytes, bytearray] = {}
        self.promised: dict[bytes, int] = {}  # bytes of these, those included that are to come
        self.passed_at: dict[bytes, float] = {}  # when the link has passed what came of these
        self.named: dict[int, bytearray] = {}
        self.steps: list[int] = []  # of all that were renamed, in order
        self.least = 0  # bytes of the smallest of them
        self.direct: set[int] = set()  # of those that were written under their final name

    def begin(self, name: bytes, size: int) -> None:
        promised = self.promised.get(name, 0) + size
        if promised > MAX_WRITTEN or (name not in self.unnamed and len(self.unnamed) == MAX_UNNAMED):
            raise ValueError("too much")
        self.unnamed.setdefault(name, bytearray())
        self.promised[name] = promised
        if final := _FINAL.fullmatch(name):
            self.direct.add(int(final[1]))

    def done_at(self, name: bytes, size: int) -> float:
        self.free_at = self.passed_at[name] = max(self.free_at, time.monotonic()) + size / self.write_bps
        return self.free_at

    def rename(self, old: bytes, new: bytes) -> None:
        final = _FINAL.fullmatch(new)
        if old not in self.unnamed or not final or old == new:
            raise ValueError("there is no such file, or no such name")
        # another connection may ask while this one waits: what is not written yet has no final name
        if len(self.unnamed[old]) < self.promised[old] or time.monotonic() < self.passed_at[old]:
            raise ValueError("not all of it is written")
        step = int(final[1])
        self.named[step] = self.unnamed.pop(old)
        del self.promised[old], self.passed_at[old]
        self.least = min(self.least or MAX_WRITTEN, len(self.named[step]))
        self.steps.append(step)
        for between in list(self.named)[KEPT:-KEPT]:
            del self.named[between]

    def dump(self, folder: str) -> None:
        for step, content in self.named.items():
            with open(os.path.join(folder, str(step)), "wb") as file:
                file.write(content)
        with open(os.path.join(folder, "index.json"), "w", encoding="utf-8") as file:
            named = {"steps": self.steps, "kept": list(self.named), "least": self.least}
            json.dump(named | {"direct": sorted(self.direct)}, file)


class _Server:
    def __init__(
        self,
        channel: socket.socket,
        listener: socket.socket,
        folder: str,
        read_s: float,
        user: int,
        write_bps: float,
        waits: dict[str, list[float]],
    ):
        self.channel, self.listener, self.read_s, self.user = channel, listener, read_s, user
        self.waits = {name.encode(): itertools.cycle(seconds) for name, seconds in waits.items()}
        self.files = dict(_listed(folder)) if folder else {}
        self.store = _Store(write_bps) if write_bps else None
        self.ancestor = self.main = 0  # nobody is served before the grader says whom
        self.reads, self.reads_in_main, self.found = 0, 0, set[bytes]()
        self.connections: dict[int, _Connection] = {}
        self.waiting: list[tuple[float, int, _Connection, str]] = []  # a heap: when, number, whom, which file
        self.asked = 0
        self.epoll = select.epoll()
        self.epoll.register(channel, select.EPOLLIN)
        self.epoll.register(listener, select.EPOLLIN)

    def serve(self) -> None:
        """Until the grader closes the channel."""
        while True:
            # not epoll's own timeout, which is in whole milliseconds
            left_s = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            select.select([self.epoll], [], [], left_s)
            for fd, _ in self.epoll.poll(0):
                if fd == self.channel.fileno():
                    if not self.answer_the_grader():
                        return
                elif fd == self.listener.fileno():
                    self.accept()
                else:
                    self.with_peer(self.connections[fd], self.receive if not self.connections[fd].answer else self.send)
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, _, connection, file = heapq.heappop(self.waiting)
                self.with_peer(connection, self.begin_answer, file)

    def answer_the_grader(self) -> bool:
        message = self.channel.recv(MAX_MESSAGE)
        if not message:
            return False
        asked = json.loads(message)
        self.ancestor, self.main = asked.get("whose", (self.ancestor, self.main))
        if asked.get("forget"):
            self.reads = self.reads_in_main = 0
        if self.store and "dump" in asked:
            self.store.dump(asked["dump"])
        saved = len(self.store.steps) if self.store else 0
        self.channel.send(json.dumps([self.reads, self.reads_in_main, len(self.found), saved]).encode())
        return True

    def accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, _ = self.listener.accept()
            except OSError:  # no more, or it has gone again
                return
            process, user, _ = _CREDENTIALS.unpack(
                connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if not self.ancestor or self.user not in (0, user) or not _descends(process, self.ancestor):
                connected.close()
                continue
            connected.setblocking(False)
            self.connections[connected.fileno()] = _Connection(connected, process)
            self.epoll.register(connected, select.EPOLLIN | _ONCE)
            if len(self.connections) == MAX_CONNECTIONS:
                self.epoll.unregister(self.listener)
                return

    def with_peer(self, connection: _Connection, do, *arguments) -> None:
        """Whatever the other side does, it loses its connection only."""
        try:
            do(connection, *arguments)
        except (OSError, ValueError, KeyError):
            del self.connections[connection.socket.fileno()]
            connection.socket.close()
            if len(self.connections) == MAX_CONNECTIONS - 1:
                self.epoll.register(self.listener, select.EPOLLIN)

    def receive(self, connection: _Connection) -> None:
        most = min(_PIECE, connection.to_come) or MAX_PATH
        data, said, _, _ = connection.socket.recvmsg(most, socket.CMSG_SPACE(_CREDENTIALS.size))
        # the kernel says of each message who sent it: connections can be handed on and inherited. See SCM_CREDENTIALS in unix(7)
        senders = [_CREDENTIALS.unpack(value)[0] for _, kind, value in said if kind == socket.SCM_CREDENTIALS]
        if not data or senders != [connection.process]:
            raise ValueError("it has ended, or another process sends")
        if connection.to_come:
            self.write(connection, data)
            return
        connection.rest += data
        self.take_next(connection)

    def write(self, connection: _Connection, data: bytes) -> None:
        assert self.store
        self.store.unnamed[connection.name] += data  # KeyError, a lost connection: it was renamed meanwhile
        connection.to_come -= len(data)
        if connection.to_come:
            self.epoll.modify(connection.socket, select.EPOLLIN | _ONCE)
        else:
            self.wait(self.store.done_at(connection.name, connection.size), connection, "")

    def wait(self, until: float, connection: _Connection, file: str) -> None:
        self.asked += 1
        heapq.heappush(self.waiting, (until, self.asked, connection, file))

    def take_writing(self, connection: _Connection, line: bytes, rest: bytes) -> None:
        """`+SIZE NAME`, with so many bytes behind it, or `>OLD NEW`."""
        assert self.store
        first, _, second = line[1:].partition(b" ")
        if line[:1] == b">":
            self.store.rename(first, second)
            connection.rest = rest
            self.wait(time.monotonic(), connection, "")
            return
        connection.name, connection.size = second, int(first)
        if connection.size < 1 or len(rest) > connection.size:
            raise ValueError("what is written has another size")
        self.store.begin(second, connection.size)
        connection.rest, connection.to_come = b"", connection.size
        if rest:
            self.write(connection, rest)
        else:
            self.epoll.modify(connection.socket, select.EPOLLIN | _ONCE)

    def take_next(self, connection: _Connection) -> None:
        line, end, rest = connection.rest.partition(b"\n")
        if not end and len(line) < MAX_PATH:
            self.epoll.modify(connection.socket, select.EPOLLIN | _ONCE)
            return
        if self.store and line[:1] in (b"+", b">"):
            self.take_writing(connection, line, rest)
            return
        if line in self.waits:
            connection.rest = rest
            self.wait(time.monotonic() + next(self.waits[line]), connection, "")
            return
        file = self.files.get(line)
        if file is None:
            raise ValueError("there is no such file")
        connection.rest = rest
        self.reads += 1
        self.reads_in_main += connection.process == self.main
        self.found.add(line)
        self.wait(time.monotonic() + self.read_s, connection, file)

    def begin_answer(self, connection: _Connection, file: str) -> None:
        """file: "" where nothing is to be said but that it was written, or that the wait is over."""
        data = b""
        if file:
            with open(file, "rb") as opened:
                data = opened.read()
        connection.answer = memoryview(struct.pack("!I", len(data)) + data)
        self.send(connection)

    def send(self, connection: _Connection) -> None:
        with contextlib.suppress(BlockingIOError):
            connection.answer = connection.answer[connection.socket.send(connection.answer) :]
        if connection.answer:
            self.epoll.modify(connection.socket, select.EPOLLOUT | _ONCE)
        else:
            self.take_next(connection)


def _listed(folder: str) -> Iterator[tuple[bytes, str]]:
    """What a request for each file below `folder` says, and that file. Links are none."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _listed(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield os.fsencode(entry.path), entry.path


def _descends(process: int, ancestor: int) -> bool:
    """Whether a process is that one, or was started by it or its descendants: it adopts those of them that lose their parent."""
    with contextlib.suppress(OSError):  # it ended
        while process > 1 and process != ancestor:
            with open(f"/proc/{process}/stat", "rb") as stat:
                process = int(stat.read().rpartition(b")")[2].split()[1])
        return process == ancestor
    return False


if __name__ == "__main__":
    # the kernel ends it with the grader, though it be stopped then: with the thread that started it, see prctl(2). Where that has
    # gone by now, the channel is closed
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the grader's business
    from_grader, for_peers = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:])
    with contextlib.suppress(ConnectionError):  # the grader has gone
        if drive := from_grader.recv(MAX_MESSAGE):
            _Server(from_grader, for_peers, **json.loads(drive)).serve()
