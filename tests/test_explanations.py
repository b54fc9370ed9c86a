"""No explanation is lost: what a student wrote is read by a person, wherever it stands and whatever an editor dropped."""

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from nbgrader.api import Gradebook
from scripts import nbgrader

from grader.classroom import cells, summary
from grader.classroom.cells import BESIDE, as_released, places, text_of
from grader.classroom.submissions import read_class
from grader.submission import MOST_CELLS
from tests import odd_class

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"
TEXT = "The loop waited for its images, 82% of each step."
BROKEN = "%%submission\ndef train(job)"  # graded without being measured


def cell(nb, name: str):
    return next(c for c in nb.cells if c.get("id") == name)


def below(nb, new) -> None:
    nb.cells.insert(nb.cells.index(cell(nb, "explanation")) + 1, new)


def forget(nb) -> None:
    """What Deepnote and others leave of a notebook: neither metadata nor ids."""
    nb.nbformat_minor = 4
    for each in nb.cells:
        each.metadata = {}
        del each["id"]


def as_it_was(nb) -> None: ...


def scratch(nb) -> None:
    nb.cells.append(new_code_cell("# five words or more here\nx = lab.device"))
    nb.cells.append(new_markdown_cell(" \n"))


def as_it_was_without_metadata(nb) -> None:
    forget(nb)


def in_its_cell(nb) -> None:
    cell(nb, "explanation").source += f"\n\n{TEXT}"


def in_its_cell_without_metadata(nb) -> None:
    in_its_cell(nb)
    forget(nb)


def in_a_new_cell(nb) -> None:
    below(nb, new_markdown_cell(TEXT))


def in_a_new_cell_without_metadata(nb) -> None:
    in_a_new_cell(nb)
    forget(nb)


def in_a_raw_cell(nb) -> None:
    below(nb, new_raw_cell(TEXT))


def in_a_code_cell(nb) -> None:
    below(nb, new_code_cell(TEXT))


def in_a_comment(nb) -> None:
    below(nb, new_code_cell(f"# {TEXT}"))


def in_the_hints(nb) -> None:
    cell(nb, "hints").source += f"\n\n{TEXT}"


def in_place_of_the_cell(nb) -> None:
    nb.cells[nb.cells.index(cell(nb, "explanation"))] = new_markdown_cell(TEXT)


def over_a_locked_cell(nb) -> None:
    cell(nb, "grade-pinned").source = TEXT


UNTOUCHED = (as_it_was, scratch, as_it_was_without_metadata)
THERE = (in_its_cell, in_its_cell_without_metadata)
ELSEWHERE = (
    in_a_new_cell,
    in_a_new_cell_without_metadata,
    in_a_raw_cell,
    in_a_code_cell,
    in_a_comment,
    in_the_hints,
    in_place_of_the_cell,
    over_a_locked_cell,
)
STUDENTS: tuple[Callable, ...] = (*UNTOUCHED, *THERE, *ELSEWHERE)


def handed_in(root: Path, student: Callable, released, then: Callable = as_it_was) -> None:
    nb = copy.deepcopy(released)
    cell(nb, "submission").source = BROKEN
    student(nb)
    then(nb)
    folder = root / "submitted" / student.__name__ / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.ipynb").write_text(json.dumps(nb), encoding="utf-8")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("course")
    autograded(root, STUDENTS)
    return root


def autograded(root: Path, students: Sequence[Callable]) -> None:
    """A class in `root` of which each student has handed in, and has been graded."""
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    shutil.copytree(REPOSITORY / "solutions" / NAME, root / "solutions" / NAME)
    nbgrader(root, "generate_assignment", NAME)
    for student in students:
        handed_in(root, student, released(root))
    nbgrader(root, "autograde", NAME)


def released(root: Path):
    return nbformat.read(root / "labs" / NAME / f"{NAME}.ipynb", as_version=4)


def explanation(root: Path, student: Callable, set_to: float | None = None):
    """(points by itself, whether a person is to look, the comment) of one student; `set_to` is what a person gives."""
    with Gradebook(f"sqlite:///{root}/gradebook.db") as gradebook:
        grade = gradebook.find_grade("explanation", NAME, NAME, student.__name__)
        if set_to is not None:
            grade.manual_score, grade.needs_manual_grade = set_to, False
            gradebook.db.commit()
        comment = gradebook.find_comment("explanation", NAME, NAME, student.__name__)
        return grade.auto_score, grade.needs_manual_grade, comment.comment


@pytest.mark.slow
def test_zero_by_itself_only_where_nothing_was_written(course):
    for student in UNTOUCHED:
        assert explanation(course, student) == (0, False, "No response."), student
    for student in (*THERE, *ELSEWHERE):
        assert explanation(course, student) == (None, True, None), student


@pytest.mark.slow
def test_who_marks_sees_the_text(course):
    for student in (*THERE, *ELSEWHERE):
        path = course / "autograded" / student.__name__ / NAME / f"{NAME}.ipynb"
        nb = nbformat.read(path, as_version=4)
        assert any(TEXT in c.source for c in nb.cells), student
        answers = [c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "explanation"]
        assert len(answers) == 1
        assert (TEXT in answers[0].source) == (student in THERE)


