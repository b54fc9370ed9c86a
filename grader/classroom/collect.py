"""What a class handed in, put where it is graded: SUBMITTED/STUDENT/LAB/LAB.ipynb, with its timestamp.txt."""

import contextlib
import hashlib
import io
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from grader.classroom.archives import Entry, Unusable, entries, is_archive, of_folder
from grader.classroom.cells import as_released, lab_of, looks_like_a_notebook, no_notebook
from grader.classroom.layouts import Packed, canvas_number, is_file, packed
from grader.classroom.people import CANVAS, FORMS, ILIAS, MOODLE, PLAIN, Person, folded, folder_name, letters, no_folder
from grader.errors import UserError
from grader.result import write_bytes
from grader.submission import MAX_NOTEBOOK

# Canvas numbers what is handed in anew, browsers and JupyterLab what is copied
_AGAIN = re.compile(r"(?:-| ?\(|-Copy)(\d{1,9})\)?(?:\.\w+)+$")
_CLOCK = "%Y-%m-%d %H:%M:%S UTC"  # of timestamp.txt
_SAVED_AS = ("", ".json", ".txt")  # what browsers and editors make of .ipynb
UNTIMED = (MOODLE, FORMS, PLAIN)  # whose archives have other times than those of the hand-in
MOST = 8 * MAX_NOTEBOOK  # bytes that are read of one person's files
DEEPEST = 4  # archives in archives
MOST_NAMED = 5  # files of one student that are left in the archive


@dataclass
class Taken:
    """A notebook that was put in its place."""

    student: str
    lab: str
    person: Person
    path: str
    when: datetime | None  # handed in; None where nobody says so
    late: bool
    how: str  # "new", "replaced" or "unchanged"
    downloaded: datetime | None = None


@dataclass
class Collected:
    taken: list[Taken] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # what was not taken, and why
    older: list[str] = field(default_factory=list)  # in whose place the same student handed in a newer one
    broken: list[str] = field(default_factory=list)  # what was taken, and cannot be read
    beside: list[str] = field(default_factory=list)  # what somebody handed in beside a notebook that was taken
    twice: list[str] = field(default_factory=list)  # who may have two folders
    alike: list[str] = field(default_factory=list)  # who shares a name, and so may get two with the next assignment


# ---------------------------------------------------------------- what an archive holds


@contextlib.contextmanager
def opened(archive: Path) -> Iterator[list[Entry]]:
    """What lies in an archive, or a folder. Raises UserError for what is neither."""
    if archive.is_dir():
        yield of_folder(archive)
        return
    if archive.is_fifo():  # to open one waits until something writes to it
        raise UserError(f"{archive} is a named pipe. Give the path of a .zip or .tar.gz file.")
    with contextlib.ExitStack() as stack:
        try:
            file, room = stack.enter_context(archive.open("rb")), stack.enter_context(tempfile.TemporaryFile())
            found = entries(file, archive.name, room)
        except OSError as error:
            why = f"{archive} cannot be read: {error.strerror}. Give the path of a .zip or .tar.gz file."
            raise UserError(why) from None
        except Unusable as why:
            raise UserError(f"{archive}: {why}. Download it again, and give it as it came.") from None
        yield found


@dataclass(frozen=True)
class _Left:
    """What is not taken of a person's files, and why."""

    person: Person
    why: str


def _inside(each: Packed, read: dict[Person, int], depth: int = 1) -> Iterator[Packed | _Left]:
    """The files of an archive that a student handed in, and of those in it. read: bytes that were read of each person's files."""
    try:
        if depth > DEEPEST:
            raise Unusable(f"archives in archives, more than {DEEPEST} deep")
        found = entries(io.BytesIO(_counted(each, read)), each.file, io.BytesIO(), partial(_spend, each.person, read))
    except Unusable as error:
        yield _Left(each.person, f"{each.path}: {error}")
        return
    for entry in sorted(filter(is_file, found), key=lambda entry: entry.name):
        path = PurePosixPath(entry.name)
        if path.name and not entry.is_link:
            where = "/".join([each.path, *(part for part in path.parts if part not in ("/", ".."))])
            inner = Packed(
                each.person, where, path.name, each.when, each.late, entry.read, each.number, entry.when, True
            )
            yield from _inside(inner, read, depth + 1) if _is_archive(inner) else [inner]


