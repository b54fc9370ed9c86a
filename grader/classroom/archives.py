"""Archives of strangers: their entries are read one by one, each up to a limit, and never unpacked to a name of their own."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from grader.submission import MAX_NOTEBOOK

MANY = 100_000  # entries of an archive
LONGEST = 1000  # characters of a file's name: several times what any disk has
MOST_UNPACKED = 256 * MAX_NOTEBOOK  # bytes of a whole .tar.gz
ENDINGS = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".gz", ".bz2", ".xz")
_ZIP = b"PK\x03\x04"
_PACKED: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\0", lzma.open),
)
_OTHERS = ((b"Rar!", "RAR"), (b"7z\xbc\xaf", "7z"))  # which Python cannot unpack
_BROKEN = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, ValueError, OverflowError, RecursionError),
)


class Unusable(Exception):
    """A file that is not taken; the message says why."""


@dataclass(frozen=True)
class Entry:
    """What lies in an archive. name: its path, on one line; when: when it was changed last, None where nobody says so."""

    name: str
    when: datetime | None
    is_folder: bool
    is_link: bool
    read: Callable[..., bytes]  # all of it, or its first bytes: `read(8)`. Raises Unusable


def is_archive(name: str, read: Callable[[int], bytes] = bytes) -> bool:
    """Whether a file is one by its name, or, called a notebook, by its first bytes. Raises what `read` raises."""
    low = name.lower()
    magics = tuple(magic for magic, _ in (*_PACKED, *_OTHERS))
    return low.endswith(ENDINGS) or (".ipynb" in low and read(8).startswith((_ZIP, *magics)))


def entries(file: IO[bytes], name: str, room: IO[bytes], spend: Callable[[int], object] = bool) -> list[Entry]:
    """Those of a ZIP or tar file, or of one packed file (.gz). room: for what has to be unpacked whole, since the members of a tar
    file are read in any order; spend: is told of its bytes, part by part. Raises Unusable, and what `spend` raises."""
    try:
        begin = file.read(8)
        file.seek(0)
        if kind := next((kind for magic, kind in _OTHERS if begin.startswith(magic)), ""):
            raise Unusable(f"it is a {kind} archive, so ask for the .ipynb file")
        unpacker = next((opened for magic, opened in _PACKED if begin.startswith(magic)), None)
        if unpacker:
            file = _unpacked(unpacker(file), room, spend)
        if _is_tar(file):
            return _of_tar(tarfile.open(fileobj=file, mode="r:"))
        if unpacker:  # one file alone
            own = Path(re.sub(r"\.(gz|bz2|xz)$", "", name, flags=re.IGNORECASE)).name
            return [Entry(own, None, False, False, partial(_read, partial(_again, file)))]
        return _of_zip(zipfile.ZipFile(file))
    except NotImplementedError:
        raise Unusable("it is packed in a way that Python cannot unpack") from None
    except _BROKEN as error:
        raise Unusable(f"it cannot be opened as an archive ({error})") from None


def _unpacked(packed: IO[bytes], room: IO[bytes], spend: Callable[[int], object]) -> IO[bytes]:
    while part := packed.read(1 << 20):
        spend(len(part))
        if room.tell() > MOST_UNPACKED:
            raise Unusable(f"unpacked, it is larger than {MOST_UNPACKED >> 30} GB")
        room.write(part)
    room.seek(0)
    return room


def _is_tar(file: IO[bytes]) -> bool:
    file.seek(257)
    found = file.read(5) == b"ustar"
    file.seek(0)
    return found


def _again(file: IO[bytes]) -> IO[bytes]:
    file.seek(0)
    return io.BytesIO(file.read(MAX_NOTEBOOK + 1))


def of_folder(folder: Path) -> list[Entry]:
    """The files below a folder: clones of the students' repositories, say. Follows no link. Raises Unusable."""
    found = []
    for here, _, names in os.walk(folder):
        for path in (Path(here, name) for name in names):
            with contextlib.suppress(OSError):
                info = path.lstat()
                name = _one_line(path.relative_to(folder.parent).as_posix())
                reader = partial(_read, partial(io.FileIO, path))
                found.append(Entry(name, _moment(info.st_mtime), False, not stat.S_ISREG(info.st_mode), reader))
    return _few_enough(found)


def _of_tar(file: tarfile.TarFile) -> list[Entry]:
    found = []
    for info in islice(file, MANY + 1):
        # neither folder nor plain file: links, pipes, devices
        other = not info.isfile() and not info.isdir()
        reader = partial(_read, partial(file.extractfile, info))
        when = _moment(info.mtime) if info.mtime else None
        found.append(Entry(_one_line(info.name.removeprefix("./")), when, info.isdir(), other, reader))
    return _few_enough(found)


def _of_zip(file: zipfile.ZipFile) -> list[Entry]:
    found = []
    for info in islice(file.infolist(), MANY + 1):
        name = _name(info)
        link, reader = stat.S_ISLNK(info.external_attr >> 16), partial(_read, partial(file.open, info))
        found.append(Entry(name, _when(info), name.endswith("/"), link, reader))
    return _few_enough(found)


def _few_enough(found: list[Entry]) -> list[Entry]:
    if len(found) > MANY:
        raise Unusable(f"it holds more than {MANY:,} files")
    return found


def _name(info: zipfile.ZipInfo) -> str:
    """Some programs write UTF-8 and do not say so; those of Windows separate folders by backslashes."""
    name = info.filename
    if not info.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return _one_line(name.replace("\\", "/"))


def _one_line(name: str) -> str:
    """As most systems compose its letters, without half characters. Cut at LONGEST: the time for many accents is quadratic."""
    whole = name.encode("utf-8", "replace").decode("utf-8")
    short = re.sub(rf"([^/]{{{LONGEST}}})[^/]+", r"\1", whole)
    return unicodedata.normalize("NFC", re.sub(r"[\r\n]", " ", short))


def _moment(seconds: float) -> datetime | None:
    """A time that a file says of itself; None for one that no calendar has."""
    with contextlib.suppress(OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(seconds, UTC)
    return None


def _when(info: zipfile.ZipInfo) -> datetime | None:
    """When the file was changed last: in UTC where the archive says so, else this machine's own time."""
    extra = info.extra
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        if kind == 0x5455 and size >= 5 and extra[4] & 1:  # the extended timestamp
            with contextlib.suppress(struct.error):
                return _moment(struct.unpack("<i", extra[5:9])[0])
        extra = extra[4 + size :]
    try:
        return None if info.date_time[0] <= 1980 else datetime(*info.date_time).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _read(opened: Callable[[], IO[bytes] | None], most: int = MAX_NOTEBOOK + 1) -> bytes:
    try:
        with opened() or io.BytesIO() as file:
            data = file.read(most)
    except NotImplementedError:
        raise Unusable("it is packed in a way that Python cannot unpack") from None
    except _BROKEN as error:
        raise Unusable(f"it is damaged ({error})") from None
    except RuntimeError:
        raise Unusable("it is locked with a password") from None
    if len(data) > MAX_NOTEBOOK:
        raise Unusable(f"it is larger than {MAX_NOTEBOOK >> 20} MB, so ask for it without its outputs")
    return data
