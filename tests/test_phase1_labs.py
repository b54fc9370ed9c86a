"""The labs of phase 1 that are no training loops: solutions, starters, half and wrong answers, hostile ones."""

from __future__ import annotations

import copy
import json
import re
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from helpers import first
from nbgrader.api import Gradebook
from test_nbgrader import REPOSITORY, by_id, nbgrader
from test_solutions import shown_by
from variants import edit

from grader import labs, machine, trace
from grader.calibrate import solution
from grader.classroom.submissions import Job
from grader.errors import UserError
from grader.frontends.notebook import open_lab
from grader.frontends.notebook.live import WORDS
from grader.grade import grade
from grader.kinds import annotate, mystery, stopwatch
from grader.kinds.shared import HEALTHY, read_answers
from grader.kinds.stopwatch import Timing
from grader.measure import decision
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, CheckResult, Result
from grader.submission import MAGIC, Submission, from_cells
from grader.workloads import stopwatch as stopwatch_workload
from tests.adversaries import forges_its_recording

ANSWERS = ("1c_diagnose", "1e_retest", "2h_retest")


def cell(source: str) -> Submission:
    return from_cells([f"{MAGIC}\n{source}"])


# ---------------------------------------------------------------- answers about recorded traces


def answered(name: str, **changes: dict) -> Result:
    """The grade of the solution's answers with those changes, {"a": {"cause": ...}, ...}."""
    answers = read_answers(solution(labs.get(name)))
    for question, entries in changes.items():
        answers[question] = answers[question] | entries if isinstance(entries, dict) else entries
    return grade(cell(f"answers = {answers!r}".replace("Ellipsis", "...")), labs.get(name))


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_solution_and_starter(name):
    lab = labs.get(name)
    result = grade(solution(lab), lab)
    assert result.score == 100 and {c.status for c in result.checks} == {PASS}
    result = grade(cell(lab.starter), lab)
    assert result.score == 0 and all(c.reason.startswith("`cause`: not answered.") for c in result.checks)


HALF = {
    "1c_diagnose": (
        # the causes only
        {
            "a": {"idle": ..., "phase": ...},
            "b": {"idle": ..., "launches": ...},
            "c": {"waits": ..., "line": ...},
            "d": {"phase": ..., "best_ms": ...},
            "e": {"idle": ...},
        },
        # idle as the trace shows it, under the profiler; "busy" taken for healthy
        {"b": {"idle": 0.77}, "d": {"cause": "healthy"}, "e": {"cause": "compute-bound"}},
    ),
    "1e_retest": (
        {"a": {"best_ms": ...}, "b": {"idle": 0.74}, "e": {"waits": ...}},
        {"c": {"cause": "compute-bound"}, "d": {"cause": "memory-bound"}},
    ),
    "2h_retest": (
        {"a": {"data_wait": ...}, "c": {"best_ms": ...}, "e": {"matmul": ...}},
        # overlap taken for the point of it; the trace's step taken for the step
        {"b": {"cause": "transfer-bound"}, "c": {"best_ms": 21.6}},
    ),
}


@pytest.mark.parametrize(("name", "half"), [(name, half) for name in ANSWERS for half in HALF[name]])
def test_answers_half(name, half):
    assert 40 <= answered(name, **half).score <= 85


WRONG = [
    # question, what is said, what is held against it
    ("a", {"cause": "sync-bound"}, "waits for the GPU 0 times per step"),
    ("a", {"cause": "memory-bound"}, "its kernels run for 31"),
    ("a", {"cause": "healthy"}, "its kernels run for 31"),
    ("a", {"phase": "bwd"}, "9.78 of 203"),
    ("a", {"phase": "decode"}, "is not a phase of this trace. Its phases are data_wait, h2d, fwd, bwd, opt"),
    ("a", {"idle": 84}, "Write 0.25 for 25%"),
    ("b", {"cause": "input-bound"}, "for 0 of 5.23 ms the GPU is idle while the host waits"),
    ("b", {"idle": 0.77}, "the profiler stretched its steps to 8.97 ms"),
    ("b", {"launches": 906}, "is for 3 steps. The question is about one step"),
    ("c", {"cause": "launch-bound"}, "has not launched the next kernel yet"),
    ("c", {"line": "planted.py:308"}, "only 6 of the 63 waits"),
    ("c", {"line": "train.py:1"}, "makes the host wait nowhere"),
    ("c", {"line": "361"}, "'361' is not a line. Write a file and a number in quotes, such as \"planted.py:41\""),
    ("c", {"line": 361}, "361 is not a line."),
    ("d", {"cause": "compute-bound"}, "its kernels run for 19.3 of 51.2 ms"),
    ("d", {"cause": "input-bound"}, "for 0 of 51.2 ms the GPU is idle while the host waits"),
    ("d", {"best_ms": 12}, "more than 10% off"),
    ("e", {"cause": "transfer-bound"}, "copies with no kernel beside them"),
    ("e", {"cause": "compute-bound"}, "half right"),
    ("e", {"cause": "slow"}, "'slow' is none of: input-bound"),
    ("e", {"cause": "overhead-bound"}, "say launch-bound (the same as overhead-bound)"),
    ("e", {"cause": "data-bound"}, "say input-bound or transfer-bound (data-bound is both)"),
    ("e", {"cause": [...]}, "[...] is none of"),
    ("e", {"cause": ["healthy"]}, "['healthy'] is none of"),
]


@pytest.mark.parametrize(("question", "said", "against"), WRONG)
def test_answers_wrong(question, said, against):
    """A wrong answer loses its own points only, and is told what speaks against it; the right cause is not named."""
    lab = labs.get("1c_diagnose")
    result = answered(lab.name, **{question: said})
    check = result.check(question)
    assert check.status == FAIL and against in check.reason
    assert result.score == 80 + check.points < 100
    right = read_answers(solution(lab))[question]["cause"]
    if "cause" in said and "none of" not in check.reason:
        assert right not in check.reason


@pytest.mark.parametrize("key", [1, 0.5, None, True, (), "cau"])
def test_answers_to_what_is_not_asked(key):
    """Such an entry of an answer is left out, whatever its key is, and the others count."""
    check = answered("1c_diagnose", a={key: 0.9}).check("a")
    assert check.status == PASS and key not in check.evidence["answered"]