def _is_archive(each: Packed) -> bool:
    with contextlib.suppress(Unusable):
        return is_archive(each.file, each.read)
    return False


def _spend(person: Person, read: dict[Person, int], size: int) -> None:
    """Raises Unusable where a student's files have more than can be read."""
    if read[person] > MOST:
        raise Unusable(f"this student's files have more than {MOST >> 20} MB")
    read[person] += size


def _counted(each: Packed, read: dict[Person, int]) -> bytes:
    """What is in a file. Raises Unusable."""
    _spend(each.person, read, 0)
    data = each.read()
    read[each.person] += len(data)
    return data


# ---------------------------------------------------------------- into its place


def collect(
    archive: Path,
    submitted: Path,
    known: Callable[[Person], str],
    lab: str = "",
    due: Callable[[str], datetime | None] = lambda lab: None,
    before: Sequence[Mapping[str, str]] = (),
    handed_in: Mapping[str, datetime] = MappingProxyType({}),
    groups: Mapping[str, Sequence[Person]] = MappingProxyType({}),
) -> Collected:
    """Put the notebooks of one archive into `submitted`. known: the id of a person, "" where nobody knows it. lab: the only one
    that is taken. due: when a lab was due, None where nobody says so. before: what was collected, as `grader class collect` keeps it.
    handed_in: when Moodle's participants did, by number. groups: their members, by the letters of the group's name."""
    with opened(archive) as found:
        done = Collected()
        notebooks = _to_members(_chosen(found, archive, lab, done), groups, known)
        ids = _ids(list(notebooks), known, before, done)
        earlier = {(row["student"], row["lab"]): row for row in before}
        for (person, name), newest in notebooks.items():
            try:
                if why := no_folder(student := ids[person]):
                    raise Unusable(
                        f"the id {student!r} {why}, so change it in the list, or put the notebook there by hand"
                    )
                _is_newer(newest, earlier.get((student, name)))
                when = _when_handed_in(newest, due(name), handed_in)
                before_this = earlier.get((student, name), {}).get("downloaded") or ""  # when that archive was made
                last = _time(before_this) if person.system in UNTIMED else None
                done.taken.append(_placed(newest, student, name, submitted, when, last))
                if why := no_notebook(newest.read()):
                    done.broken.append(f"{student}/{name}, from {newest.path}: {why}")
            except Unusable as why:
                done.left.append(f"{newest.path}: {why}")
            except OSError as error:
                done.left.append(f"{newest.path}: it cannot be written ({error.strerror}: {error.filename})")
        return done


Notebooks = dict[tuple[Person, str], Packed]  # by person and lab


def _to_members(
    notebooks: Notebooks, groups: Mapping[str, Sequence[Person]], known: Callable[[Person], str]
) -> Notebooks:
    """What a group handed in is each member's, but for those who handed in their own."""
    found = {who: one for who, one in notebooks.items() if letters(who[0].name) not in groups}
    alone = {(folded(known(person)), lab) for person, lab in found}
    for (person, lab), one in notebooks.items():
        for member in groups.get(letters(person.name), ()):
            if (folded(member.login), lab) not in alone:
                its = member._replace(system=person.system)
                found[its, lab] = replace(one, person=its)
    return found


@dataclass(frozen=True)
class _Found:
    """A notebook and what it is worth as somebody's work: one that names its lab more, then one that was worked in, then the newest."""

    file: Packed
    named: bool
    worked: bool
    digest: str  # of what is in it

    def rank(self) -> tuple[Any, ...]:
        return self.named, self.worked, _newer(self.file)