@pytest.mark.slow
def test_restored_cells_come_back_in_the_release_s_order(course):
    for student in (in_its_cell_without_metadata, in_place_of_the_cell, over_a_locked_cell):
        nb = nbformat.read(course / "autograded" / student.__name__ / NAME / f"{NAME}.ipynb", as_version=4)
        names = [c.metadata.nbgrader.grade_id for c in nb.cells if "nbgrader" in c.metadata]
        wanted = [c.metadata.nbgrader.grade_id for c in released(course).cells if "nbgrader" in c.metadata]
        assert [name for name in wanted if name in names] == names, student
        assert {"throughput", "reads", "pinned", "prediction", "explanation"} <= set(names)


@pytest.mark.slow
def test_the_summary_names_who_wrote_elsewhere(course):
    everyone = read_class(course / "labs", course / "submitted")
    said = summary.attention(summary.rows(everyone, {}))
    lines = next(lines for heading, lines in said.items() if "outside of the explanation's cell" in heading)
    assert {line.partition(",")[0] for line in lines} == {student.__name__ for student in ELSEWHERE}


@pytest.mark.slow
def test_an_unchanged_explanation_is_not_flagged_again(course):
    marked = (in_its_cell, in_a_new_cell, in_a_raw_cell)
    for student in marked:
        explanation(course, student, set_to=7)
    handed_in(course, in_a_raw_cell, released(course), then=lambda nb: nb.cells.append(new_markdown_cell("And more.")))
    nbgrader(course, "autograde", NAME, "--force")
    assert [explanation(course, student)[1] for student in marked] == [False, False, True]
    nbgrader(course, "autograde", NAME, "--force")
    assert explanation(course, in_a_raw_cell)[1], "until it is looked at"


def test_a_cell_is_known_by_its_name_then_its_id_then_its_text():
    known = {"a": "## Explain\n\nYOUR ANSWER", "b": "lab.grade('b')"}
    plain = lambda text, kind="markdown", **more: {"cell_type": kind, "source": text, "metadata": {}} | more  # noqa: E731
    assert places([plain("lab.grade('b')", "code"), plain("## Explain\n\nSo it is.")], known) == {"a": 1, "b": 0}
    assert places([plain("x", id="a"), plain(known["a"])], known) == {"a": 0}
    assert places([plain("## Explanation of mine"), plain("a note")], known) in ({}, {"a": 0})
    assert places([plain("## Explain", "code"), "no cell", {"cell_type": "markdown"}], known) == {}
    twice = [plain(known["a"]), plain("## Explain\n\nSo it is."), plain(known["a"])]
    assert places(twice, known) == {"a": 1}, "the copy that was changed"
    assert places([plain("x")] * MOST_CELLS + twice, known) == {}, "a notebook of so many cells is not taken"


def another_release(nb) -> None:
    """The words of a term ago, in cells that were the same."""
    for each in nb["cells"]:
        if each["cell_type"] == "markdown" and each["id"] not in ("title", "sizes"):
            first, _, rest = odd_class.text(each).partition("\n")
            each["source"] = f"{first}\n\nAs we said it last term. {rest[:40]}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", ['<a href="https://google.com/' * 400_000, "ab " * 20_000_000])
def test_a_text_without_an_end_holds_no_class_up(text):
    """The first took half an hour, the second half a minute and 2 GB."""
    released = json.loads((REPOSITORY / "labs" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8"))
    theirs = {"cells": [{"cell_type": "markdown", "source": text}]}
    assert cells.explanation(theirs, released) == BESIDE
    assert not as_released(json.dumps(theirs).encode(), NAME)
    assert places(theirs["cells"], {cell["id"]: str(text_of(cell)) for cell in released["cells"]}) == {}


@pytest.mark.parametrize("lab", [odd_class.LAB, NAME])
def test_the_summary_names_notebooks_of_another_release(tmp_path, lab):
    """Its loop may have asked for other things: a person decides. Nothing else that editors do looks like one."""
    strange = (another_release, lambda nb: (another_release(nb), odd_class.strip(nb)))
    edits = [edit for edit in odd_class.IN_THE_NOTEBOOK if edit is not odd_class.fifty_megabytes]
    for number, edit in enumerate((*strange, *edits)):
        place = tmp_path / f"s{number:02d}" / lab / f"{lab}.ipynb"
        place.parent.mkdir(parents=True)
        try:
            place.write_bytes(odd_class.made(edit, lab=lab))
        except StopIteration:  # a cell that only the other lab has
            place.parent.rmdir()
    for encoding in odd_class.ENCODINGS:
        place = tmp_path / encoding / lab / f"{lab}.ipynb"
        place.parent.mkdir(parents=True)
        place.write_bytes(odd_class.made(odd_class.plain, encoding, lab=lab))
    said = summary.attention(summary.rows(read_class(REPOSITORY / "labs", tmp_path), {}))
    (lines,) = (lines for heading, lines in said.items() if "another release" in heading)
    assert lines == [f"s00, {lab}", f"s01, {lab}"]
