"""Whose file of an archive is whose: how Moodle, Canvas, Brightspace, Blackboard, Sakai, ILIAS and Gradescope name what they pack,
and what else there is: folders of students, clones of their repositories, files that Google's forms name after them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from grader import labs
from grader.classroom.archives import Entry, Unusable, is_archive
from grader.classroom.people import (
    BLACKBOARD,
    BRIGHTSPACE,
    CANVAS,
    FORMS,
    GRADESCOPE,
    ILIAS,
    MOODLE,
    PLAIN,
    SAKAI,
    Person,
)
from grader.classroom.worksheet import moment

# Jane Doe_1234567_assignsubmission_file_/x.ipynb, and without folders Jane Doe_1234567_assignsubmission_file_x.ipynb. Of a group there
# is its name and number since Moodle 4; those without a group have no number
_MOODLE = re.compile(r"(?P<name>.+?)(?:_(?P<number>\d+))?_assignsubmission_[a-z]+(?:_(?P<file>.*))?")
# doejane_LATE_12345_67890_x.ipynb: the second number is the file's, larger for what was handed in later. Graded anonymously there
# is no name, or "anon"; what was typed in or linked is doejane_12345_text.html
_CANVAS = re.compile(
    r"(?:(?P<name>.+?)_)??(?P<late>LATE_)?(?P<number>\d+|(?<=anon_)\w{5}|(?<=anon_late_)\w{5})"
    r"_(?:(?P<id>\d{1,18})_(?P<file>.+)|(?P<typed>(?:text|link)\.html))",
    re.IGNORECASE,
)
# 62334-99 - Jane Doe - Nov 20, 2026 1030 AM/x.ipynb: a folder of each attempt, with the number of the person; in older editions the
# beginning of a file's name, and where it is switched on with the id that the school gave
_BRIGHTSPACE = re.compile(
    r"(?P<number>\d+)-\d+ ?- (?:(?P<login>\w*\d\w*) ?- )?(?P<name>.+?) ?- (?P<when>[^-]*\b20\d\d\b[^-]*?)(?: ?- (?P<file>.+))?"
)
# Lab201c_jdoe_attempt_2026-11-20-10-30-00_x.ipynb, and beside it the same without a file's name, .txt, which says whose it is
_BLACKBOARD = re.compile(r"(?P<title>.+?)_attempt_(?P<when>20\d\d(?:-\d\d){5})(?:_(?P<file>.+)|\.txt)")
# Lab 1c/Doe, Jane(jdoe)/Submission attachment(s)/x.ipynb, and Lab 1c/Doe, Jane(jdoe)/timestamp.txt
_SAKAI = re.compile(r"(?P<name>[^/]+?) ?\((?P<login>[^()/]+)\)")
# Doe_Jane_jd1_1234/x.ipynb, in the folder of a team where there are teams
_ILIAS = re.compile(r"(?P<last>[^\d_]+)_(?P<first>[^\d_]+)_(?P<login>.+)_(?P<number>\d+)")
_ILIAS_LATE = re.compile(r"(?:Late Submission|Versp\w+tete Abgabe) - ")
# assignment_12_export/submission_345/x.ipynb, and beside these folders the file that says whose they are
_GRADESCOPE = "submission_metadata.yml"
_TURNED_IN, _TEAMS = (
    "Submitted files",
    {"Submitted files", "Working files"},
)  # of Microsoft's Teams, each with the students' folders
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
    read: Callable[..., bytes]  # as `Entry.read`
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
    whose = _READERS.get(system) or _READERS_OF_ALL[system](named)
    for name, entry in sorted(named.items()):
        if ".." in PurePosixPath(name).parts or name.startswith("/") or re.match(r"[A-Za-z]:", name):
            yield f"{name}: its path leads out of the archive"
        elif entry.is_link:
            yield f"{name}: a link to another file"
        elif not _is_the_system_s(system, name):
            told = whose(entry)
            if told is None:
                yield f"{name}: it does not say whose it is, so put it at submitted/STUDENT/LAB/LAB.ipynb yourself"
            yield from told or ()
    yield from _empty(found, named)


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
    """Whose archive it is, as most of its folders and files say: each of a system's own says so, whatever a student calls files."""
    paths = [PurePosixPath(name) for name in names]
    works = list(filter(_is_work, paths)) or paths
    depth = len(_shared([path.parts[:-1] for path in works])) if works else 0
    gradescope = _gradescope(paths)
    sakai = {path.parent for path in paths if path.name == "timestamp.txt" and _SAKAI.fullmatch(path.parent.name)}
    found: dict[str, set[str]] = {
        system: set() for system in (MOODLE, CANVAS, BRIGHTSPACE, BLACKBOARD, SAKAI, ILIAS, GRADESCOPE)
    }
    for path in works:
        parts = path.parts
        says = {
            MOODLE: any(map(_MOODLE.fullmatch, parts)),
            CANVAS: len(parts) == depth + 1 and _CANVAS.fullmatch(path.name),
            BRIGHTSPACE: any(map(_BRIGHTSPACE.fullmatch, parts)),
            BLACKBOARD: len(parts) == depth + 1 and _BLACKBOARD.fullmatch(path.name),
            SAKAI: any(folder in sakai for folder in path.parents),
            ILIAS: any(map(_ILIAS.fullmatch, parts[:-1])),
            GRADESCOPE: gradescope and gradescope.parent in path.parents,
        }
        for system in filter(says.get, says):  # a student's folder counts once, whatever is in it
            found[system].add(parts[depth])
    most = max(found, key=lambda system: len(found[system]))
    all_of_them = len({path.parts[depth] for path in works})
    if 2 * len(found[most]) >= all_of_them + (most not in (CANVAS, BLACKBOARD)):
        return most
    flat = len({path.parent for path in paths}) == 1 and all(_FORMS in path.stem for path in paths)
    return FORMS if flat and (len(paths) > 1 or "(File responses)" in str(paths[0])) else PLAIN


