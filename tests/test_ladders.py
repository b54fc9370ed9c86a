"""What was measured of a ladder, in the lab's notebook."""

import dataclasses
import json
from pathlib import Path

import pytest
from benchmarks import ladders, measured

from grader import labs, trace
from grader.errors import UserError
from grader.nightly import parts
from grader.nightly.night import Records
from grader.result import PASS, CheckResult, Result, write_json
from grader.version import version

CELL = """## The ladder, measured

Not measured yet: a command does.

| rung | ms a step | gain |
|---|---|---|
| starter: fp32 | | 1.0x |
| TF32 | | |
| the solution in a graph | | |
| the solution (compiled) | |  |

**Where this fix does not pay.** Elsewhere.
""".splitlines(keepends=True)
ROWS = [("starter", 100.0, 1.0), ("TF32", 50.04, 2.0), ("the solution", 25.0, 4.0)]
FACTS = {"machine": {"gpu": "NVIDIA H200", "cores": 16}, "versions": {"torch": "2.11.0", "python": "3.12.3"}}


def ladder(*rows: tuple[str, float, float]) -> dict:
    rungs = [dict(zip(("rung", "step_ms", "gain"), row, strict=True)) for row in rows]
    return {"rungs": rungs, "date": "2026-11-21", **FACTS}


def test_rungs_are_filled_by_their_names():
    text = "".join(ladders.filled(CELL, ladder(*ROWS), "3x_lab"))
    assert "| starter: fp32 | 100.0 | 1.00x |\n| TF32 | 50.0 | 2.0x |\n| the solution in a graph | | |\n" in text
    assert "| the solution (compiled) | 25.0 | 4.0x |\n" in text and text.endswith("pay.** Elsewhere.\n")
    assert "NVIDIA H200, 16 CPU cores, torch 2.11.0, Python 3.12, 2026-11-21. Empty rungs" in text


def test_a_lab_without_a_ladder_or_without_its_rows_is_named(tmp_path, monkeypatch, capsys):
    write_json(tmp_path / "2a_workers" / "ladder.json", ladder(("no row has this name", 1.0, 1.0)))
    monkeypatch.setattr("sys.argv", ["ladders", "--from", str(tmp_path), "--labs", "3a_precision"])
    with pytest.raises(SystemExit):
        ladders.main()
    assert "no ladder of 3a_precision" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["ladders", "--from", str(tmp_path), "--labs", "2a_workers"])
    ladders.main()
    assert "2a_workers: no row" in capsys.readouterr().out


def test_of_two_machines_the_one_that_lacks_fewer_rungs_is_shown(tmp_path):
    lab = labs.get("2a_workers")
    told = {what: measured.rung_digest(lab, "cuda", source) for what, source in measured.ladder_of(lab).items()}
    rows = [{"rung": what, "step_ms": 10.0, "gain": 1.0, "source": of} for what, of in told.items()]
    for folder, some in (("nvidia-a100", rows), ("nvidia-h200", rows[:-1])):
        write_json(tmp_path / folder / lab.name / "ladder.json", ladder() | {"rungs": some, "date": folder})
    assert ladders.to_show(tmp_path)[lab.name]["date"] == "nvidia-a100"
    older = [*rows[:-1], rows[-1] | {"source": "of another loop"}]
    write_json(tmp_path / "nvidia-h200" / lab.name / "ladder.json", ladder() | {"rungs": older, "date": "nvidia-h200"})
    assert ladders.to_show(tmp_path)[lab.name]["date"] == "nvidia-a100"
    write_json(tmp_path / "nvidia-h200" / lab.name / "ladder.json", ladder() | {"rungs": rows, "date": "nvidia-h200"})
    assert ladders.to_show(tmp_path)[lab.name]["date"] == "nvidia-h200"
    assert ladders.to_show(tmp_path / "nvidia-a100")[lab.name]["date"] == "nvidia-a100"
    told = {what: measured.rung_digest(lab, "cpu", source) for what, source in measured.ladder_of(lab).items()}
    rows = [{"rung": what, "step_ms": 10.0, "gain": 1.0, "source": of} for what, of in told.items()]
    on_a_cpu = ladder() | {"machine": FACTS["machine"] | {"gpu": None, "cpu": "Xeon"}, "rungs": rows, "date": "xeon"}
    write_json(tmp_path / "xeon" / lab.name / "ladder.json", on_a_cpu)
    write_json(
        tmp_path / "nvidia-h200" / lab.name / "ladder.json", ladder() | {"rungs": rows[:-1], "date": "nvidia-h200"}
    )
    (tmp_path / "nvidia-a100" / lab.name / "ladder.json").unlink()
    assert ladders.to_show(tmp_path)[lab.name]["date"] == "nvidia-h200"


