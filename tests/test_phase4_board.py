"""What a grade leaves on disk, the leaderboard that is made of it, and the ladder in the notebook."""

import csv
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import LAB, grade_cells
from hypothesis import given, settings
from hypothesis import strategies as st

from grader import labs
from grader.errors import UserError
from grader.frontends import attempts as kept
from grader.frontends import board, cli, gain_pictures
from grader.frontends.notebook import open_lab
from grader.result import Result


@pytest.fixture(scope="module")
def graded() -> Result:
    return grade_cells(LAB.starter, quick=True)


def attempts(*changes: dict) -> list[kept.Attempt]:
    base = {"lab": "3a_precision", "when": "2026-11-21T10:00:00+00:00", "machine": "NVIDIA H200, 16 cores", "torch": "2.11.0",
            "form": "cuda", "points": 50.0, "max_points": 100.0, "gain": 2.0, "gain_lower": 1.9, "gain_upper": 2.1,
            "rate": 118200.4, "unit": "tokens/s", "counts": True, "said": "", "note": ""}  # fmt: skip
    return [kept.usable(base | change) for change in changes]


@pytest.mark.slow
def test_a_grade_leaves_a_line(graded, tmp_path):
    kept.keep(tmp_path, LAB, graded)
    kept.keep(tmp_path, LAB, graded)
    first, _ = kept.collect(tmp_path)
    throughput = graded.check("throughput").evidence
    assert first["lab"] == "3a_precision" and first["gain"] == throughput["gain"] and not first["note"]
    assert first["unit"] == "tokens/s" and first["rate"] == pytest.approx(8 * 64 / throughput["submission_ms"] * 1e3)
    assert first["torch"] == graded.versions["torch"] and str(graded.machine["cores"]) in first["machine"]
    kept.note(tmp_path, "3a_precision", "as it is\x1b[31m\nnext line" + "!" * 200)
    assert [each["note"][:8] for each in kept.collect(tmp_path)] == ["", "as it is"]
    assert "\x1b" not in kept.collect(tmp_path)[1]["note"]


def test_why_a_gain_does_not_count(graded):
    changed = Result.from_dict(json.loads(json.dumps(graded.to_dict())))
    changed.check("parity").status = "FAIL"
    assert (
        kept.from_result(LAB, changed)["said"] == "not the same training"
        and not kept.from_result(LAB, changed)["counts"]
    )
    changed.fatal = "NameError"
    assert kept.from_result(LAB, changed)["said"] == "did not run"
    impossible = Result.from_dict(json.loads(json.dumps(graded.to_dict())))
    speed = impossible.check("throughput")
    speed.status, speed.points, speed.evidence = "FAIL", 0, speed.evidence | {"impossible": True}
    assert not kept.from_result(LAB, impossible)["counts"]


def test_one_core_was_written_otherwise_once():
    (each,) = attempts({"machine": "AMD EPYC, 1 cores"})
    assert each["machine"] == "AMD EPYC, 1 core"
    assert attempts({"machine": "AMD EPYC, 11 cores"})[0]["machine"] == "AMD EPYC, 11 cores"


def test_two_notebooks_in_one_folder(graded, tmp_path):
    def keep(_):
        kept.keep(tmp_path, LAB, graded)

    with ThreadPoolExecutor(4) as together:
        list(together.map(keep, range(24)))
    assert len(kept.collect(tmp_path)) == 24


def test_a_damaged_file_is_put_aside(graded, tmp_path):
    path = kept.file_of(tmp_path, LAB.name)
    for damaged in ('[{"lab": "3a_precision", "note: 1}]', "{}", "[" * 100_000):
        path.write_text(damaged)
        kept.keep(tmp_path, LAB, graded)
        assert len(kept.read(path)) == 1
        assert damaged in [each.read_text() for each in tmp_path.glob(f"{path.name}.damaged-*")]


