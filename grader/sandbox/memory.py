"""What a child holds: in main memory, in files, on its GPU and on the disk, as far as that can be seen from outside."""

import contextlib
import fcntl
import os
import resource
import stat
import struct
import termios
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from grader import machine
from grader.sandbox import folders, rights
from grader.sandbox.child_error import ChildError
from grader.sandbox.processes import Processes, can_compare_files, living, same_files
from grader.sandbox.workspace import Workspace

NO_ROOM = 16 << 20  # bytes left at which a disk, or shared memory, is as good as full
# files of one child, each time that it has opened one: it takes a quarter of a second to look at them
MAX_OPENED = 50_000
File = tuple[int, int]  # device and inode
_ANONYMOUS = ("RssAnon", "VmSwap")
_PAGE = resource.getpagesize()
_PRESENT, _OF_A_FILE, _FRAME = 1 << 63, 1 << 61, (1 << 55) - 1  # https://docs.kernel.org/admin-guide/mm/pagemap.html


class Memory:
    """Of one child. own_shared: /dev/shm is its alone."""

    def __init__(self, workspace: Workspace, processes: Processes, own_shared: bool, trusted: bool) -> None:
        self.workspace, self.processes, self.own_shared, self.trusted = workspace, processes, own_shared, trusted
        self._shown = False  # what its processes have mapped

    def main(self) -> int:
        """Bytes of main memory: swapped, shared and files of its own that it has mapped included; not libraries and data."""
        return self.anonymous() + self.in_files() + self.shared_by_helpers()

    def anonymous(self) -> int:
        """Of `main` what is no file, and no other process's: quick to see, whatever the loop has opened."""
        return self._anonymous([process.pid for process in self.processes.oldest_first()])

    def in_files(self) -> int:
        """Of `main` what is in files, shared memory and pipes."""
        return self._in_files([process.pid for process in self.processes.oldest_first()])

    def shared_by_helpers(self) -> int:
        """The rest of `main`: what two helpers share, and the main process has given up. It takes some 0.1 s a process to see."""
        return _shared_without([process.pid for process in self.processes.oldest_first()])

    def largest(self) -> int:
        """`main` of the process that holds most."""
        pids = [process.pid for process in self.processes.tree()]
        return max((self._anonymous([pid]) + self._in_files([pid]) for pid in pids), default=0)

    def on_gpu(self) -> int | None:
        """Bytes of GPU memory, CUDA's own included; None where NVML does not tell."""
        return machine.gpu_memory_of({process.pid for process in self.processes.tree()})

    def _anonymous(self, pids: list[int]) -> int:
        """Of processes that the main one started only what is their own."""
        return sum(_kilobytes(pid, "status", _ANONYMOUS) for pid in pids[:1]) + sum(map(_private, pids[1:]))

    def _in_files(self, pids: list[int]) -> int:
        # shared memory is among these; where they are not shown, it is what the system says
        shown = max((_kilobytes(pid, "status", ("RssShmem",)) for pid in pids[:1]), default=0)
        return max(self._own_files(pids), shown)

    def _own_files(self, pids: Collection[int]) -> int:
        """Bytes of the files that these processes may have written, each once: what is mapped, opened, in the child's folder and
        in shared memory. Raises ChildError where a process no longer shows them; where none ever did, they count as none."""
        folder = os.fsencode(os.path.realpath(self.workspace.folder))
        mapped: dict[tuple[bytes, File], int] = {}
        # nobody judges what a trusted loop keeps in files, and weights are given to it there
        whole = {} if self.trusted else _held_in(str(self.workspace.folder))
        whole |= self.shared()
        looked_at = 0
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
                try:
                    for part, size in _mapped(pid, folder):
                        mapped[part] = max(size, mapped.get(part, 0))
                    found, looked_at = opened(pid, looked_at)
                    whole |= found
                    self._shown = True
                except PermissionError:
                    if self._shown:
                        raise ChildError("A process of the loop does not let others see its memory.") from None
        files: dict[File, int] = {}
        for (_, file), size in mapped.items():
            files[file] = files.get(file, 0) + size
        return sum(max(files.get(file, 0), whole.get(file, 0)) for file in files | whole)

    def shared(self) -> dict[File, int]:
        """What it has in /dev/shm, mapped or not; nothing where that is shared with others of the same user."""
        if not self.own_shared:
            return _held_in("/dev/shm", self.workspace.uid) if self.workspace.uid else {}
        return _held_in(f"/proc/{self.processes.warden}/root/dev/shm")


class Disk:
    """Of one child. most: bytes."""

    def __init__(self, memory: Memory, most: int) -> None:
        self.memory, self.workspace, self.processes, self.most = memory, memory.workspace, memory.processes, most

    def check(self) -> None:
        """What it has on the disk, and in shared memory where that is not its alone: files without a name, too."""
        folder, shared = os.stat(self.workspace.folder).st_dev, _shared_device()
        files = _held_in(str(self.workspace.folder))
        files |= _held_in("/dev/shm", self.workspace.uid) if self.workspace.uid else {}
        looked_at = 0
        for process in self.processes.tree():
            with contextlib.suppress(OSError):  # it ended, or does not show them
                found, looked_at = opened(process.pid, looked_at)
                files |= found
        for device, where, most in (
            (folder, "to its folder", self.most),
            (shared, "to shared memory", rights.shared_limit()),
        ):
            used = sum(size for (on, _), size in files.items() if on == device)
            if used > most:
                raise ChildError(
                    f"The submission wrote {used / 1e9:.1f} GB {where}. At most {most / 1e9:.1f} GB are allowed.",
                    kind="disk",
                )

    def room_that_others_took(self) -> str:
        """Whether shared memory or the disk is full, and not by this child, in words."""
        places = [(self.workspace.folder, _held_in(str(self.workspace.folder)))]
        if not self.memory.own_shared and rights.shared_memory():
            places.append((Path("/dev/shm"), self.memory.shared()))
        for place, own in places:
            there = os.statvfs(place)
            used = (there.f_blocks - there.f_bfree) * there.f_frsize
            if there.f_bavail * there.f_frsize < NO_ROOM and 2 * sum(own.values()) < used:
                return f"other programs have filled {place if place == Path('/dev/shm') else place.parent}, and the loop found no room there."
        return ""


