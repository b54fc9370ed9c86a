"""The marks of a class in a table of ours, and as Canvas and Moodle import them.

A mark is what was measured, of as many points as can be measured on that machine (one number a lab and machine), and what a person
gave by hand. Canvas and Moodle get the percentage of it, in points of the maximum that is set there."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader import labs
from grader.classroom.summary import GRADED, UNREADABLE, Row
from grader.errors import UserError
from grader.safe_text import no_formula, one_line
from grader.submission import decoded

UNMARKED = "explanation not marked yet"
ABSENT = "nothing handed in"
COLUMNS = (
    "lab",
    "student",
    "points",
    "measurable maximum",
    "manual points",
    "manual maximum",
    "late penalty",
    "percentage",
    "quick or full",
    "when",
    "on",
    "note",
)


@dataclass(frozen=True)
class Mark:
    """One student's mark of one lab. manual: None while nobody has marked it, or where there is no gradebook."""

    lab: str
    student: str
    points: float | None
    most: float | None
    manual: float | None = None
    manual_most: float = 0.0
    penalty: float = 0.0
    quick: bool = False
    when: str = ""
    on: str = ""
    note: str = ""
    first_name: str = ""
    last_name: str = ""
    email: str = ""

    @property
    def percentage(self) -> float | None:
        """Of what could be had; while the manual part is open, of the rest. None where there is no mark."""
        if self.points is None or not self.most:
            return None
        by_hand = (self.manual, self.manual_most) if self.manual is not None else (0.0, 0.0)
        return max(0.0, round(100 * (self.points + by_hand[0] - self.penalty) / (self.most + by_hand[1]), 2))

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip()


def marks(made: Sequence[Row], gradebook: Path) -> list[Mark]:
    """One for each grade, and for each student of the gradebook who handed nothing in, by lab and student."""
    found = [_mark(row) for row in made]
    if gradebook.exists():
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{gradebook}?timeout=120") as book:
            found = [_by_hand(book, mark) for mark in found] + list(_absent(book, found))
            people = {student.id: student for student in book.students}
            found = [_named(mark, people.get(mark.student)) for mark in found]
    return sorted(found, key=lambda mark: (labs.NAMES.index(mark.lab), mark.student))


def _mark(row: Row) -> Mark:
    counts = row.status in (GRADED, UNREADABLE)
    note = row.why if counts else f"{row.status}: {row.why}".removesuffix(": ")
    points = row.score if counts else None
    return Mark(
        row.lab, row.student, points, row.measured_max, quick=row.quick, when=row.date, on=row.machine, note=note
    )


def _by_hand(book: Any, mark: Mark) -> Mark:
    """With what a person gave, and what it cost to be late."""
    from nbgrader.api import MissingEntry

    try:
        submission = book.find_submission(mark.lab, mark.student)
        grades = book.find_submission_notebook(mark.lab, mark.lab, mark.student).grades
    except (MissingEntry, UnicodeEncodeError):
        return replace(mark, note=mark.note or "not in the gradebook yet: `nbgrader autograde`")
    measured = {check.name for check in labs.get(mark.lab).checks}
    theirs = [grade for grade in grades if grade.name not in measured]
    changed = sum(
        grade.manual_score - (grade.auto_score or 0.0)
        for grade in grades
        if grade.name in measured and grade.manual_score is not None
    )
    given = [grade.auto_score if grade.manual_score is None else grade.manual_score for grade in theirs]
    manual = sum(given) + sum(grade.extra_credit or 0.0 for grade in grades) if None not in given else None
    return replace(
        mark,
        points=None if mark.points is None else round(mark.points + changed, 2),
        manual=manual,
        manual_most=sum(grade.max_score for grade in theirs),
        penalty=submission.late_submission_penalty or 0.0,
        note=mark.note or (UNMARKED if manual is None else ""),
    )