def test_answers_wrong_about_a_busy_gpu():
    reason = answered("1e_retest", c={"cause": "compute-bound"}).check("c").reason
    assert "matmuls and convolutions take 8.68 of 33.1 ms, and 100% of that time is on tensor cores" in reason
    reason = answered("1e_retest", c={"cause": "healthy"}).check("c").reason
    assert "the GPU is busy, but matmuls and convolutions take only 8.68 of 33.1 ms" in reason


@pytest.mark.parametrize(
    "said",
    [
        "planted.py:361", "data/planted.py:361", "/course/data/planted.py:361", "planted.py: 361", "planted.py:338",
        # as profilers, tracebacks, editors and systems write a place
        "data/planted.py(361): step", "planted.py (361)", 'File "/course/data/planted.py", line 361, in step', "planted.py, line 361",
        "data\\planted.py:361", "C:\\course\\data\\planted.py:361", "planted.py:361:12", "planted.py:361 (step)", "planted.py#L361",
    ],
)  # fmt: skip
def test_answers_guilty_lines(said):
    assert answered("1c_diagnose", c={"line": said}).check("c").status == PASS


WRITTEN = {
    "one entry after another": 'answers = {}\nanswers["a"] = {"cause": "input-bound", "idle": 0.84}\nanswers["a"]["phase"] = "data_wait"',
    "by keywords": 'answers = dict(a=dict(cause="input-bound", idle=0.84, phase="data_wait"))',
    "with a type": 'answers: dict[str, dict] = {"a": {"cause": "input-bound", "idle": 0.84, "phase": "data_wait"}}',
    "anew": 'answers = {"b": 3}\nanswers["c"] = 4\nanswers = {"a": {"cause": "input-bound", "idle": 0.84, "phase": "data_wait"}}',
    "spelt otherwise": 'answers = {"a": {"cause": " Input_Bound", "idle": 0.84, "phase": "Data wait"}}',
    "beside other code": 'def f(answers):\n    answers["a"] = 1\nanswers = {"a": {"cause": "input-bound", "idle": 0.84, "phase": "data_wait"}}\nprint(answers["a"], len(answers))',
}


@pytest.mark.parametrize("how", WRITTEN)
def test_answers_in_every_form_of_writing(how):
    result = grade(cell(WRITTEN[how]), labs.get("1c_diagnose"))
    assert result.check("a").status == PASS and result.score == 20 and not result.warnings


HOSTILE = [
    ("x = 1", "has no `answers`"),
    ("answers['a'] = {}", "has no `answers`"),
    ("answers = {}\nanswers.update({'a': 1})", "not read (submission cell 1, line 3: answers.update({'a': 1}))"),
    ("answers = {}\nanswers |= {'a': 1}", "not read (submission cell 1, line 3: answers |= {'a': 1})"),
    ("answers = {'a': 1}\ndel answers['a']", "not read (submission cell 1, line 3: del answers['a'])"),
    ("answers = {}\nfor x in 'ab':\n    answers[x] = 1", "not read (submission cell 1, line 3: for x in 'ab':"),
    ("answers = {}\nanswers['a']['b'] = 1", "has no entry 'a' yet (submission cell 1, line 3)"),
    ("answers = {'a': 1}\nanswers['a']['b'] = 1", "cannot be read (submission cell 1, line 3)"),
    ("answers = {}\nanswers[f()] = 1", "submission cell 1, line 3: f() is no text or number"),
    ("answers = {}\nanswers['a'] = g()", "submission cell 1, line 3: g() is no text or number"),
    ("answers = {}\nanswers[[]] = 1", "cannot be read (submission cell 1, line 3)"),
    ("answers = dict(**{'a': 1})", "not written out"),
    ("answers = dict([('a', 1)])", "not written out"),
    ("def f():\n    answers = {}", "has no `answers`"),
    ("answers: dict", "has no `answers`"),
    ("answers = [1, 2]", "`answers` is a list (submission cell 1, line 2)"),
    (
        "answers = {'a': open('/etc/passwd').read()}",
        "not written out (submission cell 1, line 2: open('/etc/passwd').read() is no text",
    ),
    (
        "answers = {\n'a': {'cause': launch-bound, 'metric': data_wait},\n'b': {'idle': 1 / 3}, 'c': f()}",
        'not written out (submission cell 1, line 3: launch-bound needs quotes: "launch-bound", submission cell 1, line 3: data_wait needs quotes: '
        '"data_wait", submission cell 1, line 4: write the number that 1 / 3 comes to, submission cell 1, line 4: f() is no text or number)',
    ),
    ("answers = {'a': [" + "x, " * 30 + "]}", "and 18 more)"),
    (
        "IDLE = 0.84\nanswers = {'a': {'idle': IDLE, 'cause': healthy}}",
        'line 3: write what IDLE is, submission cell 1, line 3: healthy needs quotes: "healthy")',
    ),
    ("answers = {'a': {'idle': 1 - 2 / 5}}", "not written out"),
    ("answers = {'a': {'idle': float('nan')}}", "not written out"),
    ("answers = {'a': {'idle': 9 ** 9 ** 9}}", "not written out"),
    ("answers = {'a': f'{1}'}", "not written out"),
    ("answers = {'a': x for x in ()}", "not written out"),
    ("answers = {[]: 1}", "cannot be read"),
    ("answers = {**{}}", "cannot be read"),
    ("answers = " + "[" * 150 + "]" * 150, "`answers` is a list"),
    ("answers = " + "[" * 5000 + "]" * 5000, "syntax error: too many nested parentheses"),
    ("answers = " + "-" * 2000 + "1", "cannot be read"),
    # keys with one hash: to build such a dictionary takes as long as the square of their number
    (
        "answers = {" + ", ".join(f"{n * (2**61 - 1)}: 0" for n in range(6000)) + "}",
        "more than 5,000 names and numbers",
    ),
    ("answers = {'a': " + "9" * 5000 + "}", "Exceeds the limit"),
    ("answers = {'a': '" + "x" * (2 << 20) + "'}", "more than 1 MB"),
]


