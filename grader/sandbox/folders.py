"""What a submission could write: counted, and removed when its processes are gone."""

import contextlib
import itertools
import os
import pwd
import subprocess
from collections.abc import Iterator

# where the system's tools lie, whatever PATH a service or a job was started with
_TOOLS = {"PATH": os.pathsep.join(filter(None, [os.environ.get("PATH"), os.defpath]))}


def clear_away(folder: str, uid: int) -> None:
    """Remove a workspace whose processes are gone, and what its user `uid` (0: none of its own) left in shared memory."""
    # not shutil.rmtree: it recurses, and folders can be nested deeper than Python can go
    # nor only once: without root it cannot open folders that were made without rights
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if os.path.lexists(folder):
            subprocess.run([*command, "--", folder], stderr=subprocess.DEVNULL, check=False, env=_TOOLS)
    clear_shared_memory(uid)


def clear_shared_memory(uid: int) -> None:
    """Remove what user `uid` (0: none of its own) left in shared memory that is not its alone (see `own_shared_memory`)."""
    if uid and (left := list(_of_user(uid, "/dev/shm"))):
        subprocess.run(["rm", "-rf", "--", *left], stderr=subprocess.DEVNULL, check=False, env=_TOOLS)


_GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError)  # files come and go meanwhile
_further_names = itertools.count(1)


def held_in(folder: str, uid: int = 0) -> Iterator[tuple[tuple[int, int], int]]:
    """What lies in `folder` and is of user `uid` (0: anybody's): device and inode, a negative one for each further name of a
    file, and bytes. Raises OSError where nobody can look at it: a folder without rights, a path that is too long for one."""
    folders, linked = [(folder, False)], set[tuple[int, int]]()
    while folders:  # not os.walk: it recurses, and folders can be nested deeper than Python can go
        place, own = folders.pop()
        try:
            with contextlib.suppress(*_GONE), os.scandir(place) as entries:
                for entry in entries:
                    with contextlib.suppress(*_GONE):
                        status = entry.stat(follow_symlinks=False)
                        if is_own := not uid or status.st_uid == uid:
                            file, size = (status.st_dev, status.st_ino), status.st_blocks * 512
                            if file in linked:
                                file, size = (status.st_dev, -next(_further_names)), 0
                            elif status.st_nlink > 1:
                                linked.add(file)
                            # a page for each: its name, and what a link says, are memory, too
                            yield file, 4096 + size
                        if entry.is_dir(follow_symlinks=False):
                            folders.append((entry.path, is_own))
        except OSError:
            if own:  # not the whole of it: that a machine may not show
                raise


def _of_user(uid: int, folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # others' files come and go meanwhile
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    yield entry.path


def is_used(uid: int) -> bool:
    """Whether somebody has this user id, or something of somebody's who had it is there."""
    with contextlib.suppress(KeyError):
        pwd.getpwuid(uid)
        return True
    return any(True for folder in ("/proc", "/dev/shm") for _ in _of_user(uid, folder))
