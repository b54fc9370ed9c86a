"""Whose file of an archive is whose: how Moodle, Canvas, Brightspace, Blackboard and Sakai name what they pack, and what else
there is: folders of students, clones of their repositories, files that Google's forms name after them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from grader import labs
from grader.classroom.archives import Entry, Unusable, is_archive
from grader.classroom.people import BLACKBOARD, BRIGHTSPACE, CANVAS, FORMS, MOODLE, PLAIN, SAKAI, Person
from grader.classroom.worksheet import moment

# Jane Doe_1234567_assignsubmission_file_/x.ipynb, and without folders Jane Doe_1234567_assignsubmission_file_x.ipynb
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+(?:_(?P<file>.*))?")
# doejane_LATE_12345_67890_x.ipynb: the second number is the file's, larger for what was handed in later. Graded anonymously there
# is no name, or "anon"; what was typed in or linked is doejane_12345_text.html
_CANVAS = re.compile(
    r"(?:(?P<name>.+?)_)??(?P<late>LATE_)?(?P<number>\d+|(?<=anon_)\w{5}|(?<=anon_late_)\w{5})"
    r"_(?:(?P<id>\d{1,18})_(?P<file>.+)|(?P<typed>(?:text|link)\.html))",
    re.IGNORECASE,
)
# 62334-99 - Jane Doe - Nov 20, 2026 1030 AM/x.ipynb: a folder of each attempt, with the number of the person
_BRIGHTSPACE = re.compile(r"(?P<number>\d+)-\d+ ?- (?P<name>.+?) ?- (?P<when>[^-]*\b20\d\d\b[^-]*)")
# Lab201c_jdoe_attempt_2026-11-20-10-30-00_x.ipynb, and beside it the same without a file's name, .txt, which says whose it is
_BLACKBOARD = re.compile(r"(?P<title>.+?)_attempt_(?P<when>20\d\d(?:-\d\d){5})(?:_(?P<file>.+)|\.txt)")
# Lab 1c/Doe, Jane(jdoe)/Submission attachment(s)/x.ipynb, and Lab 1c/Doe, Jane(jdoe)/timestamp.txt
_SAKAI = re.compile(r"(?P<name>[^/]+?) ?\((?P<login>[^()/]+)\)")
_FORMS = " - "  # x - Jane Doe.ipynb of Google's forms, Jane Doe - x.ipynb of its classroom
_NO_FILE = re.compile(r"(^|/)(__MACOSX|\.(?!\.?/)[^/]*|Thumbs\.db|desktop\.ini)(/|$)")
_NOBODY = {*labs.NAMES, "labs", "notebooks", "solutions", "work"}  # folders of the course


@dataclass(frozen=True)
class Packed:
    """A file of an archive. when: None where the archive does not tell."""

    person: Person
    path: str  # as it is said to a person
    file: str  # its own name
    when: datetime | None
    late: bool
    read: Callable[[], bytes]  # raises Unusable
    number: int = 0  # the file's, where its system counts them
    changed: datetime | None = None  # in a student's own archive, which was handed in as one
    inner: bool = False  # whether it lies in such an archive


def canvas_number(name: str) -> int:
    """The number that Canvas gave a file; 0 for a name of another kind."""
    found = _CANVAS.fullmatch(name)
    return int(found["id"] or 0) if found else 0


def is_file(entry: Entry) -> bool:
    """Whether somebody made it, and neither a system nor a browser did."""
    return not entry.is_folder and not _NO_FILE.search(entry.name)


def packed(found: Sequence[Entry]) -> Iterator[Packed | str]:
    """The files of an archive by path; a text for each that cannot be used."""
    named = {entry.name: entry for entry in found if is_file(entry)}
    system = _system(named)
    whose = _READERS[system](named)
    for name, entry in sorted(named.items()):
        if ".." in PurePosixPath(name).parts or name.startswith("/") or re.match(r"[A-Za-z]:", name):
            yield f"{name}: its path leads out of the archive"
        elif entry.is_link:
            yield f"{name}: a link to another file"
        elif not _is_the_system_s(system, name):
            yield (
                whose(entry)
                or f"{name}: it does not say whose it is, so put it at submitted/STUDENT/LAB/LAB.ipynb yourself"
            )
    yield from _empty(found, named) if system == MOODLE else ()


def _empty(found: Iterable[Entry], names: Iterable[str]) -> Iterator[str]:
    """Those who have a folder and no file in it."""
    # of "." and "/", where an archive begins, there is no first part
    full, folders = (
        {part for name in some for part in PurePosixPath(name.strip("/")).parts[:1]}
        for some in (names, (entry.name for entry in found))
    )
    for folder in sorted(folders - full):
        if match := _MOODLE.fullmatch(folder):
            yield f"{match['name']}: the folder is empty"


def _system(names: Iterable[str]) -> str:
    """Whose archive it is, by most of its names: each of a system's own says so, whatever a student calls files."""
    found = dict.fromkeys((MOODLE, CANVAS, BRIGHTSPACE, BLACKBOARD, SAKAI), 0)
    paths = [PurePosixPath(name) for name in names]
    sakai = {path.parent for path in paths if path.name == "timestamp.txt" and _SAKAI.fullmatch(path.parent.name)}
    for path in paths:
        parts = path.parts
        found[MOODLE] += any(_MOODLE.fullmatch(part) for part in parts)
        found[BRIGHTSPACE] += any(_BRIGHTSPACE.fullmatch(part) for part in parts[:-1])
        found[SAKAI] += any(folder in sakai for folder in path.parents)
        found[BLACKBOARD] += bool(_BLACKBOARD.fullmatch(parts[-1])) if parts else 0
        found[CANVAS] += bool(_CANVAS.fullmatch(parts[-1])) if parts else 0
    if any(found.values()):
        return max(found, key=lambda system: found[system])
    flat = len({path.parent for path in paths}) == 1 and all(_FORMS in path.stem for path in paths)
    return FORMS if flat and (len(paths) > 1 or "(File responses)" in str(paths[0])) else PLAIN