@pytest.mark.parametrize(("source", "message"), HOSTILE)
def test_answers_that_are_none(source, message):
    """Nothing is executed, and what is wrong is said, with its place."""
    try:
        result = grade(cell(source), labs.get("1c_diagnose"))
    except UserError as error:
        assert message in str(error)
        return
    assert message in result.fatal and result.score == 0
    assert {c.status for c in result.checks} == {FAIL}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e999", "inf is not a number"),
        ("True", "True is not a number"),
        ("'0.58'", "'0.58' is not a number. Write it without quotes and unit."),
        ("'58 %'", "'58 %' is not a number. Write 0.25 for 25%."),
        ("None", "not answered"),
        ("9" * 4000, "is not a number"),
        ("1j", "1j is not a number"),
        ("b'x'", "b'x' is not a number"),
        ("[" * 90 + "]" * 90, "is not a number"),
        ("'\\x1b[31m' + ''", "written out"),
        (repr("x" * 5000), "xxx [cut: 5,002 characters] is not a number"),
        ("{'deep': {}}", "is not a number"),
    ],
)
def test_answers_of_the_wrong_type(value, message):
    source = f"answers = {{'b': {{'cause': 'launch-bound', 'idle': {value}, 'launches': 302}}, 7: 8}}"
    result = grade(cell(source), labs.get("1c_diagnose"))
    if result.fatal:
        assert message in result.fatal
        return
    check = result.check("b")
    assert message in check.reason and check.points == 15 and len(check.reason) < 600
    assert "answers[7] belongs to no question" in result.warnings[0]
    json.dumps(result.to_dict(), allow_nan=False)
    result = grade(cell(f"answers = {{'b': {value}}}"), labs.get("1c_diagnose"))
    assert result.fatal or result.check("b").points == 0


@pytest.mark.parametrize("name", first(ANSWERS))
def test_answers_notebook_runs(name, tmp_path):
    """The solution's notebook from top to bottom."""
    shown = shown_by(name, tmp_path)
    assert "image/svg" in shown["look-a"] or "data:image" in shown["look-a"]
    assert "100 of 100 points" in shown["check"] and "20.0" in shown["grade-a"]
    for path in tmp_path.glob("*.ipynb"):
        assert path.stat().st_size < 1_500_000


def test_a_trace_that_cannot_be_written_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab = open_lab("1c_diagnose", device="cpu")
    lab.save("a")
    assert "is in this folder" in capsys.readouterr().out and trace.read("trace-a.json.gz").names
    (tmp_path / "trace-b.json.gz").mkdir()  # in its place, as a full disk or a folder of somebody else's would be
    lab.save("b")
    assert "Not saved" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"trace-a.json.gz", "trace-b.json.gz"}


@pytest.mark.slow
def test_answers_in_nbgrader(tmp_path):
    """Autograde reads the answers; the notebook is never executed."""
    name = "1c_diagnose"
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    shutil.copytree(REPOSITORY / "solutions" / name, tmp_path / "solutions" / name)
    nbgrader(tmp_path, "generate_assignment", name)
    released = nbformat.read(tmp_path / "labs" / name / f"{name}.ipynb", as_version=4)
    solved = nbformat.read(REPOSITORY / "solutions" / name / f"{name}.ipynb", as_version=4)
    mark = tmp_path / "executed"
    for student, source in (
        ("solver", by_id(solved)["submission"].source + f"\nopen({str(mark)!r}, 'w')"),
        ("starter", by_id(released)["submission"].source),
    ):
        nb = copy.deepcopy(released)
        by_id(nb)["submission"].source = source
        folder = tmp_path / "submitted" / student / name
        folder.mkdir(parents=True)
        nbformat.write(nb, folder / f"{name}.ipynb")
    nbgrader(tmp_path, "autograde", name)
    nbgrader(tmp_path, "generate_feedback", name)
    assert not mark.exists()
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as gradebook:
        for student, points in (("solver", 20), ("starter", 0)):
            grades = gradebook.find_submission_notebook(name, name, student).grades
            assert {g.name: g.auto_score for g in grades if g.name != "explanation"} == dict.fromkeys("abcde", points)
    page = (Path(tmp_path) / "feedback" / "solver" / name / f"{name}.html").read_text(encoding="utf-8")
    assert page.count("100 of 100 points") == 1, "the whole report stands in the first cell"


# ---------------------------------------------------------------- live loops


MYSTERY = labs.get("1d_mystery")


def guessed(**changes: object) -> str:
    """The solution's answers with those changes, {"loop_1": {...}, "ticket": ...}, as source text."""
    answers = read_answers(solution(MYSTERY))
    for key, value in changes.items():
        if key.startswith("loop_"):
            answers[int(key[5:])] = answers[int(key[5:])] | value if isinstance(value, dict) else value
        else:
            answers[key] = value
    return f"answers = {answers!r}".replace("Ellipsis", "...")


@pytest.mark.parametrize("form", ["cpu", "cuda"])
def test_mystery_draw(form):
    """A ticket stands for the same loops for ever; all causes occur, in all places."""
    drawn = [mystery.draw(MYSTERY, f"{form}-{number:06d}") for number in range(200)]
    assert drawn[7] == mystery.draw(MYSTERY, f"{form}-000007")
    for place in "1234":
        assert {loops[place].cause for loops in drawn} == {m.cause for m in MYSTERY.forms[form].choices}
    assert all(len({d.cause for d in loops.values()}) >= 3 for loops in drawn)
    assert len({json.dumps(d.options) for loops in drawn for d in loops.values()}) > 30
    for m in MYSTERY.forms[form].choices:
        assert set(mystery.SHOWS[m.cause]) & set(WORDS)


def test_mystery_tickets():
    assert mystery.new_ticket("cpu", "ada") == mystery.new_ticket("cpu", "ada") != mystery.new_ticket("cpu", "bob")
    assert len({mystery.new_ticket("cpu") for _ in range(5)}) > 1
    for ticket in ("", "cpu-1", "gpu-000001", "cpu-abcdef", "cpu-\u0661\u0661\u0661\u0661\u0661\u0661", "x" * 10**6):
        with pytest.raises(UserError, match="is not a ticket"):
            mystery.draw(MYSTERY, ticket)


def test_mystery_solution():
    result = grade(solution(MYSTERY), MYSTERY, device="cpu")
    proof = result.check("evidence")
    undecided = proof.max_points - proof.points if proof.status == INCONCLUSIVE else 0  # others had the processor
    assert result.score + undecided == 100, [c.reason for c in result.checks]