def test_a_small_gain_is_not_rounded_to_a_larger_one():
    assert [ladders.times(gain) for gain in (0.09, 1.05, 1.996, 2.04, 18.24)] == [
        "0.09x",
        "1.05x",
        "2.00x",
        "2.0x",
        "18.2x",
    ]


def test_a_full_ladder_says_no_more_of_empty_rungs():
    some = ladders.filled(CELL, ladder(*ROWS), "3x_lab")
    text = "".join(ladders.filled(some, ladder(*ROWS, ("the solution in a graph", 20.0, 5.0)), "3x_lab"))
    assert "| the solution in a graph | 20.0 | 5.0x |" in text and "Empty" not in text and "not measured" not in text


def test_a_gap_in_another_table_of_the_cell_is_no_empty_rung():
    beside = [
        "| | tokens/s | of its peak | cosine |\n",
        "|---|---|---|---|\n",
        "| nanoGPT | 527,599 | 56.4% | |\n",
        "\n",
    ]
    rows = (*ROWS, ("the solution in a graph", 20.0, 5.0))
    text = "".join(ladders.filled([*CELL[:4], *beside, *CELL[4:]], ladder(*rows), "3x_lab"))
    assert "".join(beside) in text and "Empty" not in text


def test_a_rung_of_another_loop_is_marked_until_it_is_measured_anew():
    some = ladders.filled(CELL, ladder(*ROWS), "3x_lab", {"TF32", "the solution"})
    text = "".join(some)
    assert "| TF32 (before a change) | 50.0 | 2.0x |\n" in text
    assert (
        "| the solution (compiled) (before a change) | 25.0 | 4.0x |\n" in text
        and "Rungs (before a change) are of an older" in text
    )
    assert "".join(ladders.filled(some, ladder(*ROWS), "3x_lab")) == "".join(
        ladders.filled(CELL, ladder(*ROWS), "3x_lab")
    )


def test_notebooks_say_what_was_measured():
    """The figures of a ladder stand in the notebook, with their machine, and which of them are not of today's loop and form."""
    for lab, told in ladders.to_show(ladders.MEASURED).items():
        path = ladders.REPOSITORY / "solutions" / lab / f"{lab}.ipynb"
        cell = next(cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["id"] == "ladder")
        assert ladders.filled(cell["source"], told, lab, measured.stale_rungs(labs.get(lab), told)) == cell["source"], (
            lab
        )


