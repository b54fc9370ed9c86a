"""Where this user's made and downloaded data lies, and how a file gets there whole or not at all."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import platformdirs

from grader.errors import UserError

TEMPORARY = ".tmp"  # the ending of files that are still being written; no loader takes it for an image


def cache_dir() -> Path:
    """The folder for made and downloaded data: `$GRADER_CACHE`, or else the user's cache folder. Made on demand.

    Raises UserError where it cannot be made.
    """
    chosen = os.environ.get("GRADER_CACHE")
    folder = Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("pytorch-speed-course"))
    try:
        return make_dir(folder.absolute())
    except OSError as error:
        raise UserError(
            f"cannot make the cache folder {folder}: {error.strerror}. Set GRADER_CACHE to a folder you can write to."
        ) from error


def make_dir(folder: Path) -> Path:
    """Make `folder` and what is missing above it, readable for all: a grade's child may run as another user."""
    if not folder.is_dir():
        make_dir(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    return folder


def is_made(marker: Path, manifest: dict[str, object]) -> bool:
    """Whether the file that is written last says that just this is there."""
    try:
        return json.loads(marker.read_text()) == manifest
    except (FileNotFoundError, ValueError):
        return False


def lost(files: Iterable[Path], least: int = 1) -> list[Path]:
    """Those that are not there, or have fewer bytes than `least`. Cleaners of caches take some, and a crash can leave others empty:
    a loop that reads one fails, and would be blamed."""
    return [path for path in files if _size(path) < least]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, to write to; becomes `path` (readable for all) when the block ends well.

    A process killed midway leaves only a `.tmp` file behind, never half a `path`. Several processes may write the
    same `path` at once as long as they write the same content.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