@pytest.mark.parametrize(("lost", "status"), [(0.0, FAIL), (0.6, INCONCLUSIVE)])
@pytest.mark.parametrize("value", [0.1, 0.4])
def test_mystery_number_that_is_off_while_others_had_the_processor_is_undecided(lost, status, value):
    answers = {"ticket": "cpu-000001", "1": {"cause": "memory-bound", "metric": "matmul", "value": value}}
    seen = mystery.Profiled(0.05, {"matmul": 0.12}, {}, lost)
    loops = {"1": mystery.Drawn("memory-bound", {}, None)}
    found = mystery.Findings(MYSTERY, "cpu", ticket_form="cpu", answers=answers, loops=loops, seen={"1": seen})
    judged = mystery._judge_evidence(found)
    assert judged.status == (PASS if value == 0.1 else status), judged.reason
    assert ("Other programs took 60%" in judged.reason) == (judged.status == INCONCLUSIVE)


def test_mystery_starter():
    result = grade(cell(MYSTERY.starter), MYSTERY, device="cpu")
    assert result.score == 0 and "has no ticket" in result.fatal
    assert grade(cell(guessed(loop_1=..., loop_2=..., loop_3=..., loop_4=...)), MYSTERY, device="cpu").score == 0


@pytest.mark.slow
def test_mystery_half():
    """Two causes right, one of them with the right row and a wrong number, one with a row that is about something else."""
    source = guessed(
        loop_1={"value": 0.3},
        loop_2={"cause": "compute-bound"},
        loop_3={"cause": "transfer-bound"},
        loop_4={"metric": "data_wait", "value": 0},
    )
    result = grade(cell(source), MYSTERY, device="cpu")
    assert result.score == 15 + 7.5 + 0 + 15 + 5
    evidence = result.check("evidence").reason
    assert "Loop 1: data_wait is the right row, but measured again it is 0." in evidence
    assert "Loop 2: counts when its cause is right" in evidence
    assert "Loop 4: data_wait doesn't show whether a loop is launch-bound" in evidence
    assert result.check("2").reason == "Half right. It is busy all the time, but is there anything to fix?"
    assert "Not transfer-bound: that cannot be here. There are input-bound, launch-bound" in result.check("3").reason


@pytest.mark.slow
def test_mystery_wrong():
    source = guessed(
        loop_1={"cause": "launch-bound"},
        loop_2={"cause": "input-bound"},
        loop_3={"cause": "lazy"},
        loop_4=["launch-bound"],
    )
    result = grade(cell(source), MYSTERY, device="cpu")
    assert result.score == 0
    each = r"Not launch-bound: [\d.]+ ms / 24\d operators = \d+ us each, and a call that does next to nothing takes about [\d.]+ us here\."
    assert re.fullmatch(each, result.check("1").reason)
    assert re.fullmatch(r"Not input-bound: waiting for data takes [\d.]+ of [\d.]+ ms\.", result.check("2").reason)
    lazy = result.check("3")
    assert lazy.reason == "'lazy' is none of: input-bound, launch-bound, memory-bound, healthy."
    assert "Copy the word" in lazy.hint and not lazy.more_hints
    assert "must be a dictionary with: cause, metric, value" in result.check("4").reason
    right = {name: drawn.cause for name, drawn in mystery.draw(MYSTERY, "cpu-000001").items()}
    assert not any(right[name] in result.check(name).reason for name in "12")


def as_measured(step_s: float, numbers: dict[str, float]) -> mystery.Profiled:
    return mystery.Profiled(step_s, numbers, {})


# what speaks against each wrong cause of these
READS = as_measured(0.0392, {"data_wait": 0.95, "cpu_ops": 243, "matmul": 0.015})
CALLS = as_measured(0.0026, {"data_wait": 0.0, "cpu_ops": 2600, "matmul": 0.18})
PRODUCTS = as_measured(0.05, {"data_wait": 0.0, "cpu_ops": 268, "matmul": 0.92})
BUSY_GPU = {"data_wait": 0.01, "gpu_idle": 0.02, "syncs": 0, "copies": 0.0, "launches": 500, "tensor_core_share": 0.98}
IDLE_GPU = {"data_wait": 0.01, "gpu_idle": 0.6, "syncs": 63, "copies": 0.001, "launches": 500, "matmul": 0.2}


@pytest.mark.parametrize(
    ("form", "seen", "said", "against"),
    [
        ("cpu", READS, "launch-bound", "39.2 ms / 243 operators = 161 us each, and a call that does next to nothing takes about 1 us"),
        ("cpu", READS, "memory-bound", "waiting for data takes 37.2 of 39.2 ms and matmuls take 0.588 of 39.2 ms, so 1.37 ms are left"),
        ("cpu", READS, HEALTHY, "matmuls take 0.588 of 39.2 ms"),
        ("cpu", CALLS, "input-bound", "waiting for data takes 0 of 2.6 ms"),
        ("cpu", CALLS, "memory-bound", "2.6 ms / 2,600 operators = 1 us each, and a call that does next to nothing takes about 1 us"),
        ("cpu", PRODUCTS, "memory-bound", "and matmuls take 46 of 50 ms, so 4 ms are left for the rest"),
        ("cuda", as_measured(0.02, BUSY_GPU | {"matmul": 0.7}), "input-bound", "waiting for data takes 0.2 of 20 ms"),
        ("cuda", as_measured(0.02, IDLE_GPU), "input-bound", "waiting for data takes 0.2 of 20 ms"),
        ("cuda", as_measured(0.02, IDLE_GPU), "transfer-bound", "copies with no kernel beside them take 0.02 of 20 ms"),
        ("cuda", as_measured(0.02, BUSY_GPU | {"copies": 0.7}), "memory-bound", "and its kernels run for 5.6 of 20 ms"),
        ("cuda", as_measured(0.02, BUSY_GPU), "sync-bound", "waits for the GPU 0 times per step, and the GPU is idle for only 0.4 of 20 ms"),
        ("cuda", as_measured(0.02, BUSY_GPU), "launch-bound", "the GPU is idle for only 0.4 of 20 ms"),
        ("cuda", as_measured(0.02, IDLE_GPU), "launch-bound", "20 ms / 500 launches = 40 us each, and one in a loop of small kernels takes"),
        ("cuda", as_measured(0.02, IDLE_GPU), "memory-bound", "and its kernels run for 7.98 of 20 ms"),
        ("cuda", as_measured(0.02, BUSY_GPU | {"matmul": 0.7}), "memory-bound", "convolutions take 14 of 20 ms, so 5.6 are left for the rest"),
        ("cuda", as_measured(0.02, BUSY_GPU | {"matmul": 0.2}), HEALTHY, "convolutions take 4 of 20 ms"),
        ("cuda", as_measured(0.02, BUSY_GPU | {"matmul": 0.7}), "compute-bound", "98% of the time in matmuls"),
    ],
)  # fmt: skip
def test_mystery_tells_what_speaks_against_a_cause(form, seen, said, against):
    found = mystery.Findings(MYSTERY, form, ticket_form=form, seen={"1": seen}, call_s=1e-6)
    assert against in mystery._against(found, "1", said)