@pytest.mark.parametrize("name", labs.loops())
def test_each_rung_has_a_row(name):
    """Else it is measured and never shown."""
    notebook = json.loads((ladders.REPOSITORY / "solutions" / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    cell = next((cell for cell in notebook["cells"] if cell["id"] == "ladder"), None)
    if not cell or "cuda" not in labs.get(name).forms:
        return
    rows = [line.removeprefix("| ").split(" |")[0] for line in cell["source"] if line.count("|") == 4]
    if not rows:  # 3g's is of memory
        return
    for rung in ("starter", *dict(measured.rungs(name))):
        assert sum(ladders.bears(row, rung) for row in rows) == 1, rung


def test_a_figure_is_that_of_one_loop(tmp_path):
    lab, path = labs.get("3a_precision"), tmp_path / "one.json"
    of = measured.digest(lab, "cuda", lab.starter)
    assert of != measured.digest(lab, "cuda", lab.starter + "\n") and of == measured.digest(lab, "cuda", lab.starter)
    assert not measured._is_there(path, of)
    path.write_text(json.dumps({"what": "starter-1", "source": of}))
    assert measured._is_there(path, of)
    path.write_text(json.dumps({"what": "starter-1"}))
    assert not measured._is_there(path, of)


def test_results_of_several_sizes_of_machine_say_so(tmp_path):
    """The page gave all of a lab's the machine of its first, and the picture a title longer than itself."""
    for number, (cores, day) in enumerate(((16, "2026-11-21"), (4, "2026-11-26")), 1):
        facts = {"machine": FACTS["machine"] | {"cores": cores}, "versions": FACTS["versions"]}
        made = Result(lab="3a_precision", title="", form="cuda", checks=[], date=f"{day} 10:00 UTC", **facts)
        measured._keep(tmp_path / "3a_precision" / f"starter-{number}.json", f"starter-{number}", "", made.to_dict())
    text = measured._table(tmp_path, [])
    assert "\nNVIDIA H200, 4 or 16 cores, torch 2.11.0, python 3.12.3; 2026-11-21 to 2026-11-26\n" in text


def test_a_result_that_a_kill_left_is_measured_again(tmp_path):
    """Its picture is written before it, and a power cut can leave it empty."""
    folder = tmp_path / "3a_precision"
    folder.mkdir()
    (folder / measured.TIMELINES).touch()
    (folder / "starter-1.json").touch()
    assert not measured._is_there(folder / "starter-1.json", "")
    assert "3a_precision" not in measured._table(tmp_path, [])


def night(folder: Path, result: dict) -> Path:
    """A night as its folder tells it, of one solution's grade."""
    told = {"date": "", "device": "cuda", "quick": False, "select": {}, "grader": version(), "torch": "", "commit": ""}
    told["select"] = {"kinds": ["grade"], "labs": ["3a_precision"], "lessons": [], "adversaries": [1, 1]}
    write_json(folder / "night.json", told)
    (part,) = (p for p in parts.planned(told) if p.what == "solution")
    Records(folder).put(part.task, {"machine": "one", "version": version(), "seconds": 1.0, "result": result})
    return folder


def test_what_came_to_no_grade_is_not_taken_over_from_a_night(tmp_path, monkeypatch):
    facts = {"machine": FACTS["machine"], "versions": FACTS["versions"], "date": "2026-11-21 10:00 UTC"}
    checks = [CheckResult("parity", "", PASS, 0, 0, "")]
    graded = Result(lab="3a_precision", title="", form="cuda", checks=checks, **facts).to_dict()
    not_here = graded | {"checks": [graded["checks"][0] | {"status": "NOT MEASURED"}]}
    made = ({"why": "a cell raised"}, graded | {"disturbed": "Somebody else."}, not_here, graded)
    for n, result in enumerate(made):
        measured._take_over(night(tmp_path / f"night-{n}", result), tmp_path / f"out-{n}")
    assert [path.parts[-3] for path in tmp_path.glob("out-*/*/*.json")] == ["out-3"]
    # a round of several stays
    first = tmp_path / "out-3" / "3a_precision" / "solution-1.json"
    kept = json.loads(first.read_text()) | {"date": "before"}
    for path, stays in ((first, False), (first.with_name("solution-2.json"), True)):
        write_json(path, kept)
        write_json(first, kept)
        measured._take_over(tmp_path / "night-3", tmp_path / "out-3")
        assert (json.loads(first.read_text())["date"] == "before") == stays
    # the machine that reports is not the one that graded
    monkeypatch.setattr(measured, "MEASURED", tmp_path)
    assert measured._take_over(tmp_path / "night-3") == tmp_path / measured._slug(FACTS["machine"]["gpu"])
    with pytest.raises(UserError, match="There is no night"):
        measured._take_over(tmp_path, tmp_path)


def test_a_field_that_came_later_changes_no_figure():
    lab = labs.get("3a_precision")
    form = lab.forms["cuda"]
    later = dataclasses.make_dataclass("Later", [("later", int | None, None)], bases=(type(form),), frozen=True)
    same = later(**{each.name: getattr(form, each.name) for each in dataclasses.fields(form)})
    of = measured.digest(lab, "cuda", lab.starter)
    assert measured.digest(dataclasses.replace(lab, forms={"cuda": same}), "cuda", lab.starter) == of
    used = dataclasses.replace(same, later=1)
    assert measured.digest(dataclasses.replace(lab, forms={"cuda": used}), "cuda", lab.starter) != of


def test_a_tolerance_or_a_learning_rate_changes_grades_and_no_rung():
    """A ladder was shown as of an older form for nothing but another tolerance."""
    lab = labs.get("3a_precision")
    form = lab.forms["cuda"]
    strict = dataclasses.replace(form, parity=dataclasses.replace(form.parity, loss=form.parity.loss / 2))
    calmer, slower = (dataclasses.replace(form, options=form.options | more) for more in ({"lr": 1e-9}, {"layers": 99}))
    for of, changes in ((measured.digest, [strict, calmer, slower]), (measured.rung_digest, [slower])):
        every = (form, strict, calmer, slower)
        told = {of(dataclasses.replace(lab, forms={"cuda": each}), "cuda", lab.starter) for each in every}
        assert len(told) == 1 + len(changes)


def test_a_ladder_that_was_measured_on_several_days_and_machines_says_so():
    rows = [row | {"date": date} for row, date in zip(ladder(*ROWS)["rungs"], ("2026-11-20", "2026-11-21", "2026-11-22"), strict=True)]  # fmt: skip
    rows[0] |= {"cores": 32, "torch": "2.12.0"}
    text = "".join(ladders.filled(CELL, ladder() | {"rungs": rows}, "3x_lab"))
    assert "16 or 32 CPU cores, torch 2.11.0 and 2.12.0, Python 3.12, 2026-11-20 to 2026-11-22." in text


def test_a_rung_keeps_its_machine_when_another_one_adds_to_the_ladder(tmp_path):
    """Rows of older files name none, and were shown as if they were of the machine that came last."""
    lab, folder = labs.get("3a_precision"), tmp_path / "3a_precision"
    told = {what: measured.rung_digest(lab, "cuda", source) for what, source in measured.ladder_of(lab).items()}
    rows = [{"rung": what, "step_ms": 1.0, "gain": 1.0, "source": source} for what, source in told.items()]
    write_json(folder / "ladder.json", ladder() | {"rungs": [row for row in rows if row["rung"] != "TF32"]})
    evidence = {"starter_ms": 100.0, "submission_ms": 50.0, "gain": 2.0}
    check = CheckResult("throughput", "", PASS, 1, 1, "", evidence=evidence)
    facts = {"machine": FACTS["machine"] | {"cores": 32}, "versions": {"torch": "2.12.0", "python": "3.12.3"}}
    half = Result(lab=lab.name, title="", form="cuda", checks=[check], date="2026-11-25 10:00 UTC", **facts)
    of = measured.digest(lab, "cuda", measured.ladder_of(lab)["TF32"])
    measured._keep(folder / "half-tf32.json", "half, TF32", of, half.to_dict())
    measured._ladder(lab, "cuda", folder)
    made = json.loads((folder / "ladder.json").read_text())["rungs"]
    assert [row["rung"] for row in made] == [*told]
    for row in made:
        of = ("2026-11-25", 32, "2.12.0") if row["rung"] == "TF32" else ("2026-11-21", 16, "2.11.0")
        assert (row["date"], row["cores"], row["torch"]) == of


def test_a_solution_s_first_grade_leaves_the_trace_before_and_after(tmp_path):
    traces = ladders.REPOSITORY / "data" / "traces"
    timelines = {
        "before": trace.timeline(trace.read(traces / "gpt_launch.json.gz")),
        "after": trace.timeline(trace.read(traces / "gpt_launch_fixed.json.gz")),
    }
    facts = {"machine": FACTS["machine"], "versions": FACTS["versions"], "date": "2026-11-21 10:00 UTC"}
    graded = Result(lab="3a_precision", title="", form="cuda", checks=[], timelines=timelines, **facts).to_dict()
    for what in ("starter-1", "solution-1"):
        measured._keep(tmp_path / "3a_precision" / f"{what}.json", what, "", graded)
        assert (tmp_path / "3a_precision" / measured.TIMELINES).exists() == (what == "solution-1")
    assert json.loads((tmp_path / "3a_precision" / "solution-1.json").read_text())["timelines"] == {}
    text = measured._table(tmp_path, [])
    assert "(3a_precision/timelines.png)" in text


def test_a_figure_of_another_loop_is_marked(tmp_path):
    """By its digest: a grade that has one was once shown as if it were of the loop and the form as they are."""
    lab, folder = labs.get("3a_precision"), tmp_path / "3a_precision"
    facts = {"machine": FACTS["machine"], "versions": FACTS["versions"], "date": "2026-11-21 10:00 UTC"}
    graded = Result(lab=lab.name, title="", form="cuda", checks=[], **facts).to_dict()
    now = measured.digest(lab, "cuda", lab.starter)
    others = {"half, TF32": now, "trains-ahead-1": now, "honest, none of today's": now}
    for what, source in {"starter-1": now, "starter-2": "0123456789ab", **others}.items():
        measured._keep(folder / f"{what}.json", what, source, graded)
    rung = measured.rung_digest(lab, "cuda", lab.starter)
    rungs = [{"rung": "starter", "source": rung}, {"rung": "TF32", "source": rung}]
    rows = [row | {"step_ms": 1.0, "gain": 1.0} for row in rungs]
    (folder / "ladder.json").write_text(json.dumps(ladder() | {"rungs": rows}))
    text = measured._table(tmp_path, [])
    old = [line.split("|")[1].strip() for line in text.splitlines() if "(before a change)" in line]
    changed = ["half, TF32", "starter-2", "trains-ahead-1", "honest, none of today's", "TF32"]
    assert old == [f"{what} (before a change)" for what in changed]