def _is_work(path: PurePosixPath) -> bool:
    return is_archive(path.name) or ".ipynb" in path.name.lower()


def _is_the_system_s(system: str, name: str) -> bool:
    """Whether it says something about the class, and nobody handed it in."""
    own = PurePosixPath(name).name
    if system == BLACKBOARD:
        return bool((match := _BLACKBOARD.fullmatch(own)) and not match["file"])
    if system == SAKAI:
        of_sakai = own in ("grades.csv", "grades.xls", "timestamp.txt", "comments.txt", "feedbackText.html")
        return of_sakai or "/Feedback" in name
    return own == {BRIGHTSPACE: "index.html", GRADESCOPE: _GRADESCOPE}.get(system)


# ---------------------------------------------------------------- one reader of each system

Told = Sequence[Packed] | None  # one for each of a group; None where nothing says whose it is
Whose = Callable[[Entry], Told]


def _named_part(system: re.Pattern[str], entry: Entry) -> tuple[re.Match[str], str] | None:
    """The part of a path that a system named, and the file's own name."""
    parts = PurePosixPath(entry.name).parts
    found = next((match for part in parts if (match := system.fullmatch(part))), None)
    return found and (found, (found.string == parts[-1] and found["file"]) or parts[-1])


def _of_moodle(entry: Entry) -> Told:
    if not (named := _named_part(_MOODLE, entry)):
        return None
    found, own = named
    person = Person(MOODLE, found["name"], found["number"] or "")
    return [Packed(person, entry.name, own, entry.when, False, entry.read)]


def _of_canvas(entry: Entry) -> Told:
    found = _CANVAS.fullmatch(PurePosixPath(entry.name).name)
    if not found:
        return None
    person, own = Person(CANVAS, found["name"] or "", found["number"]), found["file"] or found["typed"]
    return [Packed(person, entry.name, own, entry.when, bool(found["late"]), entry.read, int(found["id"] or 0))]


def _of_brightspace(entry: Entry) -> Told:
    if not (named := _named_part(_BRIGHTSPACE, entry)):
        return None
    found, own = named
    clock = re.sub(r"\b(\d{1,2})(\d\d)(?=\s*[AP]M\b|$)", r"\1:\2", found["when"])  # 1030 AM
    person = Person(BRIGHTSPACE, found["name"], found["number"], found["login"] or "")
    return [Packed(person, entry.name, own, moment(clock), False, entry.read)]


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

    def whose(entry: Entry) -> Told:
        found = _BLACKBOARD.fullmatch(PurePosixPath(entry.name).name)
        if not found:
            return None
        login = found["title"].removeprefix(title)
        person = people.get(found["title"]) or Person(BLACKBOARD, login, login=login)
        when = _clock(found["when"], "%Y-%m-%d-%H-%M-%S")
        return [Packed(person, entry.name, found["file"], when, False, entry.read)]

    return whose


def _of_sakai(named: Mapping[str, Entry]) -> Whose:
    def whose(entry: Entry) -> Told:
        path = PurePosixPath(entry.name)
        for folder in reversed(path.parents):  # what lies further in a student may have named
            clock, match = named.get(str(folder / "timestamp.txt")), _SAKAI.fullmatch(folder.name)
            if clock and match:
                when = _clock(_text(clock)[:14], "%Y%m%d%H%M%S")
                last, comma, first = match["name"].partition(", ")
                person = Person(SAKAI, f"{first} {last}" if comma else last, login=match["login"])
                return [Packed(person, entry.name, path.name, when, False, entry.read)]
        return None

    return whose


