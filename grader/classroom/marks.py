"""The marks of a class in a table of ours, and as Canvas and Moodle import them.

A mark is what was measured, of as many points as can be measured on that machine (one number a lab and machine), and what a person
gave by hand. Canvas and Moodle get the percentage of it, in points of the maximum that is set there."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from grader import labs
from grader.classroom.people import assigned, folded, gradebook_at, letters, spoken_names
from grader.classroom.summary import GRADED, UNREADABLE, Row
from grader.classroom.worksheet import EMAIL, FULL_NAME, GRADE, ID_NUMBER, IDENTIFIER, MAXIMUM, column, number_in
from grader.errors import UserError
from grader.result import read_file
from grader.safe_text import csv_text, no_formula, one_line
from grader.submission import decoded

UNMARKED = "explanation not marked yet"
CHANGED = "explanation changed since it was marked"
ABSENT = "nothing handed in"
OLD_PENALTY = "late penalty from before the explanation was marked"


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
    inconclusive: bool = False  # whether only a part of the points is certain
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
    def unmarked(self) -> bool:
        """Whether an explanation waits for a person."""
        return self.manual is None and self.manual_most > 0

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}".strip()


# of our own CSV
COLUMNS: dict[str, Callable[[Mark], Any]] = {
    "lab": attrgetter("lab"),
    "student": attrgetter("student"),
    "points": attrgetter("points"),
    "measurable maximum": attrgetter("most"),
    "manual points": attrgetter("manual"),
    "manual maximum": lambda mark: mark.manual_most or None,
    "late penalty": lambda mark: mark.penalty or None,
    "percentage": attrgetter("percentage"),
    "quick or full": lambda mark: "quick" if mark.quick else "full" if mark.when else "",
    "when": attrgetter("when"),
    "on": attrgetter("on"),
    "note": attrgetter("note"),
}


def marks(made: Sequence[Row], gradebook: Path) -> list[Mark]:
    """One for each grade, and for each student of the gradebook who handed nothing in, by lab and student."""
    found = [_mark(row) for row in made]
    with gradebook_at(gradebook) as book:
        if book:
            found = [_by_hand(book, mark) for mark in found] + list(_absent(book, found))
            people = {student.id: student for student in book.students}
            found = [_named(mark, people.get(mark.student)) for mark in found]
    return sorted(found, key=lambda mark: (labs.NAMES.index(mark.lab), mark.student))


def _mark(row: Row) -> Mark:
    counts = row.status in (GRADED, UNREADABLE)
    note = row.why if counts else f"{row.status}: {row.why}".removesuffix(": ")
    if row.inconclusive:
        note = "; ".join(filter(None, (note, f"inconclusive: {', '.join(row.inconclusive)}")))
    return Mark(
        row.lab,
        row.student,
        row.score if counts else None,
        row.measured_max,
        quick=row.quick,
        when=row.date,
        on=row.machine,
        note=note,
        inconclusive=bool(row.inconclusive),
    )


def _by_hand(book: Any, mark: Mark) -> Mark:
    """With what a person gave, and what it cost to be late."""
    from nbgrader.api import MissingEntry

    try:
        submission = book.find_submission(mark.lab, mark.student)
        grades = book.find_submission_notebook(mark.lab, mark.lab, mark.student).grades
    except (MissingEntry, UnicodeEncodeError):
        if mark.lab in assigned(book):
            return replace(mark, note=mark.note or "not in the gradebook yet: `nbgrader autograde`")
        why = f"the gradebook does not have this lab: `nbgrader generate_assignment {mark.lab} --force`"
        return replace(mark, note="; ".join(filter(None, (mark.note, why))))
    measured = {check.name for check in labs.get(mark.lab).checks}
    theirs = [grade for grade in grades if grade.name not in measured]
    changed = sum(
        grade.manual_score - (grade.auto_score or 0.0)
        for grade in grades
        if grade.name in measured and grade.manual_score is not None
    )
    given = [grade.auto_score if grade.manual_score is None else grade.manual_score for grade in theirs]
    manual = sum(given) + sum(grade.extra_credit or 0.0 for grade in grades) if None not in given else None
    again = any(grade.needs_manual_grade and grade.manual_score is not None for grade in theirs)
    penalty = submission.late_submission_penalty or 0.0
    # nbgrader took off all that there was when it graded, as "zero" does
    before = sum(grade.auto_score or 0.0 for grade in grades if grade.name in measured)
    old = manual is not None and penalty and before <= penalty < before + changed + manual
    notes = [mark.note, UNMARKED if manual is None else CHANGED if again else "", OLD_PENALTY if old else ""]
    return replace(
        mark,
        points=None if mark.points is None else round(mark.points + changed, 2),
        manual=manual,
        manual_most=sum(grade.max_score for grade in theirs),
        penalty=penalty,
        note="; ".join(filter(None, notes)),
    )


def _absent(book: Any, found: Sequence[Mark]) -> Iterable[Mark]:
    set_ones = assigned(book)
    for lab in dict.fromkeys(mark.lab for mark in found if mark.lab in set_ones):
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
    rows = ([_safe(value(mark)) for value in COLUMNS.values()] for mark in made)
    return csv_text([COLUMNS, *rows])


def _safe(cell: Any) -> Any:
    if isinstance(cell, str):
        return no_formula(one_line(cell))
    return f"{cell:g}" if isinstance(cell, float) else cell


# ---------------------------------------------------------------- Canvas and Moodle

# (student, lab) -> the number that Canvas or Moodle knows them by, from `grader class collect`; lab "" for any lab
People = Mapping[tuple[str, str], str]
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_STUDENT = {*CANVAS, "LastName", "FirstName", "Integration ID", "Root Account"}  # all columns about a student
_NO_ASSIGNMENT = re.compile(r"\b(Current|Final|Override) (Score|Points|Grade|Status)( \(.*\))?\s*$")
_EXCUSED = "EX"


def canvas(made: Sequence[Mark], people: People, export: Path | None = None) -> tuple[str, list[str]]:
    """What Canvas imports: (CSV, who has no row). export: the gradebook that it exported, for its columns; else 100 points a lab."""
    named = list(dict.fromkeys(mark.lab for mark in made))
    if export is None:
        return csv_text([[*CANVAS, *named], *_new_canvas(made, people, named)]), []
    head, body = read_table(export)
    if "ID" not in head or not {"Student", "LastName"} & set(head):
        raise UserError(
            f"{export} is not a gradebook of Canvas, because it has no columns Student and ID. Export it under Grades."
        )
    kept = [column for column in head if column in _STUDENT]
    columns = {lab: column_of(lab, head, export) for lab in named}
    possible = next((row for row in body if row[head[0]].strip() == "Points Possible"), {})
    students = [row for row in body if row["ID"].strip()]  # above them stand rows of another kind
    lines = [_canvas_line(row) for row in students]
    cells: dict[int, dict[str, Any]] = defaultdict(dict)
    missing = []
    for lab in named:
        most = _number(possible.get(columns[lab], "")) or 100
        found, without = _matched([mark for mark in made if mark.lab == lab], lines, people)
        missing += [f"{mark.student}, {mark.lab}" for mark in without]
        for row in body:  # an empty cell would delete the grade that Canvas has
            cells[id(row)][lab] = row.get(columns[lab]) or (100 if row is possible else "")
        for at, mark in found.items():
            if mark.percentage is not None and cells[id(students[at])][lab] != _EXCUSED:
                cells[id(students[at])][lab] = _share(mark, most)
    rows = [[*(row[column] for column in kept), *(cells[id(row)][lab] for lab in named)] for row in body]
    return csv_text([[*kept, *(columns[lab] or lab for lab in named)], *rows]), missing


def _new_canvas(made: Sequence[Mark], people: People, named: Sequence[str]) -> list[list[Any]]:
    """Rows with a new column of 100 points for each lab."""
    found: dict[str, dict[str, Mark]] = defaultdict(dict)
    for mark in made:
        found[mark.student][mark.lab] = mark
    rows: list[list[Any]] = [["Points Possible", "", "", "", "", *([100] * len(named))]]
    for student, theirs in found.items():
        name = next(iter(theirs.values())).name or student
        points = (_share(theirs[lab], 100) if lab in theirs else "" for lab in named)
        rows.append([name, people.get((student, ""), ""), "", student, "", *points])
    return rows


def column_of(lab: str, head: Sequence[str], export: Path) -> str:
    """The column of a lab, which Canvas calls after the assignment and its number; "" where there is none."""
    number = lab.partition("_")[0]
    assignments = [column for column in head if not _NO_ASSIGNMENT.search(column)]
    called = {column: letters(re.sub(r" \(\d+\)\s*$", "", column)) for column in assignments}
    names = {letters(lab), letters(labs.get(lab).title)}
    fits = [column for column, own in called.items() if any(name in own for name in names)]
    exact = [column for column, own in called.items() if own in names or own in {number, f"lab{number}"}]
    if len(exact or fits) > 1:
        several = ", ".join(exact or fits)
        raise UserError(f"{export} has several columns for {lab}: {several}. Delete all but one of them from the file.")
    return next(iter(exact or fits), "")


@dataclass(frozen=True)
class _Line:
    """A student's row in a file of Canvas or Moodle."""

    number: str
    ids: tuple[str, ...]
    names: tuple[str, ...]
    email: str = ""