def _chosen(found: Sequence[Entry], archive: Path, lab: str, done: Collected) -> Notebooks:
    """The notebook of each person and lab that counts; what else there is goes to `done`."""
    notebooks: dict[tuple[Person, str], list[_Found]] = defaultdict(list)
    others: dict[Person, list[str]] = defaultdict(list)  # what a person handed in beside notebooks
    unnamed: dict[Person, list[str]] = defaultdict(list)  # notebooks of no lab
    older: dict[Person, list[str]] = defaultdict(list)
    wrong: dict[Person, list[str]] = defaultdict(list)  # what is not taken, and why
    have: set[Person] = set()  # who handed in a notebook, be it usable or not
    read: dict[Person, int] = defaultdict(int)  # bytes
    for each in _all_files(found, read):
        if isinstance(each, str):
            done.left.append(each)
            continue
        if isinstance(each, _Left):
            wrong[each.person].append(each.why)
            continue
        try:
            if not _is_notebook(each, read):
                others[each.person].append(each.path)
                continue
            have.add(each.person)
            own, notebook = _lab_of(each, archive, lab, read)
            (notebooks[each.person, own].append(notebook) if own else unnamed[each.person].append(each.path))
        except Unusable as why:
            wrong[each.person].append(f"{each.path}: {why}")
    chosen = _best(notebooks, others, older)
    working = {person for person, _ in chosen}
    for person, paths in unnamed.items():
        if person in working:
            others[person] += paths
        else:
            wrong[person] += [f"{path}: it does not say which lab it is of, so give --lab" for path in paths]
    for lines_of, to in ((older, done.older), (wrong, done.left)):
        to.extend(line for person, lines in lines_of.items() for line in _few(lines, person))
    for person, paths in sorted(others.items()):
        if person in have:
            done.beside += _few(paths, person)
        else:
            files = ", ".join(_few(paths, person))
            done.left.append(
                f"{person.name}: no notebook among what was handed in ({files}), so ask for the .ipynb file"
            )
    return chosen


def _best(
    notebooks: Mapping[tuple[Person, str], list[_Found]],
    others: dict[Person, list[str]],
    older: dict[Person, list[str]],
) -> dict[tuple[Person, str], Packed]:
    """Of each person and lab the one that counts; `others` gets what is nobody's work, and `older` what is older than that."""
    best = {who: max(found, key=_Found.rank) for who, found in notebooks.items()}
    at_work = {person for (person, _), one in best.items() if one.worked}
    idle = {who for who, one in best.items() if one.file.inner and not one.worked and who[0] in at_work}
    for who, found in notebooks.items():
        taken = best[who]
        for each in found:
            if not each.worked and (who in idle or taken.worked):
                others[who[0]].append(f"{each.file.path}: empty, or as it was released")
            elif taken.named and not each.named:
                others[who[0]].append(each.file.path)
            elif each.digest != taken.digest:
                older[who[0]].append(f"{each.file.path}: {taken.file.path} is newer")
    return {who: one.file for who, one in best.items() if who not in idle}


def _few(paths: list[str], person: Person) -> list[str]:
    """Not the forty files of a whole course that somebody packed; notebooks first."""
    first = sorted(paths, key=lambda path: ".ipynb" not in path)
    more = [f"{person.name}: {len(paths) - MOST_NAMED} more files"] if len(paths) > MOST_NAMED else []
    return first[:MOST_NAMED] + more


def _all_files(found: Sequence[Entry], read: dict[Person, int]) -> Iterator[Packed | _Left | str]:
    """Those of an archive, and of archives in it."""
    for each in packed(found):
        if isinstance(each, Packed) and _is_archive(each):
            inner = list(_inside(each, read))
            yield from inner or [each]
        else:
            yield each


def _is_notebook(each: Packed, read: dict[Person, int]) -> bool:
    """Whether a file is one by its name, or, where a program saved it under another, by what is in it."""
    name = each.file.lower()
    if ".ipynb" in name:
        return True
    return PurePosixPath(name).suffix in _SAVED_AS and looks_like_a_notebook(_counted(each, read))


def _lab_of(each: Packed, archive: Path, lab: str, read: dict[Person, int]) -> tuple[str, _Found]:
    """Which lab a notebook is of, "" for none. Raises Unusable for one that is not taken."""
    data = _counted(each, read)
    says = lab_of(data)
    found = says or lab_of(b"", each.file, archive.name) or lab
    if lab and found != lab:
        raise Unusable(f"it is of {found}, not of {lab}")
    return found, _Found(each, bool(says), not as_released(data, found), hashlib.sha256(data).hexdigest())


def _newer(each: Packed) -> tuple[Any, ...]:
    again, never = _AGAIN.search(each.file), datetime.min.replace(tzinfo=UTC)
    parts = re.split(r"(\d{1,18})", each.path)  # Version 10 comes after Version 9
    counted = [int(part) if at % 2 else part for at, part in enumerate(parts)]
    return each.number, each.when or never, each.changed or never, int(again[1]) if again else 0, counted


