"""The solution notebooks: their form, and that they run from top to bottom."""

import re
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from helpers import first

from grader import labs
from grader.grading.forms import missing_packages
from grader.submission import read_notebook

SOLUTIONS = Path(__file__).resolve().parents[1] / "solutions"
EXPLANATION = 10  # points that a person gives


def path(name: str) -> Path:
    return SOLUTIONS / name / f"{name}.ipynb"


def outputs(cell: Any) -> str:
    """All that a cell shows, as one text."""
    return "\n".join(str(o.get("text", o.get("data", o.get("traceback")))) for o in cell.outputs)


def solved(name: str, folder: Path, **parameters: Any) -> dict[str, Any]:
    """The code cells of a lab's solution by their ids, after it ran from top to bottom in `folder`."""
    made = folder / "executed.ipynb"
    done = papermill.execute_notebook(
        path(name), made, parameters, cwd=folder, progress_bar=False, execution_timeout=600
    )
    return {cell.id: cell for cell in done.cells if cell.cell_type == "code"}


def shown_by(name: str, folder: Path, **parameters: Any) -> dict[str, str]:
    """What each of them shows."""
    return {cell_id: outputs(cell) for cell_id, cell in solved(name, folder, **parameters).items()}


def test_one_for_each_lab():
    assert {folder.name for folder in SOLUTIONS.iterdir()} == set(labs.NAMES)


@pytest.mark.parametrize("name", labs.NAMES)
def test_form(name):
    notebook = nbformat.read(path(name), as_version=4)
    nbformat.validate(notebook)
    assert path(name).read_text(encoding="utf-8").rstrip("\n") == nbformat.writes(notebook).rstrip("\n")
    assert notebook.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids) and all(re.fullmatch("[a-z][a-z0-9-]{2,30}", i) for i in ids)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    assert [c.id for c in notebook.cells if "parameters" in c.metadata.get("tags", [])] == ["parameters"]
    order = ["title", "parameters", "setup", "submission", "check", "explanation"]
    if name in labs.loops():
        order[3:4] = ["sizes", "contract", "submission", "predict", "run", "peek", "profile", "fix-text", "hints"]
    assert [i for i in ids if i in order] == order


@pytest.mark.parametrize("name", labs.NAMES)
def test_points(name):
    """One locked grade cell for each check of the lab, worth its points, and one answer that a person grades."""
    lab = labs.get(name)
    notebook = nbformat.read(path(name), as_version=4)
    graded = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
    points = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points for c in graded}
    assert points == {c.name: c.points for c in lab.checks} | {"explanation": EXPLANATION}
    for cell in graded:
        if cell.cell_type == "code":
            assert cell.source == f'lab.grade("{cell.metadata.nbgrader.grade_id}")'
            assert cell.metadata.nbgrader.locked and not cell.metadata.nbgrader.solution
    first = graded[0].metadata.nbgrader.grade_id  # its output is the whole report
    assert first == (lab.report_in or lab.checks[0].name)
    assert sum(c.points for c in lab.checks) == lab.max_score == 100


WORTH = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5}


@pytest.mark.parametrize("name", labs.NAMES)
def test_a_model_answer_says_what_its_points_are_worth(name):
    notebook = nbformat.read(path(name), as_version=4)
    asked, answer = next(c.source for c in notebook.cells if c.id == "explanation").split("<!-- BEGIN SOLUTION -->")
    said = re.search(
        r"\*\*Marks(?:\*\* \(of 10\):| \(of 10\):\*\*) (.*?)\. Half", re.sub(r"\([^)]*, [^)]*\)", "", answer), re.DOTALL
    )
    assert said
    if said[1].startswith("point 1"):
        worth = re.findall(r"(?:point )?(\d) (\w+)", said[1])
        assert [int(n) for n, _ in worth] == [int(n) for n in re.findall(r"^(\d)\. ", asked, re.MULTILINE)]
        assert sum(WORTH[each] for _, each in worth) == EXPLANATION


def cell_of(name: str, cell_id: str) -> str:
    return next(cell.source for cell in nbformat.read(path(name), as_version=4).cells if cell.id == cell_id)


@pytest.mark.parametrize("name", labs.loops())
def test_the_table_of_checks_is_the_declaration_s(name):
    rows = [
        row.strip("| ").split(" | ")[:2] for row in cell_of(name, "verify-text").splitlines() if row.startswith("|")
    ]
    declared = [[check.title, f"{check.points:g}"] for check in labs.get(name).checks]
    assert sorted(rows[2:]) == sorted([*declared, ["Your explanation", f"{EXPLANATION}"]])


@pytest.mark.parametrize("name", [name for name in labs.loops() if labs.get(name).trace])
def test_says_that_the_gain_bounds_what_a_trace_earns(name):
    said, titles = cell_of(name, "points-shared"), [check.title for check in labs.get(name).trace]
    several = (
        "If you earn half of *Throughput*'s points, each of these checks earns at most half of its own points:\n\n"
    )
    one = "This check counts only as far as your loop got faster. If you earn half of *Throughput*'s points, it earns at most half of its own points."
    bound = said.partition(several)[2].partition("\n\n")[0]
    assert f"**{titles[0]}.** {one}" in said or all(f"- *{title}*" in bound for title in titles)


@pytest.mark.parametrize("name", labs.loops())
def test_submission(name):
    submission = read_notebook(path(name))
    assert f"def {'serve' if labs.get(name).serves else 'train'}(job):" in submission.source
    assert dict(submission.prediction)["cause"] == labs.get(name).cause


# one of each kind; a night executes all of them, half a minute each and more
KINDS = ("3a_precision", "2f_end_to_end", "2g_healthy", "3h_fit", "4d_trainer", "4e_inference")


@pytest.mark.parametrize("name", first(KINDS))
def test_runs(name, tmp_path):
    if missing := missing_packages(labs.get(name)):
        pytest.skip(missing)
    cells = solved(name, tmp_path, device="cpu", quick=True)
    lab = labs.get(name)
    everything = all(lab.measures(check, "cpu") for check in lab.checks)
    assert ("NOT MEASURED" in outputs(cells["check"])) == (not everything)
    if lab.measures(lab.throughput, "cpu"):
        cell = cells["grade-throughput"]
        points = float(cell.outputs[-1]["data"]["text/plain"])
        assert points > 0.9 * lab.throughput.points or "INCONCLUSIVE" in outputs(cell)  # a busy machine cannot tell