def _canvas_line(row: Mapping[str, str]) -> _Line:
    ids = (row.get("SIS Login ID", ""), row.get("SIS User ID", ""), row["ID"])
    name = row.get("Student") or f"{row['LastName']}, {row['FirstName']}"
    return _Line(row["ID"].strip(), tuple(map(str.strip, ids)), (name,))


def _matched(made: Sequence[Mark], lines: Sequence[_Line], people: People) -> tuple[dict[int, Mark], list[Mark]]:
    """(row -> whose mark of one lab belongs there, marks without a row): by ids, then addresses, then names, never by what fits two."""
    number = {mark.student: people.get((mark.student, mark.lab)) or people.get((mark.student, "")) for mark in made}
    found: dict[int, Mark] = {}
    left = {mark.student: mark for mark in made}
    signs = [
        (lambda mark: {number[mark.student]}, lambda line: {line.number}),
        (lambda mark: {mark.student}, lambda line: set(line.ids)),
        (
            lambda mark: {folded(mark.student), folded(mark.email)},
            lambda line: set(map(folded, (*line.ids, line.email))),
        ),
        (
            lambda mark: {folded(mark.student)},
            lambda line: {folded(w).partition("@")[0] for w in (*line.ids, line.email)},
        ),
        (
            lambda mark: spoken_names(mark.name) | spoken_names(mark.student),
            lambda line: set().union(*map(spoken_names, line.names)),
        ),
    ]
    for of_mark, of_line in signs:
        rows, marks_of = defaultdict(set), defaultdict(set)
        for at, line in enumerate(lines):
            for sign in of_line(line) - {"", None}:
                rows[sign].add(at)
        for mark in made:
            for sign in of_mark(mark) - {"", None}:
                marks_of[sign].add(mark.student)
        for student in list(left):
            fits = {at for sign in of_mark(left[student]) if len(marks_of[sign]) == 1 for at in rows[sign]}
            if len(fits) == 1 and (at := fits.pop()) not in found:
                found[at] = left.pop(student)
        if of_mark is signs[0][0] and found:  # a file of theirs knows these numbers: whose is not in it has no row
            left = {student: mark for student, mark in left.items() if not number[student]}
    return found, [mark for mark in made if mark not in found.values()]


