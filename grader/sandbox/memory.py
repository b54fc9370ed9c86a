"""What a child holds in main memory, in files and on its GPU, as far as that can be seen from outside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import stat
import struct
import termios
from collections.abc import Collection, Iterator

import numpy as np

from grader import machine
from grader.sandbox import confine
from grader.sandbox.child_error import ChildError
from grader.sandbox.processes import Processes, living
from grader.sandbox.workspace import Workspace

MAX_PAGES = 1 << 24  # of one mapping: 64 GiB
_ANONYMOUS = ("RssAnon", "VmSwap")
_PAGE = resource.getpagesize()
_PRESENT, _OF_A_FILE, _FRAME = 1 << 63, 1 << 61, (1 << 55) - 1  # https://docs.kernel.org/admin-guide/mm/pagemap.html


class Memory:
    """Of one child. own_shared: /dev/shm is its alone. trusted: nobody judges what it keeps in files."""

    def __init__(self, workspace: Workspace, processes: Processes, own_shared: bool, trusted: bool) -> None:
        self.workspace, self.processes, self.own_shared, self.trusted = workspace, processes, own_shared, trusted
        self._shown = False  # what its processes have mapped

    def main(self) -> int:
        """Bytes of main memory that the child's processes hold: shared memory, what was swapped out and files of their own
        that they have mapped included; not libraries and data."""
        pids = [process.pid for process in self.processes.oldest_first()]
        return self._anonymous(pids) + self._in_files(pids)

    def anonymous(self) -> int:
        """Of `main_memory` what is no file: quick to see, whatever the loop has opened."""
        return self._anonymous([process.pid for process in self.processes.oldest_first()])

    def in_files(self) -> int:
        """The rest of `main_memory`."""
        return self._in_files([process.pid for process in self.processes.oldest_first()])

    def largest(self) -> int:
        """Bytes of main memory, as in `main_memory`, of the process that holds most."""
        pids = [process.pid for process in self.processes.tree()]
        return max((self._anonymous([pid]) + self._in_files([pid]) for pid in pids), default=0)

    def on_gpu(self) -> int | None:
        """Bytes of GPU memory that the child's processes hold, CUDA's own included; None where NVML does not tell."""
        return machine.gpu_memory_of({process.pid for process in self.processes.tree()})

    def _anonymous(self, pids: list[int]) -> int:
        """Of the processes that the main one started only what it does not share with it: their own, and what it has given up
        since and two of them share."""
        own = sum(_kilobytes(pid, "status", _ANONYMOUS) for pid in pids[:1])
        return own + sum(map(_private, pids[1:])) + _shared_without(pids)

    def _in_files(self, pids: list[int]) -> int:
        """Shared memory is among these; where they are not shown, it is what the system says."""
        shown = max((_kilobytes(pid, "status", ("RssShmem",)) for pid in pids[:1]), default=0)
        return max(self._own_files(pids), shown)

    def _own_files(self, pids: Collection[int]) -> int:
        """Bytes of the files that these processes may have written, each once: those that are mapped; those in memory or without a
        name that are open; what waits in pipes; what lies in the child's folder and in shared memory, where one of these is
        its alone. Raises ChildError where a process no longer lets anybody but root see them; on some machines that is so from
        the beginning, and they count as none."""
        folder, mapped = os.fsencode(os.path.realpath(self.workspace.folder)), {}
        # nobody judges what a trusted loop keeps in files, and weights are given to it there
        whole = {} if self.trusted else dict(confine.held_in(str(self.workspace.folder)))
        whole |= dict(self.shared())
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
                try:
                    for part, size in _mapped(pid, folder):
                        mapped[part] = max(size, mapped.get(part, 0))
                    whole |= opened(pid)
                    self._shown = True
                except PermissionError:
                    if self._shown:
                        raise ChildError("A process of the loop does not let others see its memory.") from None
        files: dict[tuple[int, int], int] = {}
        for (_, file), size in mapped.items():
            files[file] = files.get(file, 0) + size
        return sum(max(files.get(file, 0), whole.get(file, 0)) for file in files | whole)

    def shared(self) -> Iterator[tuple[tuple[int, int], int]]:
        """What it has in /dev/shm, mapped or not; nothing where that is shared with others of the same user."""
        if not self.own_shared:
            return confine.held_in("/dev/shm", self.workspace.uid) if self.workspace.uid else iter(())
        return confine.held_in(f"/proc/{self.processes.warden}/root/dev/shm")


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
        open(f"/proc/{living(pid)}/maps") as maps,
        open(f"/proc/{living(pid)}/pagemap", "rb") as pages,
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
    with open(f"/proc/{living(pid)}/maps", "rb") as lines:  # bytes: a name may hold what ends a line of text
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


def opened(pid: int) -> dict[tuple[int, int], int]:
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


def _kilobytes(pid: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines of a file in /proc/PID, in bytes; 0 when the process has ended."""
    found = 0
    with contextlib.suppress(OSError), open(f"/proc/{living(pid)}/{file}") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in names:
                found += int(value.split()[0]) << 10
    return found