def test_best_first_on_each_machine():
    rows = attempts(
        {"note": "bf16", "points": 60.0},
        {"note": "wrong", "points": 5.0, "gain": 9.0, "counts": False, "said": "not the same training"},
        {"note": "compiled", "points": 60.0, "gain": 3.0},
        {"note": "quick", "points": 99.0, "quick": True},
        {"note": "elsewhere", "machine": "NVIDIA A100, 8 cores"},
        {"note": "another release", "torch": "2.12.1+cu130"},
        {"note": "earlier lab", "lab": "2a_workers", "unit": "images/s"},
    )
    found = list(board.ranked(rows))
    assert [lab for lab, _ in found] == ["2a_workers", "3a_precision"]
    machines = dict(found[1][1])
    assert list(machines) == ["NVIDIA A100, 8 cores, torch 2.11", "NVIDIA H200, 16 cores, torch 2.11", "NVIDIA H200, 16 cores, torch 2.12"]  # fmt: skip
    assert [each["note"] for each in machines["NVIDIA H200, 16 cores, torch 2.11"]] == [
        "compiled",
        "bf16",
        "wrong",
        "quick",
    ]


def test_exports(tmp_path, capsys):
    rows = attempts({"note": "=1+1"}, {"note": "<script>", "gain": None})
    (tmp_path / "3a_precision").mkdir()
    kept.write_json(kept.file_of(tmp_path / "3a_precision", "3a_precision"), rows)
    files = {kind: tmp_path / f"board.{kind}" for kind in ("html", "csv", "json")}
    options = [part for kind, file in files.items() for part in (f"--{kind}", str(file))]
    assert cli.main(["board", "3a_precision", "--folder", str(tmp_path), *options]) == 0
    shown = capsys.readouterr().out
    assert (
        "NVIDIA H200, 16 cores, torch 2.11" in shown
        and "118,200 tokens/s" in shown
        and "2.00x (1.90x to 2.10x)" in shown
    )
    assert json.loads(files["json"].read_text()) == rows
    table = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    assert (
        [row["note"] for row in table] == ["'=1+1", "<script>"] and table[0]["gain"] == "2.0" and table[1]["gain"] == ""
    )
    assert rows[0]["said"] == "" == table[0]["said"], "what is empty stays empty"
    page = files["html"].read_text()
    assert "&lt;script&gt;" in page and "<script>" not in page and page.count("<img") == 1 and "http" not in page.lower().replace("http-equiv", "")  # fmt: skip
    assert cli.main(["board", "--folder", str(tmp_path), "--csv", "-"]) == 0
    assert capsys.readouterr().out == files["csv"].read_text()


@pytest.mark.parametrize(
    ("points", "measured", "shown"),
    [(50.0, 100.0, "50 of 100"), (60.0, 60.0, "60 of 60 (of 100)"), (0.0, 60.0, "0 of 60 (of 100)"), (0.0, 0.0, "–"), (50.0, None, "50 of 100")],
)  # fmt: skip
def test_what_could_not_be_measured_is_not_shown_as_lost(points, measured, shown):
    rows = attempts({"points": points, "measured_points": measured})
    assert board.cells(1, rows[0])[board.HEAD.index("points")] == shown
    assert f" {shown} " in board.text(rows) and f">{shown}<" in board.page(rows)
    assert json.loads(json.dumps(rows))[0]["measured_points"] == measured and "measured_points" in board.as_csv(rows)


def test_a_program_that_did_not_run_has_no_points():
    """There nothing was measured either, and it is no matter of the machine."""
    (row,) = attempts({"points": 0.0, "measured_points": 0.0, "said": "did not run", "counts": False})
    assert board.cells(1, row)[board.HEAD.index("points")] == "0 of 100"


def test_nothing_there_says_what_to_do(tmp_path, capsys):
    with pytest.raises(UserError, match=r"no results of 2a_workers in .*lab\.check\(\)"):
        kept.collect(tmp_path, "2a_workers")
    assert cli.main(["board", "--folder", str(tmp_path)]) == 2
    assert cli.main(["board", "no_lab", "--folder", str(tmp_path)]) == 2
    assert "There is no lab 'no_lab'" in capsys.readouterr().err


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.dictionaries(st.sampled_from([*kept.Attempt.__annotations__]), anything))
def test_a_file_that_was_damaged_by_hand(damage):
    rows = attempts(damage | {"lab": "3a_precision"}, {})
    assert "3a_precision" in board.text(rows) and "</html>" in board.page(rows) and board.as_csv(rows).count("\n") >= 3