def _shared_device() -> int:
    """That of /dev/shm; -1, which no file has, where there is none."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat("/dev/shm").st_dev
    return -1


def _shared_without(pids: list[int]) -> int:
    """Bytes that two or more of the processes after the first share, and the first does not. Only root sees that: 0 for others."""
    if len(pids) < 3 or sum(_kilobytes(pid, "smaps_rollup", ("Shared_Dirty",)) > 0 for pid in pids[1:]) < 2:
        return 0
    seen, frames = np.unique(np.concatenate([_frames(pid) for pid in pids[1:]]), return_counts=True)
    return _PAGE * len(np.setdiff1d(seen[frames > 1], _frames(pids[0])))


def _frames(pid: int) -> np.ndarray:
    """The page frames that a process has in memory and that are no files; none where the kernel does not tell."""
    found, most = [np.zeros(0, np.uint64)], rights.memory_limit() // _PAGE
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{living(pid)}/maps", "rb") as maps,
        open(f"/proc/{living(pid)}/pagemap", "rb") as pages,
    ):
        for line in maps:
            span, *_, name = line.split(None, 5)
            first, last = (int(end, 16) // _PAGE for end in span.split(b"-"))
            # the kernel's own pages; more than a process may write to, as CUDA's terabytes of addresses
            if name.startswith(b"[v") or last - first > most:
                continue
            pages.seek(8 * first)
            part = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
            found.append(part[(part & _PRESENT != 0) & (part & _OF_A_FILE == 0)] & _FRAME)
    every = np.unique(np.concatenate(found))
    return every[every > 0]


def _mapped(pid: int, folder: bytes) -> Iterator[tuple[tuple[bytes, File], int]]:
    """Offset, file, bytes of what a process maps and may have written: https://man7.org/linux/man-pages/man5/proc_pid_maps.5.html"""
    # Files are its own where it can write to them, where they have no name any more (shared memory is such a file), and in the
    # folders in which it can make some. All of a part counts: what was written is not lost when its pages are no longer the
    # process's, and whoever makes a mapping of memory wants all of it
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


def _held_in(folder: str, uid: int = 0) -> dict[File, int]:
    """`folders.held_in`. Raises ChildError where nobody can look at all of it."""
    try:
        return dict(folders.held_in(folder, uid))
    except OSError as error:
        why = f"The submission has a folder that nobody can look into ({error.strerror})."
        raise ChildError(why, kind="disk") from None


def opened(pid: int, looked_at: int = 0) -> tuple[dict[File, int], int]:
    """Bytes of what a process runs or has opened and no folder shows: files in memory, files without a name, what waits in pipes.
    looked_at: how many of its child's files were, before and behind this. Raises ChildError where they are too many."""
    found, shared, seen = dict[File, int](), _shared_device(), 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
        program = os.stat(f"/proc/{pid}/exe")  # which is there whole, though a part of it is mapped
        if _has_no_folder(program, shared):
            found[program.st_dev, program.st_ino] = program.st_blocks * 512
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        if seen and same_files(seen, thread):  # each can have descriptors of its own
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
            for entry in os.scandir(f"/proc/{pid}/task/{thread}/fd"):
                looked_at, seen = looked_at + 1, thread
                if looked_at > MAX_OPENED and can_compare_files():
                    raise ChildError(f"The submission has more than {MAX_OPENED:,} files open.", kind="disk")
                with contextlib.suppress(FileNotFoundError):  # it closed it
                    status = os.stat(entry.path)
                    file = status.st_dev, status.st_ino
                    if stat.S_ISFIFO(status.st_mode) and file not in found:
                        found[file] = _waiting_in(entry.path)
                    elif _has_no_folder(status, shared):
                        found[file] = status.st_blocks * 512
                    elif stat.S_ISLNK(status.st_mode) and not status.st_nlink:
                        found[file] = _PAGE
    return found, looked_at


def _has_no_folder(status: os.stat_result, shared: int) -> bool:
    """Whether it is a file without a name, or one in shared memory, which is the device `shared`."""
    return stat.S_ISREG(status.st_mode) and (not status.st_nlink or status.st_dev == shared)


def _waiting_in(pipe: str) -> int:
    """Bytes that were written to a pipe, given by a path in /proc, and not yet read."""
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    finally:
        os.close(fd)


def _private(pid: int) -> int:
    """Bytes that a process shares with no other; those included that it let the kernel free, for they are there until it does."""
    return _kilobytes(pid, "smaps_rollup", ("Private_Dirty", "LazyFree", "Swap"))


def _kilobytes(pid: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines of a file in /proc/PID, in bytes; 0 when the process has ended."""
    found = 0
    with contextlib.suppress(OSError), open(f"/proc/{living(pid)}/{file}", "rb") as lines:
        for line in lines:  # bytes: a thread's name may be no text
            name, _, value = line.partition(b":")
            if name.decode(errors="replace") in names:
                found += int(value.split()[0]) << 10
    return found