def _absent(book: Any, found: Sequence[Mark]) -> Iterable[Mark]:
    for lab in dict.fromkeys(mark.lab for mark in found):
        theirs = [mark for mark in found if mark.lab == lab]
        most = max((mark.most for mark in theirs if mark.most), default=None)
        by_hand = max(mark.manual_most for mark in theirs)
        for student in book.students:
            if student.id not in {mark.student for mark in theirs}:
                yield Mark(lab, student.id, 0.0, most, 0.0, by_hand, note=ABSENT)


def _named(mark: Mark, person: Any) -> Mark:
    if person is None:
        return mark
    names = (person.first_name or "", person.last_name or "", person.email or "")
    return replace(mark, first_name=names[0], last_name=names[1], email=names[2])


def table(made: Iterable[Mark]) -> str:
    """Our own CSV."""
    rows = [
        (
            mark.lab,
            mark.student,
            mark.points,
            mark.most,
            mark.manual,
            mark.manual_most or None,
            mark.penalty or None,
            mark.percentage,
            "quick" if mark.quick else "full" if mark.when else "",
            mark.when,
            mark.on,
            mark.note,
        )
        for mark in made
    ]
    return _csv([COLUMNS, *([_safe(cell) for cell in row] for row in rows)])


def _safe(cell: Any) -> Any:
    if isinstance(cell, str):
        return no_formula(one_line(cell))
    return "" if cell is None else f"{cell:g}" if isinstance(cell, float) else cell


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


# ---------------------------------------------------------------- Canvas and Moodle

People = Mapping[
    tuple[str, str], str
]  # (student, lab) -> the number that Canvas or Moodle knows them by, from `grader class collect`
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
# what Moodle's grading worksheet calls its columns, in English and German
IDENTIFIER = ("Identifier", "ID", "Teilnehmer/in")
FULL_NAME = ("Full name", "Vollständiger Name", "Name")
EMAIL = ("Email address", "E-Mail-Adresse", "E-Mail")
ID_NUMBER = ("ID number", "ID-Nummer", "Username", "Anmeldename")
GRADE = ("Grade", "Bewertung")
MAXIMUM = ("Maximum Grade", "Bestwertung", "Maximalbewertung", "Höchste Bewertung")


def canvas(made: Sequence[Mark], people: People, export: Path | None = None) -> tuple[str, list[str]]:
    """What Canvas imports under *Grades*, *Import*: (CSV, who has no row in it). export: the gradebook as Canvas exports it, whose
    columns and points possible are kept; without one, new columns of 100 points each."""
    named = list(dict.fromkeys(mark.lab for mark in made))
    if export is None:
        found: dict[str, list[Mark]] = {}
        for mark in made:
            found.setdefault(mark.student, []).append(mark)
        rows: list[list[Any]] = [["Points Possible", "", "", "", "", *([100] * len(named))]]
        for student, theirs in found.items():
            by_lab = {mark.lab: _share(mark, 100) for mark in theirs}
            name = theirs[0].name or student
            rows.append(
                [
                    name,
                    people.get((student, theirs[0].lab), ""),
                    "",
                    student,
                    "",
                    *(by_lab.get(lab, "") for lab in named),
                ]
            )
        return _csv([[*CANVAS, *named], *rows]), []
    head, body = read_table(export)
    if not {"Student", "ID"} <= set(head):
        raise UserError(
            f"{export} is not a gradebook of Canvas, because it has no columns Student and ID. Export it under Grades."
        )
    kept = [column for column in CANVAS if column in head]
    columns = {lab: next((name for name in head if lab in name or labs.get(lab).title in name), "") for lab in named}
    possible = next((row for row in body if row["Student"].strip() == "Points Possible"), {})
    written, rows = set(), []
    for row in body:
        special = not row["ID"].strip()  # the rows above the students
        theirs = [] if special else [mark for mark in made if _is(mark, people, row["ID"], _canvas_words(row))]
        written |= {(mark.lab, mark.student) for mark in theirs}
        cells = {mark.lab: _share(mark, _number(possible.get(columns[mark.lab], "")) or 100) for mark in theirs}
        if special:
            cells = {lab: row.get(columns[lab]) or (100 if row is possible else "") for lab in named}
        rows.append([*(row[column] for column in kept), *(cells.get(lab, "") for lab in named)])
    missing = [f"{mark.student}, {mark.lab}" for mark in made if (mark.lab, mark.student) not in written]
    return _csv([[*kept, *(columns[lab] or lab for lab in named)], *rows]), missing