def _is_newer(each: Packed, earlier: Mapping[str, str] | None) -> None:
    """Raises Unusable for a file that Canvas numbered before the one that was taken earlier: all its times are the download's."""
    name = earlier["file"].partition("/")[0] if each.number and earlier else ""
    if canvas_number(name) > each.number:
        raise Unusable(f"{name}, which was collected before, is newer")


def _ids(
    wanted: Sequence[tuple[Person, str]],
    known: Callable[[Person], str],
    before: Sequence[Mapping[str, str]],
    done: Collected,
) -> dict[Person, str]:
    """The id of each person, of which `wanted` has the labs: nobody shares one, now or with who was collected before."""
    people = list(dict.fromkeys(person for person, _ in wanted))
    ids = {person: known(person) for person in people}
    shared = Counter(filter(None, ids.values()))
    names = Counter(folded(folder_name(person)) for person in people)
    earlier = {(row["system"], row["number"]): row["student"] for row in before if row["number"]}
    took = {(folded(row["student"]), row["lab"]): (row["system"], row["number"]) for row in before}
    listed = {folded(own) for own in shared}
    for person, own in ids.items():
        was = earlier.get((person.system, person.number), "")
        if own and shared[own] == 1:
            if was and was != own:
                done.twice.append(
                    f"{own} was collected as {was} before. If that is the same student, delete the folder {was}"
                )
            continue
        plain = folder_name(person)
        now = (person.system, person.number)
        others = [took.get((folded(plain), lab), now) for who, lab in wanted if who == person]
        another = any(system == person.system and number != person.number for system, number in others)
        twins = names[folded(plain)] > 1 or folded(plain) in listed or shared[own] > 1 or another
        ids[person] = was or folder_name(person, twins)
        if person.system == MOODLE and names[folded(plain)] > 1:
            done.alike.append(f"{ids[person]}: Moodle gives a new number with the next assignment")
        if another and not was:
            done.twice.append(
                f"{ids[person]}: another {person.name} handed in before. If that is the same student, give --students"
            )
    return ids


def _when_handed_in(each: Packed, due: datetime | None, listed: Mapping[str, datetime]) -> datetime | None:
    """None where nobody knows. Moodle and Canvas write the time of the download: of Moodle only its worksheet has the other, Canvas
    and ILIAS say by a word who is late. Of folders and clones it is that of the copy."""
    if each.person.system == MOODLE:
        return listed.get(each.person.number)
    if each.person.system in UNTIMED:
        return None
    if each.person.system in (CANVAS, ILIAS) and due and each.when and not each.late:
        return min(each.when, due)
    return each.when


def _placed(
    each: Packed, student: str, lab: str, submitted: Path, when: datetime | None, last: datetime | None
) -> Taken:
    """Write a notebook and its time. An older one than what lies there, or than `last`, is left. Raises Unusable."""
    folder = submitted / student / lab
    place, clock = folder / f"{lab}.ipynb", folder / "timestamp.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if os.path.realpath(folder) != os.path.join(os.path.realpath(submitted), student, lab):
        raise Unusable(f"{folder} is a link to another folder, so delete it")
    data, untimed = each.read(), each.person.system in UNTIMED
    there: datetime | None = None
    with contextlib.suppress(OSError, ValueError):
        there = _time(clock.read_text(encoding="utf-8"))
    new, newest = (each.when, last) if untimed else (when, there)
    old = place.read_bytes() if place.is_file() and not place.is_symlink() else None
    if old is not None and old != data and new and newest and new < newest:
        raise Unusable(f"the notebook at {place} is newer ({newest:%Y-%m-%d %H:%M} UTC)")
    if old is not None and old != data and as_released(data, lab) and not as_released(old, lab):
        raise Unusable(f"it is empty, or the lab as it was released, and the notebook at {place} is not")
    if old is not None and old != data and (why := no_notebook(data)) and not no_notebook(old):
        raise Unusable(f"{why}, and the notebook at {place} can be read, so ask for it again")
    if old != data:
        write_bytes(place, data)
    if when and (old != data or there is None or untimed):
        write_bytes(clock, f"{when:{_CLOCK}}\n".encode())
    elif old != data:
        clock.unlink(missing_ok=True)  # it was the time of what lay there
    how = "new" if old is None else "unchanged" if old == data else "replaced"
    return Taken(student, lab, each.person, each.path, when, each.late, how, each.when)


def _time(text: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        return datetime.strptime(text.strip(), _CLOCK).replace(tzinfo=UTC)
    return None