def test_mystery_of_second_names():
    source = guessed(
        loop_1={"cause": "data-bound"}, loop_2={"metric": ...}, loop_3={"value": ...}, loop_4={"cause": ...}
    )
    result = grade(cell(source), MYSTERY, device="cpu")
    assert result.check("1").reason == "Say input-bound (the same as data-bound)."
    assert "Loop 3: matmul is the right row, but its value is missing." in result.check("evidence").reason
    assert result.check("4").evidence == {"answered": "not answered"}
    assert "Ellipsis" not in json.dumps(result.to_dict())


def test_mystery_of_a_mistyped_ticket():
    """Where the lab knows whose the answers are."""
    mine = replace(MYSTERY, ticket="cpu-991874")
    result = grade(cell(guessed(ticket="cpu-991873")), mine, device="cpu")
    assert result.fatal == "Your ticket is cpu-991874, but the answers are for cpu-991873. Nothing was graded."
    assert result.score == 0 and {check.status for check in result.checks} == {FAIL}
    assert mystery._another(mystery.Findings(mine, "cpu", ticket_form="cpu"), cell(""), mystery.EXAMPLE) == ""
    assert mystery._another(mystery.Findings(mine, "cpu", ticket_form="cuda"), cell(""), "cuda-000002") == ""
    assert read_answers(solution(MYSTERY))["ticket"] == mystery.EXAMPLE


def test_mystery_of_somebody_else():
    """In a class the loops follow from the student's name."""
    submission = replace(cell(guessed()), student="ada")
    result = grade(submission, MYSTERY, device="cpu")
    own = mystery.new_ticket("cpu", "ada")
    assert f"Your ticket is {own}, but the answers are for cpu-000001. Nothing was graded." in result.fatal
    assert result.score == 0 and 'student = "ada" leads to your loops' in result.fatal
    assert Job(MYSTERY.name, submission).digest != Job(MYSTERY.name, replace(submission, student="bob")).digest


@pytest.mark.skipif(machine.has_gpu(), reason="there is a GPU")
def test_mystery_of_a_gpu_without_one():
    causes = {name: drawn.cause for name, drawn in mystery.draw(MYSTERY, "cuda-000001").items()}
    answers = {"ticket": "cuda-000001"} | {name: {"cause": cause} for name, cause in causes.items()}
    result = grade(cell(f"answers = {answers}"), MYSTERY, device="cpu")
    assert result.check("evidence").status == NOT_MEASURED and result.score == 60


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("choice", MYSTERY.forms["cuda"].choices, ids=lambda choice: choice.case)
def test_mystery_loops_on_a_gpu(choice, end):
    """At both ends of its sizes each loop has its planted cause, and a number that shows it."""
    sizes = {name: bounds[end] for name, bounds in choice.sizes.items()}
    drawn = mystery.Drawn(choice.cause, {"case": choice.case, "sizes": sizes}, choice.data)
    recorded, step_s, _ = mystery.record(MYSTERY, "cuda", drawn)
    diagnosis = trace.analyse(recorded, step_ns=step_s * 1e9).diagnosis
    expected = (choice.cause,) if choice.cause != HEALTHY else ("compute-bound", "memory-bound")
    assert diagnosis.cause in expected, diagnosis.text
    assert any(metric in mystery._numbers(recorded, step_s) for metric in mystery.SHOWS[choice.cause])


@pytest.mark.slow
def test_mystery_notebook_runs(tmp_path):
    shown = shown_by(MYSTERY.name, tmp_path, device="cpu", quick=True)
    assert "data:image" in shown["profile-1"] and "data_wait" in shown["profile-4"]
    assert "100 of 100 points" in shown["check"] and "4 profiles took" in shown["check"]
    assert next(iter(json.loads((tmp_path / "mystery.json").read_text()))).startswith("cpu-")


# ---------------------------------------------------------------- a benchmark to repair

STOPWATCH = labs.get("1a_stopwatch")
CLOCK_AROUND = """
import time

def benchmark(job):
    start = time.perf_counter()
    for _ in range(30):
        for inputs, labels in job.loader:
            job.step(inputs, labels)
    return 30 * len(job.loader) * job.loader.batch_size / (time.perf_counter() - start)
"""
COUNTED = """
import time

def benchmark(job):
    seconds, samples = 0.0, 0
    for _ in range(60):
        for inputs, labels in job.loader:
            start = time.perf_counter()
            job.step(inputs, labels)
            seconds += time.perf_counter() - start
            samples += len(labels)
    return samples / seconds
"""
# the fastest of many epochs: no warm-up, all of the loading, but nothing of what is rare
FASTEST = """
import time

def benchmark(job):
    best = 0.0
    for _ in range(40):
        start, samples = time.perf_counter(), 0
        for inputs, labels in job.loader:
            job.step(inputs, labels)
            samples += len(labels)
        best = max(best, samples / (time.perf_counter() - start))
    return best
"""


def longer(timing: Timing) -> Timing:
    """The same job with waits twice as long: on a busy machine they end late by a smaller share."""
    sizes = {key: tuple(2 * s for s in size) if key.endswith("_s") else size for key, size in timing.sizes.items()}
    return replace(timing, sizes=sizes)


# the lies are off by a quarter and more
TOLERANT = replace(
    STOPWATCH,
    forms={"cpu": replace(STOPWATCH.forms["cpu"], within=0.15)},
    timings=tuple(map(longer, STOPWATCH.timings)),
)


def benchmarked(source: str, *names: str) -> dict[str, CheckResult]:
    """The verdicts on these jobs, on a CPU."""
    timings = tuple(timing for timing in TOLERANT.timings if timing.name in names)
    result = grade(cell(source), replace(TOLERANT, timings=timings), device="cpu", quick=True)
    assert not result.fatal, result.fatal
    return {check.name: check for check in result.checks}


def passed(check: CheckResult) -> bool:
    """Right as far as this machine can tell: while others keep it busy, two measurements of one job are not alike."""
    return check.status in (PASS, INCONCLUSIVE)


def failed(check: CheckResult, *words: str) -> bool:
    """Found to be wrong, in these words, as far as this machine can tell."""
    return check.status == INCONCLUSIVE or (check.status == FAIL and all(word in check.reason for word in words))


