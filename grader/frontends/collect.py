"""`grader class collect`: what Moodle and Canvas pack of a class, put where it is graded."""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader import labs
from grader.classroom.collect import CANVAS, Collected, Person, Taken, collect
from grader.classroom.marks import read_table
from grader.errors import UserError
from grader.frontends.classroom import GRADEBOOK
from grader.result import write_text
from grader.safe_text import clean

LIST = "collected.csv"  # in the folder of the submissions: who is who
COLUMNS = ("student", "lab", "system", "number", "name", "late", "when", "file")
# in which a list has the students' ids: the first of them that is there; of an address what stands before the @
ID_COLUMNS = (
    "username",
    "anmeldename",
    "sis login id",
    "id number",
    "id-nummer",
    "email address",
    "e-mail-adresse",
    "id",
)


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=take_in)
    sub.description = (
        "Puts the notebooks of Moodle's *Download all submissions* and of Canvas' *Download Submissions* to "
        "SUBMITTED/STUDENT/LAB/LAB.ipynb, with their times in timestamp.txt. Each notebook says which lab it is of. "
        "Students get their ids from --students, or from the gradebook by name. Without either, their names are used."
    )
    sub.epilog = (
        "Exit status: 0 if everything was taken. 1 if something was not, which the output names. 2 for unusable input."
    )
    sub.add_argument(
        "archives", type=Path, nargs="+", metavar="ZIP", help=("a ZIP as you downloaded it, or a folder with several")
    )
    sub.add_argument(
        "--to",
        type=Path,
        default=Path("submitted"),
        metavar="SUBMITTED",
        help=("folder for the submissions (default: submitted)"),
    )
    sub.add_argument("--lab", type=labs.full, default="", help="take only this lab's notebooks")
    who = (
        "CSV with the students' ids (id, username, SIS Login ID), and their names or numbers. Canvas' gradebook "
        "and Moodle's worksheet will do"
    )
    sub.add_argument("--students", type=Path, metavar="FILE", help=who)


def take_in(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 where something was not taken."""
    archives = [zip for each in options.archives for zip in (sorted(each.glob("*.zip")) if each.is_dir() else [each])]
    if not archives:
        raise UserError(f"{options.archives[0]} holds no .zip file. Give the archive that Moodle or Canvas made.")
    book = options.to.absolute().parent / GRADEBOOK
    listed = _listed(options.students) if options.students else []
    known, due = _known(listed, _people(book)), _due(book)
    all_done = Collected()
    for archive in archives:
        done = collect(archive, options.to, known, options.lab, due)
        all_done.taken += done.taken
        all_done.left += done.left
        for each in done.taken:
            print(clean(_line(each)))
    _remember(options.to, all_done.taken)
    students = {each.student for each in all_done.taken}
    print(f"{len(all_done.taken)} notebooks of {len(students)} students in {options.to}")
    if all_done.left:
        _tell(f"Not taken: {len(all_done.left)}")
        for line in all_done.left:
            _tell(f"  {clean(' '.join(line.split()))}")
    return int(bool(all_done.left))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _line(each: Taken) -> str:
    when = f", {each.when:%Y-%m-%d %H:%M} UTC" if each.when else ", without a time"
    return f"{each.student}/{each.lab}: {each.how}, from {each.path}{when}{', late' * each.late}"


# ---------------------------------------------------------------- who is who

Rows = list[tuple[str, list[str]]]  # an id, and all that is said of its student


def _listed(path: Path) -> Rows:
    head, body = read_table(path)
    column = next((name for want in ID_COLUMNS for name in head if name.lower() == want), "")
    if not column:
        raise UserError(f"{path} has no column with the students' ids. Call one of them id.")
    found = []
    for row in body:
        first, last = (next((row[n] for n in head if n.lower() in names), "") for names in _NAMES)
        if own := row[column].strip().partition("@")[0]:
            found.append((own, [*row.values(), f"{first} {last}"]))
    return found


_NAMES = (("first_name", "first name", "vorname"), ("last_name", "last name", "surname", "nachname"))


def _people(book: Path) -> Rows:
    """Those of the gradebook."""
    if not book.exists():
        return []
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{book}?timeout=120") as opened:
        return [(s.id, [s.id, s.email or "", f"{s.first_name or ''} {s.last_name or ''}"]) for s in opened.students]


def _known(*lists: Rows) -> Callable[[Person], str]:
    """The id of a person in the first list that has exactly one such person."""

    def known(person: Person) -> str:
        for rows in lists:
            for fits in (_has_number, _has_name):
                found = {own for own, words in rows if fits(person, words)}
                if len(found) == 1:
                    return found.pop()
        return ""

    return known


def _has_number(person: Person, words: list[str]) -> bool:
    said = {
        person.number,
        f"Participant {person.number}",
        f"Teilnehmer/in {person.number}",
        f"Teilnehmer/in{person.number}",
    }
    return bool(person.number) and any(word.strip() in said for word in words)


def _has_name(person: Person, words: list[str]) -> bool:
    return any(_letters(person, word) == _letters(person, person.name) != "" for word in words)


def _letters(person: Person, text: str) -> str:
    """A name as its system writes it: Canvas has the last name first, in small letters, without anything else."""
    if person.system != CANVAS:
        last, comma, first = text.partition(",")
        return " ".join(f"{first} {last}".split() if comma else text.split()).casefold()
    if "," not in text and " " in text.strip():
        first, _, last = text.strip().rpartition(" ")
        text = f"{last}{first}"
    return re.sub(r"[\W_]", "", text).casefold()


def _due(book: Path) -> Callable[[str], datetime | None]:
    """When a lab was due, as the gradebook has it."""
    if not book.exists():
        return lambda lab: None
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{book}?timeout=120") as opened:
        dates: dict[str, Any] = {each.name: each.duedate for each in opened.assignments}
    return lambda lab: dates[lab].replace(tzinfo=UTC) if dates.get(lab) else None


def _remember(submitted: Path, taken: list[Taken]) -> None:
    """Who is who, for the marks that go back."""
    if not taken:
        return
    new = {(each.student, each.lab): each for each in taken}
    rows = [row for row in _remembered(submitted) if (row["student"], row["lab"]) not in new]
    for each in new.values():
        when = f"{each.when:%Y-%m-%d %H:%M:%S} UTC" if each.when else ""
        person = each.person
        values = (
            each.student,
            each.lab,
            person.system,
            person.number,
            person.name,
            "late" * each.late,
            when,
            each.path,
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: (row["lab"], row["student"])))
    write_text(submitted / LIST, file.getvalue())


def _remembered(submitted: Path) -> list[dict[str, str]]:
    path = submitted / LIST
    if not path.exists():
        return []
    head, rows = read_table(path)
    return rows if set(COLUMNS) <= set(head) else []


def numbers(submitted: Path, system: str) -> dict[tuple[str, str], str]:
    """(student, lab) -> the number that "canvas" or "moodle" knows them by."""
    return {(row["student"], row["lab"]): row["number"] for row in _remembered(submitted) if row["system"] == system}
