"""`grader class collect`: what a class handed in, put where it is graded."""

import argparse
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader import labs
from grader.classroom.archives import is_archive
from grader.classroom.collect import Collected, Taken, collect
from grader.classroom.marks import read_table
from grader.classroom.people import CANVAS, MOODLE, Entry, assigned, gradebook_at, groups_of, named, who_is
from grader.classroom.store import Store
from grader.classroom.worksheet import IDENTIFIER, handed_in
from grader.classroom.worksheet import column as column_of
from grader.errors import UserError
from grader.frontends.classroom import GRADEBOOK
from grader.result import write_text
from grader.safe_text import clean, csv_text, no_formula, tell

LIST = "collected.csv"  # in the folder of the submissions: who is who
COLUMNS = ("student", "lab", "system", "number", "name", "late", "when", "file")
DOWNLOADED = "downloaded"  # a column that older lists do not have
# in which a list has the students' ids: the first of them that is there; of an address what stands before the @
ID_COLUMNS = (
    "username",
    "anmeldename",
    "sis login id",
    "login_id",
    "id number",
    "id-nummer",
    "email address",
    "e-mail-adresse",
    "id",
)


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=take_in)
    sub.description = (
        "Puts the notebooks of Moodle's *Download all submissions*, of Canvas' *Download Submissions*, of what "
        "Brightspace, Blackboard, Sakai, ILIAS, Gradescope and Google's forms pack, and of folders of students to "
        "SUBMITTED/STUDENT/LAB/LAB.ipynb, with their times in timestamp.txt. Each notebook says which lab it is of. "
        "Students get their ids from --students, or from the gradebook by name. Without either, their names are used."
    )
    sub.epilog = "Exit status: 0 if the newest of everybody was taken and can be read. 1 if not, and the output names it. 2 for unusable input."
    words = "a .zip or .tar.gz as you downloaded it, a folder with several, or a folder of the students' folders"
    sub.add_argument("archives", type=Path, nargs="+", metavar="ZIP", help=words)
    words = "folder for the submissions (default: submitted)"
    sub.add_argument("--to", type=Path, default=Path("submitted"), metavar="SUBMITTED", help=words)
    sub.add_argument("--lab", type=labs.full, default="", help="take only this lab's notebooks")
    who = (
        "CSV with the students' ids (id, username, SIS Login ID), their names or numbers, and their groups. Canvas' "
        "gradebook and Moodle's worksheet will do"
    )
    sub.add_argument("--students", type=Path, metavar="FILE", help=who)


class _Place(Store):
    """The folder of the submissions, into which one person collects at a time: the list of who is who is written anew."""

    writer, option = "`grader class collect`", "--to"


