"""`grader class marks`: the marks of a class as they stand, for us, for Canvas and for Moodle. It measures nothing."""

import argparse
from collections.abc import Callable
from pathlib import Path

from grader.classroom import marks, summary
from grader.classroom.store import Store
from grader.classroom.submissions import HandedIn, Job, read_class
from grader.frontends.classroom import GRADEBOOK, RESULTS, add_class, record, write_marks
from grader.frontends.collect import numbers
from grader.result import write_text
from grader.safe_text import tell


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=write)
    sub.epilog = "Exit status: 0 if everybody has a mark. 1 if somebody has none yet. 2 for unusable input."
    add_class(sub)
    sub.add_argument("--quick", action="store_true", help="take quick measurements where there are no full ones")
    for name, file in (("canvas", "the gradebook that Canvas exported"), ("moodle", "the grading worksheet of Moodle")):
        words = f"also write a file that {name.capitalize()} imports. FILE is {file}, and its rows are filled"
        sub.add_argument(f"--{name}", nargs="?", const="", metavar="FILE", help=words)


def write(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 where somebody has no mark."""
    everyone = read_class(options.release, options.submitted, options.lab)
    course = options.submitted.absolute().parent
    folder = options.results or course / RESULTS
    store = Store(folder)
    rows = summary.rows(everyone, {(one.student, one.lab): _made(store, one, options.quick) for one in everyone})
    made = marks.marks(rows, course / GRADEBOOK)
    print(f"{len(made)} marks in {write_marks(made, folder, options.lab)}")
    exports: dict[str, Callable] = {"canvas": marks.canvas, "moodle": marks.moodle}
    for name, export in exports.items():
        if (given := getattr(options, name)) is None:
            continue
        text, missing = export(made, numbers(options.submitted, name), Path(given) if given else None)
        path = folder / f"{'-'.join(['marks', *options.lab])}-{name}.csv"
        write_text(path, text)
        print(f"For {name.capitalize()}: {path}")
        if given and name == "canvas":
            _new_columns(made, Path(given))
        if missing:
            tell(f"Not in {given}, or not the only one who fits a row there: {'; '.join(missing)}")
    quickly = {(one.student, one.lab) for one in everyone if not options.quick and _made(store, one, True)}
    open_ones = [mark for mark in made if mark.percentage is None]
    _tell_open(open_ones, quickly)
    _tell_marked(made)
    for line in summary.stale(course / GRADEBOOK, rows):
        tell(f"In the gradebook with different points: {line}")
    return int(bool(open_ones))


def _tell_open(open_ones: list[marks.Mark], quickly: set[tuple[str, str]]) -> None:
    """Who has no mark, and why. quickly: student and lab of each that has a quick measurement."""
    only = [mark for mark in open_ones if mark.points is None and (mark.student, mark.lab) in quickly]
    missing = [mark for mark in open_ones if mark not in only and mark.note.startswith(summary.MISSING)]
    if only:
        tell(
            f"Measured only quickly: {_by_lab(only)}. Run `grader class labs submitted` for marks, or add --quick to "
            "take these as marks."
        )
    if missing:
        tell(f"Not measured by this version of the grader: {_by_lab(missing)}. Run `grader class labs submitted`.")
    for mark in open_ones:
        if mark not in only and mark not in missing:
            tell(f"No mark yet: {mark.student}, {mark.lab} ({mark.note or 'nothing was measured'})")


def _tell_marked(made: list[marks.Mark]) -> None:
    """Which marks a person should look at."""
    again = "`grader class labs submitted --again STUDENT/LAB` measures it anew while nothing else runs"
    for heading, some in (
        ("Percentages without the explanation, which nobody has marked yet", [m for m in made if m.unmarked]),
        ("Explanations that changed since they were marked", [m for m in made if marks.CHANGED in m.note]),
        (f"Inconclusive, so only what is certain counts ({again})", [m for m in made if m.inconclusive]),
        ("Measured quickly, which is no mark", [m for m in made if m.quick]),
        (
            "Late, and marked after nbgrader took off the penalty, so run `nbgrader autograde LAB --force`",
            [m for m in made if m.note.endswith(marks.OLD_PENALTY)],
        ),
    ):
        if some:
            tell(f"{heading}: {_by_lab(some)}")


def _by_lab(made: list[marks.Mark]) -> str:
    students: dict[str, list[str]] = {}
    for mark in made:
        students.setdefault(mark.lab, []).append(mark.student)
    return "; ".join(f"{lab}: {', '.join(some)}" for lab, some in students.items())


def _new_columns(made: list[marks.Mark], export: Path) -> None:
    head, _ = marks.read_table(export)
    for lab in dict.fromkeys(mark.lab for mark in made):
        if not marks.column_of(lab, head, export):
            tell(
                f"{export} has no column for {lab}, so the file has a new one of 100 points. To fill one that is "
                f"there, rename the assignment in Canvas to {lab}, and export again."
            )


def _made(store: Store, one: HandedIn, quick: bool) -> dict | None:
    """What was measured of a submission; a quick measurement only where it is asked for, and there is no other."""
    if not one.submission:
        return None
    full = record(store, Job(one.lab, one.submission))
    return full or (record(store, Job(one.lab, one.submission, quick=True)) if quick else None)
