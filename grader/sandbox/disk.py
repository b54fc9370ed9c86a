"""What a child has written, and whether there is room for it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from grader.sandbox import confine, rights
from grader.sandbox.child_error import ChildError
from grader.sandbox.memory import Memory, opened

NO_ROOM = 16 << 20  # bytes left at which a disk, or shared memory, is as good as full


class Disk:
    """Of one child. most: bytes that its folder may take."""

    def __init__(self, memory: Memory, most: int) -> None:
        self.memory, self.workspace, self.processes, self.most = memory, memory.workspace, memory.processes, most

    def check(self) -> None:
        """What it has on the disk, and in shared memory where that is not its alone: files without a name, too."""
        folder, shared = os.stat(self.workspace.folder).st_dev, os.stat("/dev/shm").st_dev
        files = dict(confine.held_in(str(self.workspace.folder)))
        files |= dict(confine.held_in("/dev/shm", self.workspace.uid)) if self.workspace.uid else {}
        for process in self.processes.tree():
            with contextlib.suppress(OSError):  # it ended, or does not show them
                files |= opened(process.pid)
        for device, where, most in (
            (folder, "to its folder", self.most),
            (shared, "to shared memory", rights.shared_limit()),
        ):
            used = sum(size for (each, _), size in files.items() if each == device)
            if used > most:
                raise ChildError(
                    f"The submission wrote {used / 1e9:.1f} GB {where}; at most {most / 1e9:.1f} GB are allowed.",
                    kind="disk",
                )

    def room_that_others_took(self) -> str:
        """Whether shared memory or the disk is full, and not by this child, in words."""
        places = [(self.workspace.folder, dict(confine.held_in(str(self.workspace.folder))))]
        if not self.memory.own_shared:
            places.append((Path("/dev/shm"), dict(self.memory.shared())))
        for place, own in places:
            there = os.statvfs(place)
            used = (there.f_blocks - there.f_bfree) * there.f_frsize
            if there.f_bavail * there.f_frsize < NO_ROOM and 2 * sum(own.values()) < used:
                return f"other programs have filled {place if place == Path('/dev/shm') else place.parent}, and the loop found no room there."
        return ""