def _is_the_system_s(system: str, name: str) -> bool:
    """Whether it says something about the class, and nobody handed it in."""
    own = PurePosixPath(name).name
    if system == BLACKBOARD:
        return bool((match := _BLACKBOARD.fullmatch(own)) and not match["file"])
    if system == SAKAI:
        of_sakai = own in ("grades.csv", "grades.xls", "timestamp.txt", "comments.txt", "feedbackText.html")
        return of_sakai or "/Feedback" in name
    return system == BRIGHTSPACE and name == "index.html"


# ---------------------------------------------------------------- one reader of each system: entries by name -> who, of an entry

Whose = Callable[[Entry], Packed | None]


def _of_moodle(named: Mapping[str, Entry]) -> Whose:
    def whose(entry: Entry) -> Packed | None:
        parts = PurePosixPath(entry.name).parts
        found = next((match for part in parts if (match := _MOODLE.fullmatch(part))), None)
        if not found:
            return None
        own = found["file"] if found.string == parts[-1] and found["file"] else parts[-1]
        return Packed(Person(MOODLE, found["name"], found["number"]), entry.name, own, entry.when, False, entry.read)

    return whose


def _of_canvas(named: Mapping[str, Entry]) -> Whose:
    def whose(entry: Entry) -> Packed | None:
        found = _CANVAS.fullmatch(PurePosixPath(entry.name).name)
        if not found:
            return None
        person, own = Person(CANVAS, found["name"] or "", found["number"]), found["file"] or found["typed"]
        return Packed(person, entry.name, own, entry.when, bool(found["late"]), entry.read, int(found["id"] or 0))

    return whose


def _of_brightspace(named: Mapping[str, Entry]) -> Whose:
    def whose(entry: Entry) -> Packed | None:
        *folders, own = PurePosixPath(entry.name).parts
        found = next((match for part in folders if (match := _BRIGHTSPACE.fullmatch(part))), None)
        if not found:
            return None
        clock = re.sub(r"\b(\d{1,2})(\d\d)(?=\s*[AP]M\b|$)", r"\1:\2", found["when"])  # 1030 AM
        person = Person(BRIGHTSPACE, found["name"], found["number"])
        return Packed(person, entry.name, own, moment(clock), False, entry.read)

    return whose


