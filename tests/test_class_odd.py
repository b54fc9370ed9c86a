"""A round with a class of odd students, by the commands of docs/instructors.md: nobody's points, text or mark is lost."""

import csv
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripts
from nbgrader.api import Gradebook
from test_explanations import nbgrader

from tests import odd_class
from tests.odd_class import LAB, Student

SYSTEMS = ("moodle", "canvas")


def grader(course: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "grader", "class", *arguments]
    done = subprocess.run(command, cwd=course, env=scripts.environment(), capture_output=True, text=True)
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done.returncode, done.stdout, done.stderr


class Round:
    """The class of each system: collected, measured, autograded, and its marks written."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.seconds = root, {}
        odd_class.course(root)
        nbgrader(root, "generate_assignment", LAB, "--force")
        self.students = {system: odd_class.students(count, system) for system in SYSTEMS}
        self.collected, self.marked = {}, {}
        for system, everyone in self.students.items():
            odd_class.archive(root / f"{system}.zip", everyone, system)
            sheet = odd_class.worksheet(root / f"{system}.csv", everyone, system)
            collect = (root, "collect", f"{system}.zip", "--students", sheet.name)
            self.collected[system] = self.timed(f"collect {system}", grader, *collect)
        self.measured = self.timed("measure", grader, root, "labs", "submitted", "--lab", LAB)
        self.timed("autograde", nbgrader, root, "autograde", LAB, "--MeasuredGrade.only_measured=True")
        for system in SYSTEMS:
            marks = (root, "marks", "--lab", LAB, f"--{system}", f"{system}.csv")
            self.marked[system] = self.timed(f"marks {system}", grader, *marks)

    def timed(self, what: str, do: Callable, *arguments: object) -> Any:
        began = time.monotonic()
        done = do(*arguments)
        self.seconds[what] = time.monotonic() - began
        return done

    def everyone(self) -> list[Student]:
        return [each for group in self.students.values() for each in group]

    def rows(self, name: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO((self.root / "measured" / name).read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def round_(tmp_path_factory: pytest.TempPathFactory) -> Round:
    return Round(tmp_path_factory.mktemp("course"), len(list(odd_class.kinds())))


@pytest.mark.slow
def test_who_is_not_taken_is_named_with_the_reason(round_):
    for system, (status, out, err) in round_.collected.items():
        assert status == 1
        for each in round_.students[system]:
            folder = (round_.root / "submitted" / each.id / LAB / f"{LAB}.ipynb").exists()
            assert folder == (each.kind.points is not None), each.kind.name
            if not folder and each.kind.name != "of another lab":
                assert odd_class.entry(each, system, "", 0).partition("_")[0] in err, each.kind.name
        assert "notes.docx" in out and "old.ipynb" in out


@pytest.mark.slow
def test_everybody_has_the_points_and_every_text_is_read(round_):
    with Gradebook(f"sqlite:///{round_.root}/gradebook.db") as book:
        there = {each.student.id for each in book.assignment_submissions(LAB)}
        for each in round_.everyone():
            assert (each.id in there) == (each.kind.points is not None), each
            if each.id not in there:
                continue
            grades = {grade.name: grade for grade in book.find_submission_notebook(LAB, LAB, each.id).grades}
            explanation = grades.pop("explanation")
            assert sum(grade.auto_score for grade in grades.values()) == each.kind.points, each.kind.name
            assert explanation.needs_manual_grade == each.kind.read, each.kind.name
            assert explanation.auto_score == (None if each.kind.read else 0), each.kind.name
    for each in round_.everyone():
        if each.kind.points is not None and each.kind.read and "chinese" not in each.kind.name:
            autograded = round_.root / "autograded" / each.id / LAB / f"{LAB}.ipynb"
            assert odd_class.TEXT[:30] in "".join(map(odd_class.text, json.loads(autograded.read_text())["cells"]))


@pytest.mark.slow
def test_the_class_says_who_wrote_elsewhere_and_what_could_not_be_graded(round_):
    status, out, _ = round_.measured
    assert status == 0
    elsewhere = out.partition("Text outside of the explanation's cell")[2].partition("\n\n")[0]
    for each in round_.everyone():
        assert (f"  {each.id}, {LAB}\n" in f"{elsewhere}\n") == each.kind.beside, each.kind.name
    status = {row["student"].removeprefix("'"): row["status"] for row in round_.rows(f"summary-{LAB}.csv")}
    nothing = {"empty", "broken", "no submission", "a cell without text", "a PDF called so"}
    for each in round_.everyone():
        if each.kind.points is not None:
            assert (status[each.id] == "no submission") == (each.kind.name in nothing), each.kind.name


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_marks_go_back_to_whoever_they_are_of(round_, system):
    taken = {each.id: each.kind for each in round_.everyone() if each.kind.points is not None}
    ours = {row["student"].removeprefix("'"): row for row in round_.rows(f"marks-{LAB}.csv")}
    assert ours.keys() == taken.keys() and {row["measurable maximum"] for row in ours.values()} == {"100"}
    assert all(float(ours[own]["points"]) == kind.points for own, kind in taken.items())
    grade, own = ("Grade", "ID number") if system == "moodle" else (f"{LAB} (77)", "SIS Login ID")
    for row, each in zip(
        [row for row in round_.rows(f"marks-{LAB}-{system}.csv") if row[own]], round_.students[system], strict=True
    ):
        assert row[own] == each.id
        if percentage := each.id in taken and ours[each.id]["percentage"]:
            assert float(row[grade]) == pytest.approx(float(percentage) / 2, abs=0.01), each
        else:
            assert row[grade] == "", each
    _, _, err = round_.marked[system]
    missing = err.partition("Not in ")[2].partition("\n")[0]
    others = {each.id for each in round_.everyone()} - {each.id for each in round_.students[system]}
    assert all(own in missing for own in others & taken.keys())