def take_in(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 where something was not taken."""
    with _Place(options.to).locked():
        return _take_in(options)


def _take_in(options: argparse.Namespace) -> int:
    archives = [one for each in options.archives for one in ((_archives(each) or [each]) if each.is_dir() else [each])]
    book = options.to.absolute().parent / GRADEBOOK
    listed = _listed(options.students) if options.students else []
    times = handed_in(*read_table(options.students)) if options.students else {}
    known, due = who_is(listed, _people(book)), _due(book)
    all_done = Collected()
    for archive in archives:
        before = remembered(options.to)
        done = collect(archive, options.to, known, options.lab, due, before, times, groups_of(listed))
        for name in ("taken", "left", "older", "broken", "beside", "twice", "alike"):
            getattr(all_done, name).extend(getattr(done, name))
        if not (done.taken or done.left or done.beside):
            all_done.left.append(f"{archive}: it holds nothing that was handed in")
        for each in done.taken:
            print(clean(_line(each)))
        _remember(options.to, done.taken)
    students = {each.student for each in all_done.taken}
    print(f"{len(all_done.taken)} notebooks of {len(students)} students in {options.to}")
    _list("Handed in more than once, so the newest was taken", all_done.older, print)
    _list("Handed in beside a notebook, and left in the archive", all_done.beside, print)
    _list("Taken, though nothing in it can be read, so ask for it again", all_done.broken, tell)
    _list("Of a lab that your gradebook does not have", _not_set(book, all_done.taken), tell)
    _list("Perhaps one student with two folders", all_done.twice, tell)
    _list("Students who share a name, so give --students", all_done.alike, tell)
    for of_moodle, words in ((True, _MOODLE_TIMES), (False, _NO_TIMES)):
        if untimed := sum((each.person.system == MOODLE) == of_moodle and not each.when for each in all_done.taken):
            tell(f"{untimed} without a time, so they never count as late. {words}")
    _list("Not taken", all_done.left, tell)
    return int(bool(all_done.left or all_done.broken))


_MOODLE_TIMES = (
    "Moodle's archive has only the time of your download. Give --students and the grading worksheet that you "
    "download with it, in English or German."
)
_NO_TIMES = "Where somebody was late, write timestamp.txt beside the notebook (2026-12-01 13:30:00 UTC)."


def _archives(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and is_archive(path.name))


def _list(heading: str, lines: list[str], say: Callable[[str], None]) -> None:
    if lines:
        say(f"{heading}: {len(lines)}")
    for line in lines:
        say(f"  {clean(' '.join(line.split()))}")


def _line(each: Taken) -> str:
    when = f", {each.when:%Y-%m-%d %H:%M} UTC" if each.when else ", without a time"
    return f"{each.student}/{each.lab}: {each.how}, from {each.path}{when}{', late' * each.late}"


# ---------------------------------------------------------------- who is who


def _listed(path: Path) -> list[Entry]:
    """The students of Canvas' gradebook, of Moodle's worksheet, or of any table; none of a worksheet that has only their numbers."""
    head, body = read_table(path)
    filled = [name for name in head if any(row[name].strip() for row in body)]  # systems export empty columns, too
    column = next((name for want in ID_COLUMNS for name in filled if name.lower() == want), "")
    if not column and column_of(IDENTIFIER, head):
        return []
    if not column:
        raise UserError(f"{path} has no column with the students' ids. Call one of them id.")
    ids = [row[column].strip() for row in body]
    short = Counter(own.partition("@")[0] for own in ids)
    found = []
    for own, row in zip(ids, body, strict=True):
        name = own.partition("@")[0]
        first, last = (next((row[n] for n in head if n.lower() in names), "") for names in _NAMES)
        # of two addresses that begin alike, both stay whole
        if own := name if short[name] == 1 else own:
            group = next((row[n].strip() for n in head if n.lower() in _GROUPS), "")
            found.append(Entry(own, (*row.values(), *named(first, last)), _numbers(row, column), group))
    return found


_NAMES = (
    ("first_name", "first name", "firstname", "vorname"),
    ("last_name", "last name", "lastname", "surname", "nachname"),
)


_GROUPS = ("group", "gruppe", "group_name", "group name")  # Moodle's worksheets, and the groups that Canvas exports


def _numbers(row: dict[str, str], own: str) -> frozenset[str]:
    """What the archive's number of a student may be. Whoever has columns of Canvas or Moodle has it in one of them."""
    if {"Student", "ID"} <= row.keys():
        return frozenset({row["ID"].strip()})
    if column := next((name for name in IDENTIFIER if name in row and name != own), ""):
        return frozenset(re.findall(r"\d+", row[column])[-1:])
    return frozenset(value.strip() for name, value in row.items() if name != own and value.strip().isdigit())


def _people(book: Path) -> list[Entry]:
    with gradebook_at(book) as gradebook:
        students = gradebook.students if gradebook else []
        return [Entry(s.id, named(s.first_name or "", s.last_name or "")) for s in students]


def _not_set(book: Path, taken: list[Taken]) -> list[str]:
    """What was taken of labs that are no assignments: handed in by mistake, or the gradebook was not told."""
    with gradebook_at(book) as opened:
        set_ones = assigned(opened) if opened else set(labs.NAMES)
    return [f"{each.student}/{each.lab}, from {each.path}" for each in taken if each.lab not in set_ones]


def _due(book: Path) -> Callable[[str], datetime | None]:
    """When a lab was due, as the gradebook has it."""
    with gradebook_at(book) as gradebook:
        dates: dict[str, Any] = {each.name: each.duedate for each in (gradebook.assignments if gradebook else [])}
    return lambda lab: dates[lab].replace(tzinfo=UTC) if dates.get(lab) else None


def _remember(submitted: Path, taken: list[Taken]) -> None:
    """Who is who, for the marks that go back."""
    if not taken:
        return
    names = (*COLUMNS, DOWNLOADED)
    new = {(each.student, each.lab): each for each in taken}
    rows = [row for row in remembered(submitted) if (row["student"], row["lab"]) not in new]
    for each in new.values():
        when, downloaded = (f"{time:%Y-%m-%d %H:%M:%S} UTC" if time else "" for time in (each.when, each.downloaded))
        person = each.person
        who = (each.student, each.lab, person.system, person.number, no_formula(person.name))
        values = (*who, "late" * each.late, when, no_formula(each.path), downloaded)
        rows.append(dict(zip(names, values, strict=True)))
    rows.sort(key=lambda row: (row["lab"], row["student"]))
    write_text(submitted / LIST, csv_text([names, *([row.get(name) for name in names] for row in rows)]))


def remembered(submitted: Path) -> list[dict[str, str]]:
    """Who was collected: a row of COLUMNS for each student and lab."""
    path = submitted / LIST
    if not path.exists():
        return []
    head, rows = read_table(path)
    return rows if set(COLUMNS) <= set(head) else []


def numbers(submitted: Path, system: str) -> dict[tuple[str, str], str]:
    """(student, lab) -> the number in "canvas" or "moodle". Canvas' is a person's, so it is at (student, "") too."""
    rows = [row for row in remembered(submitted) if row["system"] == system]
    everywhere = {(row["student"], ""): row["number"] for row in rows if system == CANVAS}
    return everywhere | {(row["student"], row["lab"]): row["number"] for row in rows}