def _canvas_words(row: Mapping[str, str]) -> list[str]:
    last, _, first = row["Student"].partition(",")
    return [row.get("SIS User ID", ""), row.get("SIS Login ID", ""), f"{first} {last}", row["Student"]]


def moodle(made: Sequence[Mark], people: People, worksheet: Path | None = None) -> tuple[str, list[str]]:
    """What Moodle imports: (CSV, who has no row in it). worksheet: the grading worksheet of one assignment, to be uploaded there
    again; without one, percentages for *Grades*, *Import*, *CSV file*."""
    named = list(dict.fromkeys(mark.lab for mark in made))
    if worksheet is None:
        found = {mark.student: mark for mark in made}
        of = {(mark.student, mark.lab): _share(mark, 100) for mark in made}
        rows = [[s, m.name, m.email, *(of.get((s, lab), "") for lab in named)] for s, m in found.items()]
        return _csv([["Username", "Full name", "Email address", *named], *rows]), []
    if len(named) != 1:
        raise UserError(f"A grading worksheet belongs to one assignment. Choose one of {', '.join(named)} with --lab.")
    head, body = read_table(worksheet)
    columns = {names: next((name for name in names if name in head), "") for names in (IDENTIFIER, FULL_NAME, EMAIL)}
    grade, most = (next((name for name in names if name in head), "") for names in (GRADE, MAXIMUM))
    if not grade or not columns[IDENTIFIER]:
        wanted = f"{IDENTIFIER[0]} and {GRADE[0]}"
        raise UserError(f"{worksheet} is not a grading worksheet of Moodle, because it has no columns {wanted}.")
    written = set()
    for row in body:
        number = "".join(re.findall(r"\d+", row[columns[IDENTIFIER]]))
        words = [row.get(name, "") for name in (*columns.values(), *ID_NUMBER)]
        for mark in made:
            if _is(mark, people, number, words):
                written.add(mark.student)
                row[grade] = str(_share(mark, _number(row.get(most, "")) or 100))
    rows = [[row[name] for name in head] for row in body]
    return _csv([head, *rows]), [mark.student for mark in made if mark.student not in written]


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """(columns, rows) of a CSV, whatever its encoding and separator. Raises UserError for a file that cannot be read."""
    try:
        text = decoded(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Give the path of a CSV file.") from None
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if any(map(str.strip, row))]
    if not rows:
        raise UserError(f"{path} is empty. Give a CSV file with a line of column names.")
    head = [name.strip() for name in rows[0]]
    return head, [dict(zip(head, row + [""] * len(head), strict=False)) for row in rows[1:]]


def _share(mark: Mark, most: float) -> float | str:
    """The mark in points of `most`; "" where there is none."""
    return "" if mark.percentage is None else round(mark.percentage * most / 100, 2)


def _is(mark: Mark, people: People, number: str, words: Iterable[str]) -> bool:
    """Whether a row with this number, or with these names, is a mark's student."""
    if (mark.student, mark.lab) in people:
        return people[mark.student, mark.lab] == number.strip()
    own = {_plain(word) for word in (mark.student, mark.name, mark.email) if word}
    return number.strip() == mark.student or any(_plain(word) in own for word in words if word.strip())


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _number(text: Any) -> float | None:
    try:
        return float(str(text).replace(",", "."))
    except ValueError:
        return None
