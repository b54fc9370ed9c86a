"""What Moodle and Canvas pack of a class, put where a class is graded: SUBMITTED/STUDENT/LAB/LAB.ipynb, with its timestamp.txt.

An archive is a stranger's: entries are read one by one, each up to a limit, and never unpacked to a name of their own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from grader import labs
from grader.classroom.cells import lab_of
from grader.errors import UserError
from grader.submission import MAX_NOTEBOOK

MOODLE, CANVAS, PLAIN = "moodle", "canvas", "folders"
# Jane Doe_1234567_assignsubmission_file_/x.ipynb, and without folders Jane Doe_1234567_assignsubmission_file_x.ipynb
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_(?P<kind>file|onlinetext)(?:_(?P<file>.*))?")
# doejane_LATE_12345_67890_x.ipynb; the second number is that of the file
_CANVAS = re.compile(r"(?P<name>.+?)_(?P<late>LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)")
_NO_FILE = re.compile(r"(^|/)(__MACOSX|\.[^/]*|Thumbs\.db|desktop\.ini)(/|$)")
_AGAIN = re.compile(r"-(\d+)\.ipynb")  # Canvas numbers what is handed in anew
MOST = 8 * MAX_NOTEBOOK  # bytes that are read of one person's files
MANY = 100_000  # entries of an archive


class Person(NamedTuple):
    """Who handed in, as the archive says it. number: the user's in Canvas, the participant's in one assignment of Moodle."""

    system: str
    name: str
    number: str = ""


@dataclass(frozen=True)
class Packed:
    """A file of an archive. when: None where the archive does not tell."""

    person: Person
    path: str  # as it is said to a person
    file: str  # its own name
    when: datetime | None
    late: bool
    read: Callable[[], bytes]  # raises Unusable


class Unusable(Exception):
    """A file that is not taken; the message says why."""


@dataclass
class Taken:
    """A notebook that was put in its place."""

    student: str
    lab: str
    person: Person
    path: str
    when: datetime | None
    late: bool
    how: str  # "new", "replaced" or "unchanged"


@dataclass
class Collected:
    taken: list[Taken] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # what was not taken, and why


# ---------------------------------------------------------------- what an archive holds


def opened(archive: Path) -> zipfile.ZipFile:
    """Raises UserError for what is no archive."""
    try:
        file = zipfile.ZipFile(archive)
    except OSError as error:
        raise UserError(f"{archive} cannot be read: {error.strerror}. Give the path of a .zip file.") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UserError(
            f"{archive} is not a ZIP archive ({error}). Download it again, and give it as it came."
        ) from None
    if len(file.infolist()) > MANY:
        file.close()
        raise UserError(
            f"{archive} holds more than {MANY:,} files, which is too many for a class. Nothing was unpacked."
        )
    return file


def packed(file: zipfile.ZipFile) -> Iterator[Packed | str]:
    """The files of an archive by path; a text for each that cannot be used."""
    names = {info: _name(info) for info in file.infolist() if not info.is_dir()}
    named = {info: name for info, name in names.items() if not _NO_FILE.search(name)}
    system = _system(named.values())
    for info, name in sorted(named.items(), key=lambda item: item[1]):
        if ".." in PurePosixPath(name).parts or name.startswith("/") or re.match(r"[A-Za-z]:", name):
            yield f"{name}: its path leads out of the archive"
        elif stat.S_ISLNK(info.external_attr >> 16):
            yield f"{name}: a link to another file"
        else:
            yield _packed(file, info, name, system) or f"{name}: it does not say whose it is"


def _name(info: zipfile.ZipInfo) -> str:
    """Its path. Some programs write UTF-8 and do not say so."""
    name = info.filename
    if not info.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return unicodedata.normalize("NFC", name.replace("\\", "/"))


def _system(names: Any) -> str:
    """Whose archive it is, by most of its names."""
    found = {MOODLE: 0, CANVAS: 0}
    for name in names:
        parts = PurePosixPath(name).parts
        found[MOODLE] += any(_MOODLE.fullmatch(part) for part in parts)
        found[CANVAS] += bool(_CANVAS.fullmatch(parts[-1])) if parts else 0
    return max(found, key=lambda system: found[system]) if any(found.values()) else PLAIN


def _packed(file: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, system: str) -> Packed | None:
    parts = PurePosixPath(name).parts
    own, late = parts[-1], False
    if system == MOODLE:
        found = next((match for part in parts if (match := _MOODLE.fullmatch(part))), None)
        if not found:
            return None
        person = Person(system, found["name"], found["number"])
        own = found["file"] if found.string == own and found["file"] else own
    elif system == CANVAS:
        found = _CANVAS.fullmatch(own)
        if not found:
            return None
        person, own, late = Person(system, found["name"], found["number"]), found["file"], bool(found["late"])
    else:
        folders = [part for part in parts[:-1] if part not in labs.NAMES]
        if not folders:
            return None
        person = Person(system, folders[-1])
    return Packed(person, name, own, _when(info), late, partial(_read, file, info))


def _when(info: zipfile.ZipInfo) -> datetime | None:
    """When the file was changed last: in UTC where the archive says so, else this machine's own time."""
    extra = info.extra
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        if kind == 0x5455 and size >= 5 and extra[4] & 1:  # the extended timestamp
            with contextlib.suppress(struct.error, OverflowError, OSError, ValueError):
                return datetime.fromtimestamp(struct.unpack("<i", extra[5:9])[0], UTC)
        extra = extra[4 + size :]
    try:
        return None if info.date_time[0] <= 1980 else datetime(*info.date_time).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _read(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        with file.open(info) as opened:
            data = opened.read(MAX_NOTEBOOK + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise Unusable(f"it is damaged ({error})") from None
    except NotImplementedError:
        raise Unusable("it is packed in a way that Python cannot unpack") from None
    except RuntimeError:
        raise Unusable("it is locked with a password") from None
    if len(data) > MAX_NOTEBOOK:
        raise Unusable(f"it is larger than {MAX_NOTEBOOK >> 20} MB")
    return data


def _inside(each: Packed) -> Iterator[Packed | str]:
    """The notebooks of an archive that a student handed in."""
    try:
        file = zipfile.ZipFile(io.BytesIO(each.read()))
        infos = [info for info in file.infolist() if not info.is_dir() and not _NO_FILE.search(_name(info))]
        if len(infos) > MANY:
            raise Unusable("it holds more files than anybody hands in")
    except (Unusable, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        yield f"{each.path}: {error}"
        return
    for info in infos:
        if ".ipynb" in info.filename and not stat.S_ISLNK(info.external_attr >> 16):
            name = PurePosixPath(_name(info)).name
            where = f"{each.path}/{name}"
            yield Packed(each.person, where, name, each.when, each.late, partial(_read, file, info))


# ---------------------------------------------------------------- whose


def folder_name(person: Person, twins: bool) -> str:
    """A student's id where no list knows one: the name, with the number where others have the same name. Canvas' number is a
    person's, Moodle's another one in each assignment."""
    words = "".join(letter if letter.isalnum() or letter in "-'." else "_" for letter in person.name)
    name = re.sub(r"_+", "_", words).strip("_.-'")[:80] or "student"
    return f"{name}_{person.number}" if person.number and (twins or person.system == CANVAS) else name


# ---------------------------------------------------------------- into its place


def collect(
    archive: Path,
    submitted: Path,
    known: Callable[[Person], str],
    lab: str = "",
    due: Callable[[str], datetime | None] = lambda lab: None,
) -> Collected:
    """Put the notebooks of one archive into `submitted`. known: the id of a person, "" where nobody knows it. lab: the only one
    that is taken. due: when a lab was due, None where nobody says so."""
    with opened(archive) as file:
        done = Collected()
        notebooks = _chosen(file, archive, lab, done)
        ids = _ids([person for person, _ in notebooks], known)
        for (person, name), newest in notebooks.items():
            try:
                done.taken.append(_placed(newest, ids[person], name, submitted, due(name)))
            except Unusable as why:
                done.left.append(f"{newest.path}: {why}")
        return done


def _chosen(file: zipfile.ZipFile, archive: Path, lab: str, done: Collected) -> dict[tuple[Person, str], Packed]:
    """The newest notebook of each person and lab; what else there is goes to `done.left`."""
    notebooks: dict[tuple[Person, str], list[Packed]] = defaultdict(list)
    others: dict[Person, list[str]] = defaultdict(list)  # what a person handed in beside notebooks
    read: dict[Person, int] = defaultdict(int)  # bytes of notebooks
    for each in _all_files(file):
        if isinstance(each, str):
            done.left.append(each)
        elif ".ipynb" not in each.file.lower():
            others[each.person].append(each.path)
        else:
            try:
                notebooks[each.person, _lab_of(each, archive, lab, read)].append(each)
            except Unusable as why:
                done.left.append(f"{each.path}: {why}")
    for person in others.keys() - read.keys():
        done.left.append(f"{person.name}: no notebook among what was handed in ({', '.join(others[person])})")
    chosen = {who: max(found, key=_newer) for who, found in notebooks.items()}
    for who, found in notebooks.items():
        done.left += [f"{each.path}: {chosen[who].path} is newer" for each in found if each is not chosen[who]]
    return chosen


def _all_files(file: zipfile.ZipFile) -> Iterator[Packed | str]:
    """Those of an archive, and the notebooks of archives in it."""
    for each in packed(file):
        if isinstance(each, Packed) and each.file.lower().endswith(".zip"):
            yield each  # what else was handed in is said by its name
            yield from _inside(each)
        else:
            yield each


def _lab_of(each: Packed, archive: Path, lab: str, read: dict[Person, int]) -> str:
    """Which lab a notebook is of. Raises Unusable for one that is not taken."""
    if read[each.person] > MOST:
        raise Unusable(f"this student's files have more than {MOST >> 20} MB")
    data = each.read()
    read[each.person] += len(data)
    found = lab_of(data, each.file, archive.name) or lab
    if not found:
        raise Unusable("it does not say which lab it is of, so give --lab")
    if lab and found != lab:
        raise Unusable(f"it is of {found}, not of {lab}")
    return found


def _newer(each: Packed) -> tuple[datetime, int, str]:
    again = _AGAIN.search(each.file)
    return each.when or datetime.min.replace(tzinfo=UTC), int(again[1]) if again else 0, each.path


def _ids(people: list[Person], known: Callable[[Person], str]) -> dict[Person, str]:
    """Each person's id: nobody shares one."""
    ids = {person: known(person) for person in dict.fromkeys(people)}
    names = [folder_name(person, twins=False).casefold() for person in ids]
    taken = {own.casefold() for own in ids.values() if own}
    for person, own in ids.items():
        plain = folder_name(person, twins=False)
        twins = names.count(plain.casefold()) > 1 or plain.casefold() in taken
        ids[person] = own or folder_name(person, twins)
    return ids


def _placed(each: Packed, student: str, lab: str, submitted: Path, due: datetime | None) -> Taken:
    """Write a notebook and its time. An older one than what lies there is left. Raises Unusable."""
    folder = submitted / student / lab
    place, clock = folder / f"{lab}.ipynb", folder / "timestamp.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if os.path.realpath(folder) != os.path.join(os.path.realpath(submitted), student, lab):
        raise Unusable(f"{folder} is a link to another folder, so delete it")
    data, when = each.read(), each.when
    if each.person.system == CANVAS and due and when and not each.late:
        when = min(when, due)  # its archives have the time of the download, and say by a word who is late
    there = _time_in(clock)
    old = place.read_bytes() if place.is_file() and not place.is_symlink() else None
    if old is not None and old != data and when and there and when < there:
        raise Unusable(f"the notebook at {place} is newer ({there:%Y-%m-%d %H:%M} UTC)")
    if old != data:
        _write(place, data)
    if when and (old != data or there is None):
        _write(clock, f"{when:%Y-%m-%d %H:%M:%S} UTC\n".encode())
    how = "new" if old is None else "unchanged" if old == data else "replaced"
    return Taken(student, lab, each.person, each.path, when, each.late, how)


def _time_in(clock: Path) -> datetime | None:
    with contextlib.suppress(OSError, ValueError):
        return datetime.strptime(clock.read_text(encoding="utf-8").strip(), "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    return None


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; what was a link is a file then."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".collect")
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