def _of_blackboard(named: Mapping[str, Entry]) -> Whose:
    attempts = [match for name in named if (match := _BLACKBOARD.fullmatch(PurePosixPath(name).name))]
    titles = {match["title"] for match in attempts}
    title = _shared(sorted(titles) if len(titles) > 1 else [title.rpartition("_")[0] + "_" for title in titles])
    title = title[: title.rfind("_") + 1]  # of the assignment; the person's id comes after it
    people = {}
    for name, entry in named.items():
        if _is_the_system_s(BLACKBOARD, name):
            says = re.search(r"^\s*\w+:\s*(.+?) \((\S+)\)\s*$", _text(entry), re.MULTILINE)  # Name: Jane Doe (jdoe)
            if says and (match := _BLACKBOARD.fullmatch(PurePosixPath(name).name)):
                people[match["title"]] = Person(BLACKBOARD, says[1], login=says[2])

    def whose(entry: Entry) -> Packed | None:
        found = _BLACKBOARD.fullmatch(PurePosixPath(entry.name).name)
        if not found:
            return None
        login = found["title"].removeprefix(title)
        person = people.get(found["title"]) or Person(BLACKBOARD, login, login=login)
        when = _clock(found["when"], "%Y-%m-%d-%H-%M-%S")
        return Packed(person, entry.name, found["file"], when, False, entry.read)

    return whose


def _of_sakai(named: Mapping[str, Entry]) -> Whose:
    def whose(entry: Entry) -> Packed | None:
        path = PurePosixPath(entry.name)
        for folder in reversed(path.parents):  # what lies further in a student may have named
            clock, match = named.get(str(folder / "timestamp.txt")), _SAKAI.fullmatch(folder.name)
            if clock and match:
                when = _clock(_text(clock)[:14], "%Y%m%d%H%M%S")
                last, comma, first = match["name"].partition(", ")
                person = Person(SAKAI, f"{first} {last}" if comma else last, login=match["login"])
                return Packed(person, entry.name, path.name, when, False, entry.read)
        return None

    return whose


def _of_forms(named: Mapping[str, Entry]) -> Whose:
    """The name is the part that is no file's: the last one, or the first, as most files say and not a single one."""
    stems = [PurePosixPath(name).stem for name in named]
    first, last = (sum(_is_of_a_lab(stem.split(_FORMS)[end]) for stem in stems) for end in (0, -1))
    at = 0 if last > first else -1

    def whose(entry: Entry) -> Packed | None:
        path = PurePosixPath(entry.name)
        first, _, rest = path.stem.partition(_FORMS)
        name, own = (first, rest) if at == 0 else path.stem.rpartition(_FORMS)[::-2]
        return Packed(Person(FORMS, name.strip()), entry.name, f"{own}{path.suffix}", entry.when, False, entry.read)

    return whose


def _is_of_a_lab(words: str) -> bool:
    said = words.lower().replace(" ", "_")
    return any(lab in said or re.fullmatch(rf"(lab_?)?{lab.partition('_')[0]}", said) for lab in labs.NAMES)


def _shared(several: Sequence[Any]) -> Any:
    """What all texts, or all tuples, begin with."""
    least, most = min(several), max(several)
    return least[: next((at for at, one in enumerate(least) if one != most[at]), len(least))]


def _of_folders(named: Mapping[str, Entry]) -> Whose:
    """A student is the first folder that not all share: a repository and not what lies in it. Of one alone, it is the innermost."""
    of = {name: tuple(part for part in PurePosixPath(name).parts[:-1] if part not in _NOBODY) for name in named}
    handed_in = [of[name] for name in named if is_archive(name) or ".ipynb" in name.lower()]
    shared = _shared(handed_in) if handed_in else ()
    alone = all(folders == shared for folders in handed_in)

    def whose(entry: Entry) -> Packed | None:
        folders, file = of[entry.name], PurePosixPath(entry.name).name
        below = folders[len(shared) :] if folders[: len(shared)] == shared else ()
        student = shared[-1] if alone and shared else below[0] if below else ""
        return Packed(Person(PLAIN, student), entry.name, file, entry.when, False, entry.read) if student else None

    return whose


_READERS: dict[str, Callable[[Mapping[str, Entry]], Whose]] = {
    MOODLE: _of_moodle,
    CANVAS: _of_canvas,
    BRIGHTSPACE: _of_brightspace,
    BLACKBOARD: _of_blackboard,
    SAKAI: _of_sakai,
    FORMS: _of_forms,
    PLAIN: _of_folders,
}


def _text(entry: Entry) -> str:
    try:
        return entry.read().decode("utf-8-sig", "replace")
    except Unusable:
        return ""


def _clock(text: str, form: str) -> datetime | None:
    """In this machine's time zone."""
    try:
        return datetime.strptime(text.strip(), form).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
