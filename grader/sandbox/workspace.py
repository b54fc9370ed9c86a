"""The private folder of a submission, and the exchange of files with it."""

import contextlib
import functools
import os
import re
import secrets
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from grader.data.cache import cache_dir, make_dir
from grader.paths import DATA, PACKAGE, REPOSITORY, temporary, with_this_package
from grader.sandbox import folders
from grader.sandbox.child_error import ChildError

MAX_TEMPORARY = 40  # bytes of the path for temporary files; a workspace's and a socket's name come behind it


@dataclass
class Workspace:
    """The private folder of one submission: its module, temporary files and compiler caches. Whoever makes one removes it."""

    source: str
    folder: Path = field(init=False)
    uid: int = 0  # of a user that nobody else is, an even one: the next one is for who ends its processes; 0 for none

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
        (self.folder / "lib" / "grader").symlink_to(PACKAGE)
        # a notebook can hold half a surrogate pair, which no file can: in a text it means the same when it is escaped
        # and a cell can name another encoding, which a file would be read in: the first name of the first comment counts
        text = re.sub(r"\A(\s*\n)?[ \t\f]*#", r"\1# coding: utf-8 #", self.source)
        (self.folder / "submission.py").write_text(text, encoding="utf-8", errors="backslashreplace")
        if self.uid:
            for path in (self.folder, *self.folder.iterdir(), self.folder / "lib" / "grader"):
                os.chown(path, self.uid, -1, follow_symlinks=False)

    def empty(self) -> None:
        """Make all but the compiler caches anew, when all its processes are gone."""
        folders.clear_shared_memory(self.uid)
        for path in self.folder.iterdir():
            if path.name != "cache":
                folders.clear_away(str(path), 0)
        self._fill()

    def remove(self) -> None:
        folders.clear_away(str(self.folder), self.uid)

    @property
    def exchange(self) -> Path:
        return self.folder / "exchange"

    def fetch(self, file: str, max_bytes: int, hint: str = "", take: bool = False) -> bytes:
        """The contents of a file that the child wrote to the exchange folder, which is removed if `take`. Raises ChildError when it
        is missing, too large (with `hint`, what to do), or no plain file (a link could point to anything)."""
        with contextlib.ExitStack() as opened:
            try:
                # in two steps: the exchange folder itself could be a link as well
                folder = os.open(self.exchange, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
                opened.callback(os.close, folder)
                fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                opened.callback(os.close, fd)
                if take:
                    os.unlink(file, dir_fd=folder)
            except OSError as error:
                raise ChildError(
                    f"The submission's process left no readable {file} ({error.strerror}).", kind="wire"
                ) from None
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise ChildError(f"The submission's process left a {file} of the wrong kind.", kind="wire")
            if info.st_size > max_bytes:
                raise ChildError(
                    f"The submission's process left a {file} of {info.st_size / 1e6:.1f} MB. At most "
                    f"{max_bytes / 1e6:.1f} MB are read.{hint}",
                    kind="wire",
                )
            with os.fdopen(fd, "rb", closefd=False) as handle:
                return handle.read(max_bytes)

    def give(self, file: str, data: bytes) -> None:
        """Put a file into the child's exchange folder."""
        target = self.exchange / file
        target.write_bytes(data)
        target.chmod(0o644)


def _temporary() -> Path:
    """Where workspaces lie: not where the paths of sockets in them, those of loader workers, would be too long (107 bytes)."""
    folder = temporary()
    return Path("/tmp") if len(os.fsencode(folder)) > MAX_TEMPORARY and os.access("/tmp", os.W_OK | os.X_OK) else folder


def _unused_user() -> int:
    """A user id that nobody has, nor the next one, which ends this one's processes."""
    while True:
        # below 65536, since a container may not map others
        uid = 30_000 + 2 * secrets.randbelow(15_000)
        if not folders.is_used(uid) and not folders.is_used(uid + 1):
            return uid


@functools.lru_cache(maxsize=1)
def _may_give_users() -> bool:
    """Whether children can have users of their own: this process is root, its container maps other ids, and those can read enough."""
    if os.geteuid() != 0:
        return False
    needed = [sys.prefix, sys.base_prefix, PACKAGE, DATA, make_dir(cache_dir())]
    program = (
        "import os, sys, tempfile; from grader.sandbox import confine\n"
        "with tempfile.TemporaryDirectory() as folder: os.chown(folder, 30_000, -1)\n"
        "confine.give_up_root(30_000)\n"
        "for path in sys.argv[1:]: os.listdir(path)"
    )
    command = [sys.executable, "-c", program, *map(str, needed)]
    tried = subprocess.run(command, env=with_this_package(), cwd=REPOSITORY, stderr=subprocess.DEVNULL, check=False)
    return tried.returncode == 0