def _of_ilias(entry: Entry) -> Told:
    *folders, own = PurePosixPath(entry.name).parts
    found = next((match for part in folders if (match := _ILIAS.fullmatch(part))), None)
    if not found:
        return None
    person = Person(ILIAS, f"{found['first']} {found['last']}", found["number"], found["login"])
    late = _ILIAS_LATE.match(own)
    return [Packed(person, entry.name, own[late.end() if late else 0 :], entry.when, bool(late), entry.read)]


def _gradescope(paths: Iterable[PurePosixPath]) -> PurePosixPath | None:
    """Gradescope's own file: what lies further in a student may have named."""
    found = [path for path in paths if path.name == _GRADESCOPE]
    return min(found, key=lambda path: len(path.parts), default=None)


def _of_gradescope(named: Mapping[str, Entry]) -> Whose:
    import yaml  # comes with nbgrader

    own = _gradescope(map(PurePosixPath, named))
    folder = own.parent if own else PurePosixPath()
    try:  # the base loader makes text of everything, and nothing else
        said = yaml.load(_text(named[str(own)]), getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError, KeyError):
        said = None

    def whose(entry: Entry) -> Told:
        path = PurePosixPath(entry.name)
        key = path.relative_to(folder).parts[0] if folder in path.parents else ""
        about = said.get(key) if isinstance(said, dict) else None
        about = about if isinstance(about, dict) else {}
        group = about.get(":submitters")
        if not isinstance(group, list) or not all(isinstance(each, dict) for each in group):
            return None
        when = _clock_of_ruby(str(about.get(":created_at")))
        people = [Person(GRADESCOPE, *_submitter(each)) for each in group]
        return [Packed(person, entry.name, path.name, when, False, entry.read) for person in people] or None

    return whose


def _submitter(said: Mapping[str, Any]) -> tuple[str, str, str]:
    """Name, number and login. Only the address is always there."""
    name, number, address = (str(said.get(key) or "").strip() for key in (":name", ":sid", ":email"))
    return name or address, "", number or address.partition("@")[0]


def _clock_of_ruby(text: str) -> datetime | None:
    """2026-11-20 10:30:00.123456789 Z"""
    found = re.match(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.\d]* ?(Z|[+-]\d\d:?\d\d)?", text)
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}{found[3] or 'Z'}").astimezone(UTC) if found else None
    except (ValueError, OverflowError):
        return None


def _of_forms(named: Mapping[str, Entry]) -> Whose:
    """The name is the part that is no file's: the last one, or the first, as most files say and not a single one."""
    stems = [PurePosixPath(name).stem for name in named]
    first, last = (sum(_is_of_a_lab(stem.split(_FORMS)[end]) for stem in stems) for end in (0, -1))
    at = 0 if last > first else -1

    def whose(entry: Entry) -> Told:
        path = PurePosixPath(entry.name)
        first, _, rest = path.stem.partition(_FORMS)
        name, own = (first, rest) if at == 0 else path.stem.rpartition(_FORMS)[::-2]
        return [Packed(Person(FORMS, name.strip()), entry.name, f"{own}{path.suffix}", entry.when, False, entry.read)]

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
    handed_in = [of[name] for name in named if _is_work(PurePosixPath(name))]
    shared = _shared(handed_in) if handed_in else ()
    drafts = {folders[len(shared) :][:1] for folders in handed_in} == {(name,) for name in _TEAMS}
    if drafts:  # a student's work lies in both of Teams' folders
        shared = (*shared, _TURNED_IN)
    alone = all(folders == shared for folders in handed_in)

    def whose(entry: Entry) -> Told:
        folders, file = of[entry.name], PurePosixPath(entry.name).name
        inside = folders[: len(shared)] == shared
        if drafts and not inside:
            return []
        below = folders[len(shared) :] if inside else ()
        student = shared[-1] if alone and shared else below[0] if below else ""
        return [Packed(Person(PLAIN, student), entry.name, file, entry.when, False, entry.read)] if student else None

    return whose


# by an entry's own path, and by all entries
_READERS: dict[str, Whose] = {
    MOODLE: _of_moodle,
    CANVAS: _of_canvas,
    BRIGHTSPACE: _of_brightspace,
    ILIAS: _of_ilias,
}
_READERS_OF_ALL: dict[str, Callable[[Mapping[str, Entry]], Whose]] = {
    BLACKBOARD: _of_blackboard,
    SAKAI: _of_sakai,
    GRADESCOPE: _of_gradescope,
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