def moodle(made: Sequence[Mark], people: People, worksheet: Path | None = None) -> tuple[str, list[str]]:
    """What Moodle imports: (CSV, who has no row). worksheet: of one assignment, to be uploaded again; without it, percentages."""
    named = list(dict.fromkeys(mark.lab for mark in made))
    if worksheet is None:
        people_of = {mark.student: mark for mark in made}
        of = {(mark.student, mark.lab): _share(mark, 100) for mark in made}
        rows = [[s, m.name, m.email, *(of.get((s, lab), "") for lab in named)] for s, m in people_of.items()]
        return csv_text([["Username", "Full name", "Email address", *named], *rows]), []
    if len(named) != 1:
        raise UserError(f"A grading worksheet belongs to one assignment. Choose one of {', '.join(named)} with --lab.")
    head, body = read_table(worksheet)
    own, name, email = (column(names, head) for names in (IDENTIFIER, FULL_NAME, EMAIL))
    grade, most = column(GRADE, head), column(MAXIMUM, head)
    if not grade or not own:
        wanted = f"{IDENTIFIER[0]} and {GRADE[0]}"
        raise UserError(f"{worksheet} is not a grading worksheet of Moodle, because it has no columns {wanted}.")
    ids = [column([each], head) for each in ID_NUMBER]
    lines = [
        _Line(
            number_in(row[own]),
            tuple(row.get(each, "").strip() for each in ids),
            (row.get(name, ""),),
            row.get(email, "").strip(),
        )
        for row in body
    ]
    found, missing = _matched(made, lines, people)
    for at, mark in found.items():
        body[at][grade] = str(_share(mark, _number(body[at].get(most, "")) or 100))
    return csv_text([head, *([row[name] for name in head] for row in body)]), [mark.student for mark in missing]


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """(columns, rows) of a CSV, whatever its encoding and separator. Raises UserError for a file that cannot be read."""
    try:
        text = decoded(read_file(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Give the path of a CSV file.") from None
    lines = io.StringIO(text, newline=None)  # Excel on a Mac ends lines in its own way
    try:
        first = re.sub('"[^"]*"', "", lines.readline())
        separator = max(",;\t", key=first.count)
        lines.seek(0)
        rows = [row for row in csv.reader(lines, delimiter=separator) if any(map(str.strip, row))]
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table ({error}). Give a CSV file, as it was exported.") from None
    if not rows:
        raise UserError(f"{path} is empty. Give a CSV file with a line of column names.")
    head = [name.strip() for name in rows[0]]
    return head, [dict(zip(head, row + [""] * len(head), strict=False)) for row in rows[1:]]


def _share(mark: Mark, most: float) -> float | str:
    """The mark in points of `most`; "" where there is none."""
    return "" if mark.percentage is None else round(mark.percentage * most / 100, 2)


def _number(text: Any) -> float | None:
    try:
        return float(str(text).replace(",", "."))
    except ValueError:
        return None