def test_a_number_of_any_length_stops_no_board():
    rows = attempts(
        {name: 10**400 for name in ("points", "gain", "gain_certain", "rate")} | {"lab": "3a_precision"}, {}
    )
    assert rows[0]["points"] is None and "3a_precision" in board.text(rows) and board.page(rows) and board.as_csv(rows)


def test_files_that_hold_no_attempts(tmp_path):
    for text in ("", "[", "{}", '["x"]', '[{"lab": "gone"}]', "[" * 100_000):
        kept.file_of(tmp_path, "3a_precision").write_text(text)
        with pytest.raises(UserError):
            kept.collect(tmp_path)


def test_many_attempts_are_drawn_as_the_last_ones():
    rows = attempts(*({"gain": 1 + n / 10, "when": f"2026-11-21T10:{n}"} for n in range(10, 50)))
    figure = gain_pictures.draw_ladder(rows)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(labels) == kept.SHOWN and labels[-1].endswith("11-21 10:49")


@pytest.mark.parametrize(("gain", "target"), [(12.0, 1.4), (12.0, 2.0), (1.1, 1.4), (2.0, 8.0)])
def test_the_words_above_the_picture_do_not_touch(gain, target):
    figure = gain_pictures.draw_ladder(
        attempts({"gain": gain, "gain_lower": gain, "gain_upper": gain, "target": target})
    )
    axes = figure.axes[0]
    above = [text.get_window_extent() for text in axes.texts if text.get_text().startswith(("starter", "target"))]
    assert len(above) == 2 and above[0].x1 + 3 < above[1].x0


def test_log_in_a_notebook(graded, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab = open_lab("3a_precision", device="cpu")
    lab.log("too early")
    assert "Run lab.check() first" in capsys.readouterr().out
    kept.keep(tmp_path, LAB, graded)
    lab.log("nothing changed")
    kept.keep(tmp_path, LAB, graded)
    lab.log("bf16")
    lab.log()
    shown = capsys.readouterr().out
    assert shown.rindex("nothing changed") < shown.rindex("bf16") and "tokens/s" in shown


def test_a_note_is_of_the_last_check(graded, tmp_path, monkeypatch, capsys):
    """Not of the one before it, where the last one came to nothing."""
    monkeypatch.chdir(tmp_path)
    lab = open_lab("3a_precision", device="cpu")
    kept.keep(tmp_path, LAB, graded)
    lab.log("workers")
    lab.predict(cause="compute-bound", gain=2)
    lab.check()
    assert "This is no notebook" in capsys.readouterr().out
    lab.log("bf16")
    assert "came to no result: there is nothing to note" in capsys.readouterr().out
    assert [each["note"] for each in kept.collect(tmp_path)] == ["workers"]


@pytest.mark.slow
def test_a_check_in_a_notebook_is_logged(tmp_path):
    from test_notebook import FAST, Kernel

    kernel = Kernel()
    try:
        kernel.run(f"import os; os.chdir({str(tmp_path)!r})")
        kernel.run("%load_ext grader")
        kernel.run("import grader\nlab = grader.lab('2a_workers', device='cpu', quick=True)")
        kernel.run(FAST, cell="a")
        kernel.run("lab.predict(cause='input-bound', gain=3, device='cpu')")
        kernel.run("lab.check()")
        logged = kernel.run("lab.log('eight workers')")
    finally:
        kernel.close()
    assert "eight workers" in logged.text and "<img" in logged.html, (logged.text, logged.error)
    (row,) = kept.collect(tmp_path)
    assert row["note"] == "eight workers" and row["quick"] and row["unit"] == "images/s" and row["gain"] > 1


def test_what_a_step_trains_on():
    work = {name: labs.get(name).forms["cuda"].work for name in ("2a_workers", "2b_transfers", "3a_precision")}
    assert work == {"2a_workers": (64, "images"), "2b_transfers": (64, "images"), "3a_precision": (16 * 1024, "tokens")}
    assert labs.get("3e_compile").forms["cuda"].work[1] == "tokens"
    assert {form.work for form in labs.get("4e_inference").forms.values()} == {(1, "requests")}