def skip_if_busy(checks: dict[str, CheckResult]) -> None:
    for check in checks.values():
        if check.status == INCONCLUSIVE:
            pytest.skip(check.reason)


@pytest.mark.slow
def test_stopwatch_solution():
    result = grade(solution(STOPWATCH), TOLERANT, device="cpu", quick=True)
    assert all(passed(check) for check in result.checks[:4]), [c.reason for c in result.checks]
    assert result.check("finished").status == NOT_MEASURED
    steady = [check for check in result.checks if check.status == PASS]
    assert result.score == 20 * len(steady)


@pytest.mark.slow
def test_stopwatch_starter():
    """Each lie is found by the job that it matters for, and its cause is named."""
    checks = benchmarked(STOPWATCH.starter, "loading", "warm_up", "count", "rare")
    for name, way, cause in (
        ("loading", "too high", "goes into loading batches"),
        ("warm_up", "too low", "compiles its model in the first step"),
        ("count", "too high", "last batch of each epoch is small"),
        ("rare", "too high", "writes a checkpoint"),
    ):
        assert failed(checks[name], way, cause) and checks[name].points == 0, checks[name].reason
        assert checks[name].status == INCONCLUSIVE or len(checks[name].more_hints) == 2
    skip_if_busy(checks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [(CLOCK_AROUND, "loading", "count"), (COUNTED, "count", "loading")],
    ids=["clock around the loop", "counted"],
)
def test_stopwatch_half(source, right, wrong):
    checks = benchmarked(source, right, wrong)
    assert passed(checks[right]), checks[right].reason
    assert failed(checks[wrong]), checks[wrong].reason
    skip_if_busy(checks)


@pytest.mark.slow
def test_stopwatch_fastest_epoch():
    checks = benchmarked(FASTEST, "rare")
    assert failed(checks["rare"], "too high"), checks["rare"].reason
    skip_if_busy(checks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "return 3000.0",  # the figure of some other machine, job or day
        "return len(job.loader) / 0.1",
    ],
)
def test_stopwatch_made_up(body):
    source = f"def benchmark(job):\n    for batch in job.loader:\n        job.step(*batch)\n    {body}\n"
    checks = benchmarked(source, "loading", "count")
    assert sum(c.points for c in checks.values()) <= 20, "sizes are drawn anew: one guess cannot fit all"


@pytest.mark.parametrize("kind", first(["numpy.float32", "fractions.Fraction"]))
def test_stopwatch_kinds_of_numbers(kind):
    """Any real number will do."""
    module = kind.partition(".")[0]
    counted = COUNTED.replace("return samples / seconds", f"return {kind}(samples / seconds)")
    check = benchmarked(f"import {module}\n{counted}", "count")["count"]
    assert passed(check), check.reason


@pytest.mark.parametrize("timing", STOPWATCH.timings[:4], ids=lambda timing: timing.name)
def test_stopwatch_knows_no_waits(timing):
    """Nothing that the process of a benchmark has of its job says how long that takes, and so nothing there can calculate its rate."""
    sizes = stopwatch.drawn(timing, 1)
    options, waits = stopwatch.served(sizes)
    secret = {size for name, size in sizes.items() if name in ("load_s", "log_s", "pause_s", "pause_every")}
    assert secret and not secret & set(options.values())
    every, pause_s = sizes.get("pause_every", 1), sizes.get("pause_s", 0)
    assert sum(waits["log"]) == pytest.approx(every * sizes["log_s"] + pause_s) and len(waits["log"]) == every
    assert waits.get("load", [None]) == [sizes.get("load_s")]
    job = stopwatch_workload.make_job(1, torch.device("cpu"), **options)  # takes them all
    assert len(job.loader) == sizes["batches"]


TOO_FEW = "with job.step, but an epoch has"


@pytest.mark.parametrize(
    ("source", "message"),
    first(
        [
            ("def train(job):\n    yield", "defines no function `benchmark(job)`"),
            ("benchmark = 12", "`benchmark` must be a function, but it is an int"),
            ("def benchmark(job):\n    pass", "must return a number, but it returned None"),
            ("def benchmark(job):\n    return '12'", "must return a number, but it returned a str"),
            ("def benchmark(job):\n    return True", "must return a number, but it returned a bool"),
            ("def benchmark(job):\n    return float('nan')", "must return a positive number, but it returned nan"),
            ("def benchmark(job):\n    return 10 ** 400", "submission raised OverflowError"),
            ("def benchmark(job):\n    return -1", "must return a positive number, but it returned -1"),
            # what the job's parts know of themselves gives the rate without a step
            (
                "def benchmark(job):\n    return len(job.loader) * job.loader.batch_size / 0.05",
                f"made 0 steps {TOO_FEW}",
            ),
            ("def benchmark(job):\n    job.step(*next(iter(job.loader)))\n    return 3000.0", f"made 1 step {TOO_FEW}"),
            ("def benchmark(job):\n    job.step = lambda *batch: None\n    return 3000.0", f"made 0 steps {TOO_FEW}"),
            ("def benchmark(job):\n    import os\n    os._exit(3)", "ended by itself (exit status 3)"),
            ("def benchmark(job):\n    return 1 / 0", "submission cell 1, line 3"),
        ],
        4,
    ),
)
def test_stopwatch_returns_no_figure(source, message):
    timings = STOPWATCH.timings[:1]
    result = grade(cell(source), replace(STOPWATCH, timings=timings), device="cpu", quick=True)
    assert message in result.fatal and result.score == 0
    assert result.checks[0].reason == "Not counted: the benchmark did not run (see above)."


def test_stopwatch_verdicts():
    """What follows from figures: nothing where the grader's own are apart, unless the benchmark's is much further off."""
    found = stopwatch.Findings(STOPWATCH, "cpu", seed=1)

    def verdict(said: float, *measured: float) -> CheckResult:
        found.figures = dict.fromkeys((t.name for t in STOPWATCH.timings), stopwatch.Figures(said, measured))
        return stopwatch.judge(found, cell(""))[0]

    assert verdict(1070, 1000, 1000).status == PASS
    assert verdict(1090, 1000, 1000).status == FAIL
    assert "because the grader's own two measurements differ" in verdict(1045, 1045, 955).reason
    assert verdict(1200, 1100, 900).status == INCONCLUSIVE and "too busy" in verdict(1200, 1100, 900).reason
    assert verdict(9000, 1100, 900).status == FAIL
    assert "13 times too high" in verdict(13000, 1000, 1000).reason
    found.figures = {}
    found.disturbed = "another program keeps this GPU busy."
    assert {c.status for c in stopwatch.judge(found, cell(""))} == {INCONCLUSIVE, NOT_MEASURED}


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_stopwatch_on_a_gpu():
    result = grade(solution(STOPWATCH), STOPWATCH)
    assert result.score == 100, [c.reason for c in result.checks]
    result = grade(cell(STOPWATCH.starter), STOPWATCH)
    assert result.score == 0, [c.reason for c in result.checks]


