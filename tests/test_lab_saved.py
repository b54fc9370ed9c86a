"""After a kernel's restart, with Validate, and from one check to the next: what a lab's notebook says."""

import json
from dataclasses import asdict

import pytest
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

import grader
from grader import labs
from grader.errors import UserError
from grader.frontends import attempts
from grader.frontends.notebook import base
from grader.result import FAIL, NOT_MEASURED, PASS, CheckResult, Result

NAME = "1c_diagnose"


def result(points: float, lab: str = "2a_workers", gain: float | None = None) -> Result:
    evidence = {"gain": gain} if gain else {}
    checks = [
        CheckResult("parity", "Same training", PASS if points else FAIL, 0, 0, "same"),
        CheckResult("throughput", "Throughput", FAIL, points, 50, "faster", evidence=evidence),
        CheckResult("pinned", "Pinned copies", NOT_MEASURED, 0, 20, "needs a GPU"),
    ]
    return Result(lab, "", "cpu", checks, {}, {}, date="2026-11-28 10:00 UTC")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = grader.lab(NAME)
    attempts.write_json(tmp_path / f"report-{NAME}.json", result(30, NAME).to_dict())
    return made


@pytest.fixture
def gone(tmp_path, monkeypatch):
    """A folder that a kernel was started in, and that was removed."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    monkeypatch.chdir(tmp_path)


def test_a_report_is_shown_though_the_folder_is_gone(gone):
    gone.rmdir()
    said = attempts.save(gone, labs.get(NAME), result(30, NAME))
    assert said.startswith(f"Saved as {gone}/report-{NAME}.html")


def test_a_lab_in_a_folder_that_is_gone(gone):
    gone.rmdir()
    with pytest.raises(UserError, match=r"is gone\. In a notebook, restart the kernel\."):
        grader.lab(NAME)


@pytest.mark.parametrize(
    ("name", "call", "says"),
    [(NAME, "look", "Which trace"), ("1a_stopwatch", "compare", "Which job"), ("1d_mystery", "profile", "Which loop")],
)
def test_a_call_that_names_nothing(tmp_path, monkeypatch, capsys, name, call, says):
    monkeypatch.chdir(tmp_path)
    try:
        getattr(grader.lab(name, device="auto" if name == NAME else "cpu"), call)()
    except UserError as error:
        print(error)
    said = capsys.readouterr().out
    assert says in said and "There are" in said


def test_a_restarted_kernel_takes_the_saved_report(lab, capsys):
    assert lab.grade("throughput") == 30
    said = capsys.readouterr().out
    assert "2026-11-28 10:00 UTC" in said and "Throughput" in said
    lab.result = result(40, NAME)
    assert lab.grade("throughput") == 40 and "2026-11-28" not in capsys.readouterr().out


HUGE = result(40, NAME).to_dict() | {"checks": [asdict(result(40).checks[0]) | {"points": 10**400}]}


@pytest.mark.parametrize(
    "damaged", ["", "[]", "{}", '{"lab": "2a_workers", "checks": []}', "[" * 9999, json.dumps(HUGE)]
)
def test_a_report_that_is_none_is_not_taken(lab, tmp_path, damaged, capsys):
    (tmp_path / f"report-{NAME}.json").write_text(damaged)
    assert lab.grade("throughput") == 0 and "Run lab.check() first" in capsys.readouterr().out


def test_validate_calls_nothing_failed_that_was_not_measured(lab):
    """nbgrader's rule, on what the notebook then holds: a number below the maximum is a failure."""
    metadata = {"nbgrader": {"grade": True, "solution": False, "points": 20}}
    for name, fails in (("pinned", False), ("throughput", True)):
        output = new_output("execute_result", {"text/plain": repr(lab.grade(name))}, execution_count=1)
        score, most = determine_grade(
            new_code_cell(outputs=[output], metadata=metadata | {"nbgrader": metadata["nbgrader"] | {"points": 50}})
        )
        assert (score < most) == fails, name
    assert lab.grade("pinned") == 0 and isinstance(lab.grade("pinned"), base.NotMeasured)


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (result(10, gain=1.5), result(30, gain=2.5), "1.50x → 2.50x as fast as the starter, Throughput 10 → 30 points"),
        (result(0), result(10), "Same training FAIL → PASS, Throughput 0 → 10 points"),
        (result(10), result(10), "Since the last check nothing changed."),
    ],
)
def test_what_changed_since_the_last_check(before, now, says):
    assert says in attempts.changes(before, now)
    now.quick = True
    assert attempts.changes(before, now) == "", "a quick check is not compared with a full one"