@pytest.mark.slow
def test_stopwatch_notebook_runs(tmp_path):
    shown = shown_by(STOPWATCH.name, tmp_path, device="cpu", quick=True)
    assert "The benchmark says" in shown["compare"] and "The benchmark says" in shown["grade-warm-up"]
    assert "NOT MEASURED" in shown["grade-finished"] and "FAIL" not in shown["check"]


# ---------------------------------------------------------------- a loop that records itself

ANNOTATE = labs.get("1b_annotate")
ANNOTATED = solution(ANNOTATE).source


def annotated(*edits: tuple[str, str]) -> Result:
    result = grade(cell(edit(ANNOTATED, list(edits))), ANNOTATE, device="cpu", quick=True)
    assert not result.fatal, result.fatal
    return result


def recorded(*edits: tuple[str, str]) -> tuple[CheckResult, CheckResult]:
    """The verdicts on the trace alone: its steps, and its phases."""
    found = annotate.Findings(ANNOTATE, "cpu")
    annotate.look(found, cell(edit(ANNOTATED, list(edits))), lambda share, what: None)
    return annotate.judge_window(found), annotate.judge_phases(found)


# The trace at job.trace stays what it was; later ones are written beside it.
ELSEWHERE = (
    (", repeat=1)", ")"),
    ("export_chrome_trace(job.trace)", "export_chrome_trace(f'{job.trace}.{profiler.step_num}' * (profiler.step_num > 16) or job.trace)"),
)  # fmt: skip
# Never written: what it costs is all there is of it.
UNWRITTEN = ((", repeat=1)", ")"), (": profiler.export", ": profiler.step_num > 16 or profiler.export"))


@pytest.mark.parametrize(
    ("edits", "goes_on"), first([((), False), (((", repeat=1)", ")"),), True), (ELSEWHERE, True), (UNWRITTEN, True)], 2)
)
def test_a_look_tells_whether_the_recording_ends(edits, goes_on):
    """Wherever the later traces are written to."""
    found = annotate.Findings(ANNOTATE, "cpu")
    annotate.look(found, cell(edit(ANNOTATED, list(edits))), lambda share, what: None)
    assert annotate.judge_window(found).status == PASS and found.goes_on == goes_on


@pytest.mark.slow
def test_annotate_solution():
    result = annotated()
    assert (result.check("window").points, result.check("phases").points) == (30, 50)
    assert passed(result.check("cost")) and result.check("parity").status == PASS
    assert result.timelines["after"]["lanes"]


def test_annotate_starter():
    result = grade(cell(ANNOTATE.starter), ANNOTATE, device="cpu", quick=True)
    assert result.score == 0
    assert "There is no trace at job.trace" in result.check("window").reason
    assert "Not counted" in result.check("cost").reason


@pytest.mark.slow
def test_annotate_profiles_for_ever():
    """A schedule that begins again: the right steps are not there any more."""
    window, _ = recorded((", repeat=1)", ")"), ("wait=10", "wait=1"), ("active=4", "active=2"))
    assert window.status == FAIL and "It must hold steps 12 to 15" in window.reason


@pytest.mark.slow
def test_annotate_records_again():
    """Every sixteen steps: the right steps are in the first trace, but the recording is never over."""
    result = annotated((", repeat=1)", ")"))
    assert (result.check("window").points, result.check("phases").points) == (30, 50)
    assert result.check("cost").points == 0 and "the recording goes on" in result.check("cost").reason


@pytest.mark.slow
def test_annotate_hides_its_recording_behind_a_speed_up():
    """Loader workers make the loop twice as fast, and it records on, into other files."""
    result = annotated(*ELSEWHERE, ("batch_sampler=job.batches", "batch_sampler=job.batches, num_workers=2"))
    assert (result.check("window").points, result.check("phases").points) == (30, 50)
    assert result.check("cost").points == 0 and "the recording goes on" in result.check("cost").reason


@pytest.mark.parametrize(
    ("own", "status", "said"),
    [
        ([1.0, 1.01, 1.0, 0.99], PASS, "After the recording the loop runs at 100"),
        ([0.97, 0.98, 0.97, 0.98], PASS, "After the recording the loop runs at 102"),
        ([0.5, 0.51, 0.5, 0.49], FAIL, "Leave the rest of the loop as it is"),
        ([1.5, 1.51, 1.5, 1.49], FAIL, "It may lose at most"),
        ([0.8, 1.6, 0.9, 1.5], INCONCLUSIVE, "too uncertain to say"),
    ],
)
def test_annotate_cost_verdicts(own, status, said):
    """What follows from timed pairs in which the plain loop takes a second a step."""
    found = annotate.Findings(ANNOTATE, "cpu")
    at_most = ANNOTATE.cost.at_most["cpu"]
    found.pairs = [decision.Pair(1.0, seconds) for seconds in own]
    found.decision = decision.decide_healthy(found.pairs, 1 - at_most, 10 * at_most, found.form.noise, 4)
    check = annotate._judge_cost(found, 1.0)
    assert check.status == status and said in check.reason, check
    assert check.points == (ANNOTATE.cost.points if status == PASS else 0)
    capped = annotate._judge_cost(found, 0.5)
    assert (bool(check.hint), bool(capped.hint)) == (said == "It may lose at most",) * 2
    assert ("The phases support 50%" in capped.reason) == (status == PASS)


@pytest.mark.slow
def test_annotate_other_training():
    result = annotated(("lr=job.lr", "lr=0.5 * job.lr"))
    assert result.score == 0 and "not the same training" in result.check("parity").reason


STEP = "            profiler.step()\n"
YIELD = "            yield loss.detach()\n"
LOOP = ") as profiler:\n        while True:\n"
COUNTED_OTHERWISE = [
    # edits, points of the window, what is said
    ([(LOOP, ") as profiler:\n        for _ in range(10):\n            profiler.step()\n        while True:\n")],
     15, "holds steps 2 to 5. It must hold steps 12 to 15"),
    ([("with profile(", "profiler = profile("), ("wait=10", "wait=0"), (STEP, f"            if i >= 10:\n    {STEP}"),
      (LOOP, ")\n    for i in range(10**9):\n        if i == 10:\n            profiler.start()\n        if True:\n")],
     30, "Steps 12 to 15 are recorded"),
    ([(STEP + YIELD, YIELD + STEP)], 30, "Steps 12 to 15 are recorded"),
    ([(STEP, ""), ("            with record_function(\"opt\")", STEP + "            with record_function(\"opt\")")],
     30, "Steps 12 to 15 are recorded"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "points", "said"), COUNTED_OTHERWISE, ids=["ahead", "late", "at the start", "within"]
)
def test_annotate_counts_the_loop_s_steps(edits, points, said):
    """A profiler counts calls of its step(), which are as many as the loop makes."""
    window, _ = recorded(*edits)
    assert window.points == points and said in window.reason, window.reason


HALF_ANNOTATED = [
    # edits, points of the window, of the phases, what is said
    ([("wait=10", "wait=5")], 15, 50, "holds steps 7 to 10. It must hold steps 12 to 15"),
    ([("            profiler.step()\n", "")], 0, 0, "There is no trace at job.trace"),
    ([("export_chrome_trace(job.trace)", "export_chrome_trace(job.trace + 'x')")], 0, 0, "There is no trace"),
    ([("lambda profiler: profiler.export_chrome_trace(job.trace)", "lambda _: open(job.trace, 'w').write('{')")], 0, 0, "can't be read as a trace"),
    ([('"h2d"', '"copy"'), ('"data_wait"', '"wait"')], 30, 30, "`data_wait` is not in the trace. `h2d` is not"),
    ([('with record_function("bwd"):\n                loss', 'with record_function("bwd"):\n                pass\n            loss')],
     30, 40, "`bwd` is not around the backward pass"),
    ([('            with record_function("opt"):\n                optimizer.step()\n                optimizer.zero_grad()\n',
       '            with record_function("opt"):\n                optimizer.zero_grad()\n            optimizer.step()\n')],
     30, 40, "`opt` is not around optimizer.step()"),
    ([('            with record_function("bwd"):\n                loss.backward()\n',
       '                with record_function("bwd"):\n                    loss.backward()\n')],
     30, 30, "`fwd` and `bwd` overlap"),
    ([('                loss = F', '            loss = F')], 30, 40, "`fwd` is not around the loss"),
    ([('                optimizer.zero_grad()\n', '            optimizer.zero_grad()\n')], 30, 40, "around optimizer.zero_grad()"),
    ([('                optimizer.zero_grad()\n', ''),
      ('                loss.backward()', '                optimizer.zero_grad()\n                loss.backward()')],
     30, 50, "Right: data_wait, h2d, fwd, bwd, opt"),
    ([('                optimizer.zero_grad()\n', ''),
      ('                logits =', '                optimizer.zero_grad()\n                logits =')],
     30, 40, "`opt` is not around optimizer.zero_grad(), and neither is `bwd`"),
    ([('                loss.backward()', '                loss.backward()\n            optimizer.zero_grad()'),
      ('                optimizer.step()', '                optimizer.zero_grad()\n                optimizer.step()')],
     30, 40, "`opt` is not around all of optimizer.zero_grad(), and neither is `bwd`"),
    ([('                optimizer.zero_grad()\n', '                model.zero_grad()\n')], 30, 50, "Right: data_wait, h2d, fwd, bwd, opt"),
    # pretences: names of operators without the work, and a little work beside the loop's
    ([('                inputs, targets = inputs.to', '                with record_function("aten::to"):\n                    pass\n            inputs, targets = inputs.to'),
      ('                loss.backward()', '                with record_function("autograd::engine::evaluate_function"):\n                    pass\n            loss.backward()')],
     30, 30, "`bwd` is not around the backward pass"),
    ([('                loss.backward()', '                torch.ones(1, requires_grad=True).sum().backward()\n            loss.backward()'),
      ('                loss = F', '                F.cross_entropy(torch.ones(1, 2), torch.zeros(1, dtype=torch.long))\n            loss = F')],
     30, 30, "`bwd` is not around all of the backward pass"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "window", "phases", "said"), first(HALF_ANNOTATED, 4), ids=[h[3] for h in HALF_ANNOTATED]
)
def test_annotate_half(edits, window, phases, said):
    checks = recorded(*edits)
    assert [check.points for check in checks] == [window, phases], [check.reason for check in checks]
    assert said in checks[0].reason + checks[1].reason


@pytest.mark.slow
def test_annotate_a_file_that_no_profiler_wrote():
    """It can be written at home: what is there without any recording earns nothing."""
    result = grade(cell(forges_its_recording.source(ANNOTATE.name)), ANNOTATE, device="cpu", quick=True)
    assert result.score == 0 and "no step of this run" in result.check("phases").reason


def test_annotate_a_trace_of_very_many_steps():
    """Memory and time for each step are the same, however many there are: 30,000 took four gigabytes and a minute."""
    made: dict[str, Any] = {}
    exec(forges_its_recording.TRACE, made)  # our own text
    found = annotate.Findings(ANNOTATE, "cpu")
    found.recorded = trace.read_bytes(made["trace"](20_000, found.mark).encode(), expect_gpu=False)
    tracemalloc.start()
    phases = annotate.judge_phases(found)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "Right: data_wait, h2d, fwd, bwd, opt." in phases.reason
    assert most < 100 << 20


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_annotate_on_a_gpu():
    result = grade(solution(ANNOTATE), ANNOTATE)
    assert result.score == 100, [c.reason for c in result.checks]
    result = grade(cell(edit(ANNOTATED, [("activities.append", "(lambda activity: None)")])), ANNOTATE)
    assert "Add ProfilerActivity.CUDA" in result.check("window").reason


@pytest.mark.slow
def test_annotate_notebook_runs(tmp_path):
    shown = shown_by(ANNOTATE.name, tmp_path, device="cpu", quick=True)
    assert "data:image" in shown["look"] and "Right: data_wait, h2d, fwd, bwd, opt." in shown["look"]
    assert "PASS, 30 / 30 points" in shown["grade-window"] and "PASS, 50 / 50 points" in shown["grade-phases"]
