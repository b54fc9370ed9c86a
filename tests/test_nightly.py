"""A night: what it consists of, what it finds, and that it finds nothing where nothing is."""

import copy
import importlib.util
import json
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from helpers import eventually

from grader import labs
from grader.classroom import pool
from grader.classroom.store import FAILED as NOT_MADE
from grader.classroom.submissions import Call, Job
from grader.course import execute, outline
from grader.errors import UserError
from grader.frontends import cli
from grader.measure import decision
from grader.nightly import judging, measuring, parts, report
from grader.nightly import night as nights
from grader.nightly import notebook as notebook_part
from grader.nightly.history import Change, History, judge
from grader.nightly.night import Night
from grader.nightly.parts import Part
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED
from grader.version import definition
from tests.adversaries import _run

REPOSITORY = Path(__file__).resolve().parents[1]
MEASURED = REPOSITORY / "data" / "measured" / "nvidia-h200"
GPU_BOUND, DATA_BOUND = "3a_precision", "2a_workers"
TOLD = {"date": "2026-11-21", "device": "cuda", "quick": False, "select": {}, "grader": "1", "torch": "2.11.0"}
TOLD |= {"commit": "abc", "host": {"gpu": "NVIDIA H200", "cores": 16, "driver": "580"}, "packages": {"numpy": "2.5.2"}}

# ---------------------------------------------------------------- nights of recorded results


def recorded(lab: str, what: str, number: int, slower: float = 1.0, driver: str = "580") -> dict[str, Any]:
    """A grade as it was measured on an H200; slower: the submission's times are so many times as long."""
    result = json.loads((MEASURED / lab / f"{what}-{number}.json").read_text())
    for name in ("what", "source"):  # which only tell what it is of
        result.pop(name)
    result["machine"]["driver"] = driver
    evidence = next(c["evidence"] for c in result["checks"] if c["name"] == "throughput")
    evidence["pairs"] = [[a, slower * b] for a, b in evidence["pairs"]]
    evidence["submission_ms"] *= slower
    for name in ("gain", "gain_lower", "gain_upper"):
        evidence[name] /= slower
    return {
        "result": result,
        "machine": "NVIDIA H200, 16 cores, torch 2.11",
        "version": "1",
        "seconds": 40.0,
        "worker": "0",
    }


class Replayed:
    """Nights of recorded grades of two labs, one after the other, in one history."""

    def __init__(self, out: Path, seed: int = 0) -> None:
        self.out, self.random = out, random.Random(seed)
        self.history = History(out / "history.jsonl")
        self.parts = parts.plan("cuda", False, ["grade"], [DATA_BOUND, GPU_BOUND])
        self.count = 0

    def night(
        self, slower: dict[str, float] | None = None, told: dict[str, Any] = TOLD
    ) -> tuple[Night, judging.Assessed]:
        """One more night, made to its end; slower: by lab."""
        self.count += 1
        night = nights.open_night(self.out / f"night-{self.count:03}", told, self.parts, self.history)
        wanted = [(part, 0) for part in self.parts]
        while wanted:
            for part, run in wanted:
                factor = (slower or {}).get(part.subject, 1.0) if part.what == "solution" else 1.0
                number, driver = self.random.randint(1, 5), told["host"]["driver"]
                night.records.put(part.again(run), recorded(part.subject, part.what, number, factor, driver))
            found = judging.assess(night)
            wanted = judging.again(night, found)
        report.close(night, found)
        assert judging.finished(night, found)
        return night, found


@pytest.mark.parametrize("seed", range(3))
def test_twenty_unchanged_nights_raise_no_alarm(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(report, "write", lambda night, found: None)  # sixty pages that nobody reads
    replayed = Replayed(tmp_path, seed)
    for _ in range(20):
        _, found = replayed.night()
        assert found.worst() == parts.OK, [each.why for each in found.outcomes]
    assert len(replayed.history.nights()) == 20
    assert set(found.changes) == {f"grade {lab} solution" for lab in (DATA_BOUND, GPU_BOUND)}


@pytest.mark.slow
@pytest.mark.parametrize(("lab", "slower"), [(GPU_BOUND, 1.03), (DATA_BOUND, 1.25)])
@pytest.mark.parametrize("before", [5, 20])
def test_a_slowed_solution_is_found(tmp_path, lab, slower, before, monkeypatch):
    write = report.write
    monkeypatch.setattr(report, "write", lambda night, found: None)
    replayed = Replayed(tmp_path)
    for _ in range(before):
        replayed.night()
    monkeypatch.setattr(report, "write", write)
    told = TOLD | {"packages": {"numpy": "2.6.0"}, "host": TOLD["host"] | {"driver": "590"}}
    night, found = replayed.night({lab: slower}, told)
    assert found.worst() == parts.SLOWER
    wrong = {each.part.name: each for each in found.outcomes if each.status != parts.OK}
    assert wrong.keys() == {f"grade {lab} solution"}
    assert wrong[f"grade {lab} solution"].runs == parts.TRIES  # not on the word of one run
    step = next(c for c in found.changes[f"grade {lab} solution"] if c.series == "step_ms")
    assert step.slower and step.found.factor == pytest.approx(1 / slower, rel=0.02)
    assert step.found.lower < step.found.factor < step.found.upper < 1
    text = (night.folder / "summary.md").read_text()
    assert "90% interval" in text and "driver: 580 -> 590" in text and "numpy: 2.5.2 -> 2.6.0" in text
    # it is no yardstick: the next night is compared with the nights before it, and is slower as well
    _, found = replayed.night({lab: slower})
    assert found.worst() == parts.SLOWER
    # until somebody says that this is how it should be
    arguments = ["nightly", "--out", str(tmp_path), "--accept", f"grade {lab} solution"]
    assert cli.main(arguments) == 0
    for _ in range(6):
        _, found = replayed.night({lab: slower})
        assert found.worst() == parts.OK


def test_other_machines_and_software_are_not_compared(tmp_path):
    replayed = Replayed(tmp_path)
    for _ in range(5):
        replayed.night()
    name = f"grade {GPU_BOUND} solution"
    assert len(replayed.history.before(name, "NVIDIA H200, 16 cores, torch 2.11", False)) == 5
    assert not replayed.history.before(name, "NVIDIA H200, 16 cores, torch 2.15", False)
    assert not replayed.history.before(name, "NVIDIA H200, 16 cores, torch 2.11", True)


def test_one_slow_run_is_noise(tmp_path):
    """What is slow once and not when it is measured again raises no alarm."""
    replayed = Replayed(tmp_path)
    for _ in range(6):
        replayed.night()
    night = nights.open_night(tmp_path / "one", TOLD, replayed.parts, replayed.history)
    for part in replayed.parts:
        factor = 1.5 if part.what == "solution" else 1.0
        night.records.put(part.again(0), recorded(part.subject, part.what, 1, factor))
    wanted = judging.again(night, judging.assess(night))
    assert {part.name for part, run in wanted} == {f"grade {lab} solution" for lab in (DATA_BOUND, GPU_BOUND)}
    while wanted:
        for part, run in wanted:
            night.records.put(part.again(run), recorded(part.subject, part.what, run + 1))
        found = judging.assess(night)
        wanted = judging.again(night, found)
    assert found.worst() == parts.OK


def test_a_disturbed_run_hides_no_slowness(tmp_path):
    replayed = Replayed(tmp_path)
    for _ in range(6):
        replayed.night()
    (part,) = (p for p in replayed.parts if p.subject == GPU_BOUND and p.what == "solution")
    night = nights.open_night(tmp_path / "one", TOLD, [part], replayed.history)
    for run, disturbed in enumerate(("", "Somebody else.", "", "")):
        assert run in (0, *(run for _, run in judging.again(night, judging.assess(night))))
        record = recorded(part.subject, part.what, run + 1, 1.03)
        record["result"]["disturbed"] = disturbed
        night.records.put(part.again(run), record)
    found = judging.assess(night)
    assert found.worst() == parts.SLOWER and judging.finished(night, found)


def test_command_line_closes_a_replayed_night(tmp_path, capsys):
    """Exit statuses, the three files, and that a night is in the history once."""
    replayed = Replayed(tmp_path)
    for _ in range(6):
        replayed.night()
    select = {"kinds": ["grade"], "labs": [DATA_BOUND, GPU_BOUND], "lessons": [], "adversaries": [1, 1]}
    nights.open_night(tmp_path / "last", nights.describe("cuda", False, select), [], replayed.history)
    command = ["nightly", "--report", "--out", str(tmp_path), "--night", "last"]
    assert cli.main(command) == 4  # nothing of it is there
    assert "4 parts are missing" in capsys.readouterr().err
    records = nights.Records(tmp_path / "last")
    for part in replayed.parts:
        for run in range(parts.TRIES):
            slow = 1.03 if part.subject == GPU_BOUND and part.what == "solution" else 1.0
            records.put(part.again(run), recorded(part.subject, part.what, run + 1, slow))
    for _ in range(2):
        assert cli.main(command) == 3
    assert [entry["night"] for entry in replayed.history.nights()].count("last") == 1
    broken = recorded(DATA_BOUND, "solution", 1)
    for run in range(parts.TRIES):
        broken["result"]["fatal"] = "The loop raised <ValueError> on purpose."
        records.put(replayed.parts[0].again(run), broken)
    assert cli.main(command) == 1
    said = capsys.readouterr().out
    assert "Something failed: 1 failed, 1 slower, 2 ok" in said and "on purpose" in said
    suite = ET.parse(tmp_path / "last" / "junit.xml").getroot().find("testsuite")
    assert suite is not None and suite.attrib["failures"] == "2"
    assert {f.attrib["type"] for f in suite.iter("failure")} == {"failed", "slower"}
    page = (tmp_path / "last" / "index.html").read_text()
    assert "<script" not in page and "data:image/" in page and "&lt;ValueError&gt;" in page
    assert "last/index.html" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("named", [["--night", "small"], []])
def test_a_report_is_of_what_its_night_consists_of(tmp_path, named, capsys):
    """Whatever the command line says of it: quick, and the labs, stand in its night.json."""
    select = {"kinds": ["solution", "grade"], "labs": [DATA_BOUND], "lessons": [], "adversaries": [1, 1]}
    told = nights.describe("cpu", True, select) | {"torch": "2.0.0"}
    nights.open_night(tmp_path / "small", told, [], History(tmp_path / "history.jsonl"))
    assert cli.main(["nightly", "--report", "--out", str(tmp_path), *named]) == 4
    assert "night small: 3 parts" in capsys.readouterr().err
    assert json.loads((tmp_path / "small" / "night.json").read_text()) == told


def test_a_report_of_another_state_says_how_it_is_made(tmp_path, capsys):
    nights.open_night(tmp_path / "old", TOLD, [], History(tmp_path / "history.jsonl"))
    assert cli.main(["nightly", "--report", "--out", str(tmp_path), "--night", "old"]) == 2
    said = capsys.readouterr().err
    assert "by grader 1, and this is" in said and "that state of the course, commit abc" in said
    assert cli.main(["nightly", "--report", "--out", str(tmp_path), "--night", "odl"]) == 2
    assert "There is no night in" in capsys.readouterr().err and not (tmp_path / "odl").exists()


def test_the_page_shows_the_worse_of_a_lab_and_no_figures_of_what_was_not_made(tmp_path):
    made = parts.plan("cuda", False, ["solution", "grade"], [DATA_BOUND])
    notebook, solution, starter = made
    ok = parts.Outcome(solution, parts.OK, points=100, out_of=100, runs=1)
    skipped = parts.Outcome(solution, parts.SKIPPED, points=0, out_of=0, runs=1)
    failed = parts.Outcome(starter, parts.FAILED, "the untouched lab has 9 of 100 points", points=9, out_of=100, runs=1)
    night = nights.open_night(tmp_path / "n", TOLD, made, History(tmp_path / "h.jsonl"))
    for each, marks in ((ok, "100 of 100"), (skipped, parts.SKIPPED)):
        found = judging.Assessed([parts.outcome(notebook, []), each, failed], {}, [])
        rows = re.findall("<tr><td.*?</tr>", re.sub(" class=[^>]*", "", report.html(night, found)))
        (lab,) = (row for row in rows if row.startswith(f"<tr><td>{DATA_BOUND}<"))
        assert f">{parts.FAILED}<" in lab and f">{marks}<" in lab and ">9 of 100<" in lab
        (not_made,) = (row for row in rows if row.startswith(f"<tr><td>{notebook.name}<"))
        assert not re.search(">0<", not_made)


def test_progress_says_what_it_counts(tmp_path, capsys):
    """A solution and its grade are made together, and adversaries on a CPU after all the rest."""
    made = parts.plan("cpu", True, ["solution", "grade"], [DATA_BOUND])
    night = nights.open_night(tmp_path / "n", TOLD, made, History(tmp_path / "h.jsonl"))
    progress = measuring.Progress(night, SimpleNamespace(size=lambda: 1), made)
    progress.begin(2)
    progress.done(made[0], recorded(DATA_BOUND, "solution", 1))
    progress.close()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "2 tasks (solution, grade); parts that are made together are one task"
    assert said[1].startswith("1/2 solution 2a_workers: 40 s") and said[1].endswith("min left of these tasks")


def night_of(folder: Path, *whats: str) -> Night:
    """A quick night of some adversaries and controls of one lab."""
    some = [part for part in parts.plan("cpu", True, ["adversary"], [DATA_BOUND]) if part.what in whats]
    return nights.open_night(folder / "n", TOLD | {"device": "cpu", "quick": True}, some, History(folder / "h.jsonl"))


def test_an_adversary_that_profits_is_measured_again(tmp_path):
    night = night_of(tmp_path, *CONTROLLED)

    def put(points: Callable[[str], float], run: int, wanted: list[Part]) -> None:
        for part in wanted:
            result = {"points": points(part.what), "reason": "", "output": ""}
            made = {"result": result, "machine": "m", "version": "1", "seconds": 1.0, "worker": "0"}
            night.records.put(part.again(run), made)

    honest = {"starter": 0.0, "half fix": 20.0, "solution": 60.0}
    put(lambda what: honest.get(what, 30.0), 0, night.parts)
    wanted = judging.again(night, judging.assess(night))
    assert {part.what for part, _ in wanted} == {"patched_clocks", "starter"}
    put(lambda what: honest.get(what, 0.0), 1, [part for part, _ in wanted])
    found = judging.assess(night)
    assert found.worst() == parts.OK and "no profit" in found.tables[0]
    put(lambda what: honest.get(what, 30.0), 1, [part for part, _ in wanted])
    put(lambda what: honest.get(what, 30.0), 2, [part for part, _ in wanted])
    found = judging.assess(night)
    assert judging.finished(night, found) and found.worst() == parts.FAILED
    assert "PROFITS" in next(each.why for each in found.outcomes if each.part.what == "patched_clocks")


def test_a_control_that_cannot_be_graded_ends_the_night_as_failed(tmp_path):
    night = night_of(tmp_path, "starter", "patched_clocks")
    starter, clocks = sorted(night.parts, key=lambda part: part.what != "starter")
    result = {"points": 0.0, "reason": "", "output": ""}
    night.records.put(
        clocks.again(0), {"result": result, "machine": "m", "version": "1", "seconds": 1.0, "worker": "0"}
    )
    for run in range(parts.TRIES):
        assert not judging.finished(night, judging.assess(night))
        night.records.put(starter.again(run), {NOT_MADE: "the worker died", "seconds": 1.0, "worker": "0"})
    found = judging.assess(night)
    assert judging.finished(night, found) and [each.status for each in found.outcomes] == [parts.FAILED] * 2


def disturbed(result: dict[str, Any]) -> None:
    result["disturbed"] = "one core for two processes"


def not_measured(result: dict[str, Any]) -> None:
    for check in result["checks"]:
        check["status"] = NOT_MEASURED


@pytest.mark.parametrize(
    ("spoil", "runs", "status", "why"),
    [
        # two processes on one core: the control "lost" its points, and nobody profited
        (disturbed, parts.TRIES, parts.UNDECIDED, ["one core for two processes", "its control is undecided"]),
        (not_measured, 1, parts.SKIPPED, [parts.NOTHING_MEASURED] * 2),
    ],
)
def test_a_control_that_was_not_measured_says_nothing_of_an_adversary(tmp_path, spoil, runs, status, why):
    night = night_of(tmp_path, "starter", "patched_clocks")
    made, wanted = recorded(DATA_BOUND, "starter", 1), [(part, 0) for part in night.parts]
    spoil(made["result"])
    for run in range(runs):
        assert {part.what for part, _ in wanted} == {"starter", *([] if run else ["patched_clocks"])}
        for part, number in wanted:
            night.records.put(part.again(number), made)
        found = judging.assess(night)
        wanted = judging.again(night, found)
    assert not wanted and judging.finished(night, found)
    outcomes = sorted(found.outcomes, key=lambda each: each.part.what != "starter")
    assert [(each.status, each.why) for each in outcomes] == [(status, each) for each in why]


@pytest.mark.parametrize(("verdict", "status"), [(INCONCLUSIVE, parts.UNDECIDED), (FAIL, parts.FAILED)])
def test_a_solution_that_noise_left_without_its_points_has_not_lost_them(tmp_path, verdict, status):
    """Seen in a night: "other programs took up to 55% of a loop's time", and the night failed."""
    night = night_of(tmp_path, "solution")
    made = recorded(DATA_BOUND, "solution", 1)
    for check in made["result"]["checks"]:
        check["points"] = 0.0
        if check["name"] == "throughput":
            check |= {"status": verdict, "points": 5.0, "reason": "other programs took up to 55%"}
    for run in range(parts.TRIES):
        assert not judging.finished(night, judging.assess(night))
        night.records.put(night.parts[0].again(run), made)
    found = judging.assess(night)
    assert judging.finished(night, found) and [each.status for each in found.outcomes] == [status]
    assert "took up to 55%" in found.outcomes[0].why


def test_a_line_of_the_history_is_one_line(tmp_path):
    history = History(tmp_path / "h.jsonl")
    for _ in range(2):
        history.append({"night": "n", "why": "a\u2028b\u0085c"})
    assert [entry["why"] for entry in history.nights()] == ["a\u2028b\u0085c"]


def test_notebooks_that_were_tampered_with_are_one_task(tmp_path):
    made = [p for p in parts.plan("cpu", True, ["adversary"], [DATA_BOUND]) if p.what.startswith("nb_")]
    assert len(made) > 5 and len({part.task.digest for part in made}) == 1
    night = nights.open_night(
        tmp_path / "n", TOLD | {"device": "cpu", "quick": True}, made, History(tmp_path / "h.jsonl")
    )
    marks = {part.what: {"points": n, "reason": "", "output": "", "seconds": n} for n, part in enumerate(made)}
    night.records.put(
        made[0].again(0), {"result": marks, "machine": "m", "version": "1", "seconds": 99.0, "worker": "0"}
    )
    found = judging.assess(night).outcomes
    assert [each.repeats for each in found] == [[{"points": n, "reason": "", "output": ""}] for n in range(len(made))]
    assert [each.seconds for each in found] == list(range(len(made)))


@pytest.mark.slow
def test_what_another_machine_graded_counts_where_its_packages_are_missing(tmp_path):
    made = [replace(part, lacks="it needs a package") for part in parts.plan("cpu", True, ["grade"], [DATA_BOUND])]
    night = nights.open_night(
        tmp_path / "n", TOLD | {"device": "cpu", "quick": True}, made, History(tmp_path / "h.jsonl")
    )
    with pool.embedded("cpu", cpu_workers=1) as workers:
        measuring.measure(night, workers)
    found = judging.assess(night)
    assert [(each.status, each.why) for each in found.outcomes] == [(parts.SKIPPED, "it needs a package")] * 2
    starter = made[1]
    night.records.put(starter.again(0), {NOT_MADE: "the worker died", "seconds": 1.0, "worker": "0"})
    found = judging.assess(night)
    assert [each.status for each in found.outcomes] == [parts.SKIPPED, parts.FAILED]
    assert not judging.again(night, found)  # it cannot be made here


def graded(status: str, machine: str) -> dict[str, Any]:
    """A record of a grade of one check."""
    return {"result": {"checks": [{"status": status}]}, "machine": machine, "seconds": 1.0}


def test_a_host_that_loses_everything_ends_no_part(tmp_path):
    """One without a working GPU once did: no other host tried again. Nor does a later loss hide what was measured."""
    records, task = nights.Records(tmp_path), Call("x", "", {}, "x")
    lost = {NOT_MADE: "CUDA unknown error", "seconds": 1.0, "worker": "0", "tries": 2}
    records.put(task, lost)
    assert records.final(task, ["a"]) is None and records.final(task)[NOT_MADE] == lost[NOT_MADE]
    records.put(task, lost)
    assert records.final(task, ["a"])["tries"] == 4  # by two commands: it is the part's fault
    records.put(task, graded("PASS", "a"))
    records.put(task, lost)
    assert records.final(task, ["b"])["machine"] == records.final(task)["machine"] == "a"


def test_what_nobody_could_measure_is_made_again_elsewhere(tmp_path):
    """A lab for two GPUs, on a machine with one; and what was measured was not replaced by that."""
    records, task = nights.Records(tmp_path), Call("x", "", {}, "x")
    records.put(task, graded("NOT MEASURED", "one"))
    assert records.final(task, ["one"]) and records.final(task, ["two"]) is None and records.final(task)
    records.put(task, graded("FAIL", "two"))
    records.put(task, graded("NOT MEASURED", "one"))
    assert [records.final(task, machines)["machine"] for machines in (["one"], ["two"], None)] == ["two"] * 3


def test_an_adversary_is_in_the_share_of_what_it_is_compared_with():
    made = parts.plan("cpu", True, ["adversary"], [DATA_BOUND, "2b_transfers", "2c_transforms"])
    for number in (1, 2):
        for lab in {part.subject for part in measuring.share(made, number, 2)}:
            assert [p for p in measuring.share(made, number, 2) if p.subject == lab] == [
                p for p in made if p.subject == lab
            ]


def test_a_night_of_several_pieces_says_so(tmp_path):
    """It named the machine of its first grade, and the commit that it began with."""
    some = parts.plan("cuda", False, ["grade"], [GPU_BOUND])
    for commit in ("abc", "def", "abc"):
        night = nights.open_night(tmp_path / "n", TOLD | {"commit": commit}, some, History(tmp_path / "h.jsonl"))
    assert report.headline(night, judging.assess(night)) == "Not finished: 2 missing"
    for part, cores in zip(some, (16, 8), strict=True):
        made = recorded(GPU_BOUND, part.what, 1)
        made["result"]["machine"]["cores"] = cores
        night.records.put(part.again(0), made)
    said = report.about(night)
    assert "NVIDIA H200, driver 580, 16 cores; NVIDIA H200, driver 580, 8 cores" in said and "course abc, def," in said
    assert report.headline(night, judging.assess(night)) == "Everything works, too few nights to compare with: 2 ok"


def test_a_report_does_not_ask_for_packages_that_only_making_needs(tmp_path, monkeypatch):
    """Where they are missing it closed a night, as not measured, that lacked these parts."""
    select = {"kinds": ["grade"], "labs": ["4d_trainer"], "lessons": [], "adversaries": [1, 1]}
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name != "accelerate" and there(name, *rest))
    told = nights.describe("cpu", True, select)
    for lacks, status in ((told["lacks"], parts.SKIPPED), ({}, parts.MISSING)):
        made = parts.planned(told | {"lacks": lacks}, here=False)
        assert [parts.outcome(part, []).status for part in made] == [status] * 2


def test_what_takes_longest_is_begun_first():
    short, long, unknown, many = (Part("grade", name, "", Call(name, "", {}, name)) for name in "slum")
    tasks = [(part.task, [part] * (3 if part is many else 1)) for part in (short, long, unknown, many)]
    known = {"grade s": 10.0, "grade l": 100.0}
    assert [of[0] for _, of in measuring.longest_first(tasks, known)] == [many, long, unknown, short]
    assert measuring.longest_first(tasks[:3], {}) == tasks[:3]


def test_a_solution_takes_as_long_as_its_notebook():
    """Its grade is made in there, and both are in the history."""
    made = parts.plan("cpu", True, ["solution", "grade"], [DATA_BOUND])
    known = {"solution 2a_workers": 100.0, "grade 2a_workers solution": 60.0, "grade 2a_workers starter": 30.0}
    notebook, grade, starter = made

    def takes_s(*made: Part) -> float:
        return measuring.takes_s(list(made), lambda part: known[part.name])

    assert (takes_s(notebook, grade), takes_s(starter)) == (100, 30)
    assert takes_s(grade) == 60  # again, without its notebook


@pytest.mark.slow
def test_what_would_end_too_late_is_not_begun(tmp_path):
    """By the last night's times, or else by those of its kind in this night's earlier pieces."""
    made = [lesson_of(tmp_path, name, "pass") for name in ("long", "unknown", "short")]
    history = History(tmp_path / "h.jsonl")
    seconds = {"lesson long": 1e4, "lesson short": 1.0}
    told = {"night": "last", "date": "2026-11-20", "status": parts.OK, "device": "cpu", "quick": True}
    history.append(told | {"parts": {name: {"status": parts.OK, "seconds": s} for name, s in seconds.items()}})
    night = nights.open_night(tmp_path / "n", TOLD | {"device": "cpu", "quick": True}, made, history)
    with pool.embedded("cpu", cpu_workers=1) as workers:
        workers.machines()  # it is ready
        measuring.measure(night, workers, until=time.monotonic() + 3000)
        assert [bool(night.runs(part)) for part in made] == [False, True, True]
        late = lesson_of(tmp_path, "late", "pass")
        night.parts.append(late)
        measuring.measure(night, workers, until=time.monotonic() + 0.2)  # those that were made took longer
        assert not night.runs(late)
        measuring.measure(night, workers)
    assert all(map(night.runs, night.parts))


@pytest.mark.parametrize("kinds", [["solution"], ["adversary"]])
def test_a_notebook_is_made_again_when_its_lab_was_changed(kinds):
    calls = [p.task for p in parts.plan("cpu", True, kinds, [DATA_BOUND]) if isinstance(p.task, Call)]
    assert calls and all(definition(DATA_BOUND) in call.content for call in calls)


@pytest.mark.parametrize(
    ("kind", "released", "sentence", "code"),
    [
        ("solution", f"solutions/{DATA_BOUND}/{DATA_BOUND}.ipynb", "explanation", ["submission", "check"]),
        ("lesson", "notebooks/4_models/2_rules.ipynb", "title", ["pinning"]),
    ],
)
def test_a_notebook_is_made_again_when_its_code_was_changed_and_not_when_a_sentence_was(
    kind, released, sentence, code, tmp_path
):
    released = REPOSITORY / released
    path = tmp_path / released.name

    def digest(cell_id: str, change: str, outputs: bool = True) -> str:
        nb = nbformat.read(released, as_version=4)
        next(cell for cell in nb.cells if cell.id == cell_id)["source"] += change
        for cell in nb.cells if not outputs else ():
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(nb, path)
        return parts.notebook_call(kind, path, "cpu", True).digest

    same = digest(sentence, "")
    assert digest(sentence, " One more sentence.") == same
    assert digest(sentence, "", outputs=False) == same, "a night's outputs that were taken over are no change"
    assert all(digest(cell, "\n# more") != same for cell in code)


@pytest.mark.slow
def test_each_tampered_notebook_gets_its_own_marks(own_temporary):
    marks = _run.tampered(DATA_BOUND, "cpu", ["nb_edited_points", "nb_manual_cells"])
    assert [mark["points"] for mark in marks.values()] == [0, 0] and all(
        "gradebook" in m["reason"] for m in marks.values()
    )
    assert not list(own_temporary.glob("adversar*"))


CONTROLLED = ("starter", "half fix", "solution", "patched_clocks")


# ---------------------------------------------------------------- what a night consists of


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_everything_is_a_part(device):
    made = parts.plan(device, True)
    names = [part.name for part in made]
    assert len(set(names)) == len(names)
    for path in outline.lessons():
        assert f"lesson {path.parent.name}/{path.stem}" in names
    for lab in labs.NAMES:
        assert {f"solution {lab}", f"grade {lab} solution", f"grade {lab} starter"} <= set(names)
    assert sum(part.kind == "adversary" for part in made) > 40
    own = [part for part in made if part.task and part.kind != "solution"]  # a solution's grade is its notebook's
    digests = [part.again(run).digest for part in own for run in range(parts.TRIES)]
    assert len(set(digests)) > 0.9 * len(digests)  # a healthy lab's starter may be its solution
    seventh = parts.plan(device, True, ["adversary"], adversaries=(2, 7))
    controls = {"starter", "half fix", "solution"}
    adversaries = sum(part.kind == "adversary" and part.what not in controls for part in made)
    # attacks differ in how many labs they fit
    assert 0 < sum(part.what not in controls for part in seventh) < adversaries / 4
    assert {part.what for part in seventh} >= {"starter", "solution"}
    assert {part.what for part in made if part.name.startswith("adversary 2a_")} >= controls
    # no adversary of this lab is compared with half a fix, and on a GPU that gains next to nothing there
    assert {"starter", "solution"} == controls & {part.what for part in made if part.name.startswith("adversary 2d_")}
    shares = [part.name for number in (1, 2, 3) for part in measuring.share(made, number, 3)]
    assert sorted(shares) == sorted(names)


def test_a_lab_whose_packages_are_missing_is_not_measured(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "accelerate" else there(name, *rest)
    )
    made = {part.name: parts.outcome(part, []) for part in parts.plan("cpu", True, ["solution", "grade"])}
    for name in ("solution 4d_trainer", "grade 4d_trainer solution", "grade 4d_trainer starter"):
        assert made[name].status == parts.SKIPPED and "accelerate" in made[name].why
    assert made["solution 4c_unet"].status == parts.MISSING


def test_a_solution_s_grade_is_the_one_its_notebook_came_to(tmp_path):
    notebook, grade, starter = parts.plan("cpu", True, ("solution", "grade"), [DATA_BOUND])
    assert grade.again(0) == notebook.again(0) and isinstance(grade.again(1), Job) and isinstance(starter.again(0), Job)
    for number in (1, 2):
        names = [part.name for part in measuring.share([notebook, grade, starter], number, 2)]
        assert (notebook.name in names) == (grade.name in names)
    (alone, _) = parts.plan("cpu", True, ("grade",), [DATA_BOUND])
    assert isinstance(alone.again(0), Job)

    result = recorded(DATA_BOUND, "solution", 1)["result"]
    record = {"seconds": 90.0, "result": {"why": "a cell warned", "cells": [], "grade": result}}
    assert parts.outcome(notebook, [record]).status == parts.FAILED
    found = parts.outcome(grade, [record])
    assert (found.status, found.points, found.seconds) == (parts.OK, result["score"], result["seconds"])
    none = {"seconds": 9.0, "machine": "a", "result": {"why": "its kernel died", "cells": []}}
    assert parts.outcome(grade, [none]).why == "its notebook came to no grade"
    again = parts.outcome(grade, [none, {"seconds": 40.0, "result": result}])
    assert (again.status, again.runs) == (parts.OK, 2)

    night = nights.open_night(tmp_path / "n", TOLD, [notebook, grade], History(tmp_path / "history.jsonl"))
    night.records.put(grade.again(0), none)
    assert judging.again(night, judging.assess(night)) == [(grade, 1)]  # then without its notebook


def test_a_grade_as_it_should_not_be():
    solution = Part("grade", DATA_BOUND, "solution", None)
    good = recorded(DATA_BOUND, "solution", 1)["result"]

    def status(part: Part, **changed: Any) -> tuple[str, str]:
        result = parts.Result.from_dict(copy.deepcopy(good) | changed)
        return parts._unexpected(part, result)

    assert status(solution) == (parts.OK, "")
    assert status(solution, disturbed="Somebody else.")[0] == parts.UNDECIDED
    assert status(solution, fatal="It raised.") == (parts.FAILED, "It raised.")
    bad = copy.deepcopy(good["checks"])
    bad[-1] |= {"status": "FAIL", "reason": "10% were pinned."}
    assert status(solution, checks=bad) == (parts.FAILED, "Batches arrive in pinned memory: 10% were pinned.")
    unforeseen = copy.deepcopy(good["checks"])
    next(check for check in unforeseen if check["name"] == "prediction")["status"] = "FAIL"
    assert status(solution, checks=unforeseen)[0] == parts.FAILED
    starter = Part("grade", DATA_BOUND, "starter", None)
    assert status(starter) == (parts.FAILED, "the untouched lab has 90 of 100 points")
    assert status(Part("grade", "1d_mystery", "starter", None), fatal="It has no ticket.") == (parts.OK, "")
    assert status(starter, fatal="It raised.") == (parts.FAILED, "It raised.")
    untouched = parts.Result.from_dict(recorded(DATA_BOUND, "starter", 1)["result"])
    assert parts._unexpected(starter, untouched) == (parts.OK, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--labs", "9z_none"], "There is no lab '9z_none'"),
        (["--lessons", "9_none"], "There is no lesson '9_none'"),
        (["--kinds", "song"], "no kind of part called song"),
        (["--shard", "3/2"], "Give I/N"),
        (["--now", "grades"], "--now grades: the kinds are lesson"),
        (["--now", "lesson,4a_resnet50"], "No part of this night has these kinds"),
        (["--night", "../elsewhere"], "A name has letters"),
        (["--accept", "grade 9z_none solution"], "No night has a part"),
        (["--report"], "Name one with --night"),
        (["--report", "--night", "torn"], "torn/night.json is damaged"),
        (["--night", "torn"], "torn/night.json is damaged"),
    ],
)
def test_unusable_input_is_one_clear_line(tmp_path, arguments, says, capsys):
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "night.json").touch()  # as a power cut leaves it; it once stopped every later night
    assert cli.main(["nightly", "--device", "cpu", "--out", str(tmp_path), *arguments]) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["torn", "night.json"]


@pytest.mark.slow
def test_only_some_kinds_of_some_labs_are_made_now(tmp_path, capsys):
    command = ["nightly", "--quick", "--device", "cpu", "--out", str(tmp_path), "--labs", "1c_diagnose,1e_retest"]
    command += ["--kinds", "solution,grade", "--night", "n"]
    assert cli.main([*command, "--now", "solution,1c_diagnose"]) == 4
    told = nights.read(tmp_path / "n")
    night = nights.open_night(tmp_path / "n", told, parts.planned(told), History(tmp_path / "history.jsonl"))
    made = {each.part.name: each.status for each in judging.assess(night).outcomes}
    assert made["solution 1c_diagnose"] == parts.OK and made["grade 1c_diagnose starter"] == parts.MISSING
    assert made["solution 1e_retest"] == parts.MISSING


def test_a_name_that_the_history_knows_is_not_used_again(tmp_path):
    replayed = Replayed(tmp_path)
    night, _ = replayed.night()
    shutil.rmtree(night.folder)
    with pytest.raises(
        UserError, match=r"history has a night 'night-001', but .* holds none\. Give this one another name"
    ):
        nights.open_night(night.folder, TOLD, replayed.parts, replayed.history)
    assert not night.folder.exists()


def test_a_night_of_another_state_is_not_mixed_in(tmp_path):
    history = History(tmp_path / "h.jsonl")
    nights.open_night(tmp_path / "n", TOLD, [], history)
    for name, text in (("torn", ""), ("list", "[]"), ("old", json.dumps(TOLD | {"date": "2020-01-01"}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "night.json").write_text(text)
    assert nights.unfinished(tmp_path, TOLD, history) == tmp_path / "n"
    other = TOLD | {"torch": "2.15.0"}
    assert nights.unfinished(tmp_path, other, history) is None
    with pytest.raises(nights.UserError, match=r"has torch '2\.11\.0'"):
        nights.open_night(tmp_path / "n", other, [], history)


# ---------------------------------------------------------------- workflows


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_workflows_are_pinned_and_may_do_little(path):
    text = path.read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used and all(re.fullmatch(r"actions/[a-z-]+(/[a-z]+)?@[0-9a-f]{40}", action) for action in used)
    assert not re.search(r"\{\{[^}]*secrets", text) and "pull_request_target" not in text
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    assert not any(action.startswith("actions/cache@") for action in used), "it keeps nothing of a night that failed"
    for job in re.split(r"^  (?=[a-z]+:$)", text, flags=re.MULTILINE):
        if "ubuntu-24.04" in job and re.search(r"run: .*(make test|grader nightly)", job):
            assert (
                job.index("apparmor_restrict_unprivileged_userns=0")
                < re.search(r"make test|grader nightly", job).start()
            )
    writes = set(re.findall(r"^ *([a-z-]+): write$", text, re.MULTILINE))
    assert writes <= {"nightly": {"pages", "id-token"}, "release": {"contents"}}.get(path.stem, set())
    for job in re.split(r"^  (?=[a-z]+:$)", text, flags=re.MULTILINE):  # what may write runs nothing of the repository
        assert ": write" not in job or not re.search(r"\b(make|python|pip|grader)\b", job)


# ---------------------------------------------------------------- the history


def test_the_history_survives_a_kill(tmp_path):
    """Killed while it writes, many times: every line but one that was cut short can be read, and the next one as well."""
    path = tmp_path / "history.jsonl"
    source = (
        "import sys; from pathlib import Path; from grader.nightly.history import History\n"
        "history, n = History(Path(sys.argv[1])), int(sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "while True:\n    history.append({'night': f'night-{n}', 'parts': {'x' * 200_000: {}}})\n    n += 1\n"
    )
    for start in (0, 10_000):
        process = subprocess.Popen(
            [sys.executable, "-c", source, path, str(start)], stdout=subprocess.PIPE, cwd=REPOSITORY
        )
        assert process.stdout and process.stdout.readline()
        before = path.stat().st_size if path.exists() else 0
        assert eventually(lambda: path.exists() and path.stat().st_size > before + 500_000)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    whole = [entry["night"] for entry in History(path).nights()]
    assert len(whole) == len(set(whole)) >= 2 and len(path.read_text().splitlines()) <= len(whole) + 2
    with open(path, "a") as file:
        file.write('{"night": "cut sh')
    History(path).append({"night": "next", "parts": {}})
    assert [entry["night"] for entry in History(path).nights()] == [*whole, "next"]
    History(path).append({"night": "next", "parts": {}})
    assert len(History(path).nights()) == len(whole) + 1


def test_change():
    found = decision.change([1.0, 1.01, 0.99, 1.0, 1.0], [1.03])
    assert found.factor == pytest.approx(1 / 1.03, rel=1e-3) and found.pairs == 5
    assert found.upper < 1 and found.lower < found.factor
    wider = decision.change([1.0, 1.01, 0.99, 1.0, 1.0], [1.03], noise_floor=0.1)
    assert wider.lower < found.lower and wider.upper > 1
    repeated = decision.change([1.0, 1.01, 0.99, 1.0, 1.0], [1.03] * 3)
    assert repeated.upper == pytest.approx(found.upper)  # repeats of one night are one night
    for before, now in (([1.0], [1.0]), ([1.0, 1.0], []), ([1.0, 1.0], [0.0])):
        with pytest.raises(ValueError):
            decision.change(before, now)


def test_too_few_nights_are_not_judged():
    solution = parts.outcome(Part("grade", GPU_BOUND, "solution", parts.plan("cuda", False, ["grade"], [GPU_BOUND])[0].task), [recorded(GPU_BOUND, "solution", 1, 2.0)])  # fmt: skip
    before = [{"status": "ok", "values": {"step_ms": 34.9, "gain": 6.3}}] * 4
    assert judge(solution, before) == []
    assert len(judge(solution, before + before[:1])) == 2


GRADE = f"grade {GPU_BOUND} solution"


def add_night(history: History, values: dict[str, float], status: str = parts.OK) -> None:
    """A line as a night leaves it; noise is there only of what was timed."""
    noise = {series: 0.003 for series in values if series != "points"}
    told = {"status": status, "machine": "one", "values": values, "noise": noise}
    history.append({"night": f"night-{len(history.nights()):03}", "quick": False, "parts": {GRADE: told}})


def tonight(history: History, runs: list[float]) -> list[Change]:
    outcome = parts.Outcome(Part("grade", GPU_BOUND, "solution", None), parts.OK, noise={"step_ms": 0.003})
    outcome.repeats = [{"step_ms": step_ms} for step_ms in runs]
    return judge(outcome, history.before(GRADE, "one", False))


def test_a_night_that_timed_nothing_is_no_yardstick(tmp_path):
    """Disturbed nights once took the place of those that were measured, and their missing noise counted as none."""
    history = History(tmp_path / "history.jsonl")
    for n in range(5):
        add_night(history, {"step_ms": 100 + 0.01 * n})
    for _ in range(20):
        (change,) = tonight(history, [100.5] * 3)
        assert not change.slower and change.found.pairs == 5
        add_night(history, {"points": 90.0}, parts.UNDECIDED)


@pytest.mark.parametrize(("creep", "by"), [(1.0, None), (1.002, 40), (1.02, 30)])
def test_what_creeps_is_found(tmp_path, creep, by):
    """Each night is hardly slower than the last ones, which crept as well."""
    history, random_ = History(tmp_path / "history.jsonl"), random.Random(1)
    for night in range(60):
        runs = [100 * creep**night * math.exp(random_.gauss(0, 0.003)) for _ in range(parts.TRIES)]
        for run in range(1, parts.TRIES + 1):
            found = tonight(history, runs[:run])
            if not any(change.suspicious for change in found):
                break
        slower = any(change.slower for change in found)
        if slower:
            break
        add_night(history, {"step_ms": runs[0]})
    assert slower == (by is not None) and night <= (by or 60)
    assert not slower or "first 10 nights'" in "".join(change.says() for change in found)


# ---------------------------------------------------------------- notebooks on real workers

NOTEBOOKS = {
    "1_good": ["quick = False", "print('quick is', quick)", "6 * 7"],
    "2_raises": ["quick = False", "1 / 0", "print('never')"],
    "3_warns": ["quick = False", "import warnings\nwarnings.warn('planted', stacklevel=1)"],
    "4_dies": ["quick = False", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"],
    "5_hangs": ["quick = False", "import time\ntime.sleep(600)"],
    # the kernel's parent makes the grades, that one's parent is the worker
    "7_counts": [
        "quick = False",
        "from tqdm import tqdm\nfor _ in tqdm(range(3)):\n    pass",
    ],  # as what makes data does
    "6_kills_its_worker_once": [
        "quick = False",
        "import os, pathlib, psutil\nmark = pathlib.Path('killed')\nif not mark.exists():\n    mark.touch()\n"
        "    for process in psutil.Process(os.getppid()).parents()[:1]:\n        process.kill()\n    import time\n    time.sleep(600)",
    ],
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> tuple[Night, judging.Assessed]:
    """A night of notebooks with planted faults, on a real pool."""
    root = tmp_path_factory.mktemp("night")
    made = []
    for name, cells in NOTEBOOKS.items():
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(cells)],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        notebook.cells[0].metadata.tags = ["parameters"]
        path = root / "lessons" / f"{name}.ipynb"
        execute.write(notebook, path)
        limit_s = 4 if "hangs" in name else 60
        made.append(Part("lesson", name, "", parts.notebook_call("lesson", path, "cpu", True, cell_limit_s=limit_s)))
    told = TOLD | {"device": "cpu", "quick": True}
    night = nights.open_night(root / "out" / "n", told, made, History(root / "history.jsonl"))
    with pool.embedded("cpu", cpu_workers=2) as workers:
        for name in ("made", "made_twice"):
            measuring.measure(night, workers)
            night.manifest[name] = {p.name: p.stat().st_mtime_ns for p in night.records.folder.glob("*/*.json")}
    found = judging.assess(night)
    report.close(night, found)
    return night, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("1_good", ""),
        ("2_raises", "ZeroDivisionError"),
        ("3_warns", "cell cell-1 wrote to stderr"),
        ("4_dies", "DeadKernelError"),
        ("5_hangs", "cell cell-1 (import time): CellTimeoutError"),
        ("7_counts", ""),
        ("6_kills_its_worker_once", ""),
    ],
)
def test_planted_faults_of_notebooks(executed, name, says):
    night, found = executed
    each = next(each for each in found.outcomes if each.part.subject == name)
    assert each.status == (parts.FAILED if says else parts.OK), each.why
    assert says in each.why
    assert (night.folder / each.notebook).exists()  # whatever happened, what came of it can be read


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("x.py:431: UserWarning: This DataLoader will create 8 worker processes in total.\n  self.check()\n", ""),
        ("x.py:1: FutureWarning: it is gone soon\n", "cell a warned: x.py:1: FutureWarning: it is gone soon"),
    ],
)
def test_warnings_that_a_reader_should_not_see(said, why):
    shown = nbformat.v4.new_output("display_data", {"text/html": f"<pre>{said}</pre>"})
    cell = nbformat.v4.new_code_cell("1", id="a", outputs=[shown])
    assert notebook_part._warning(nbformat.v4.new_notebook(cells=[cell])) == why.replace("x.py", "<pre>x.py")


@pytest.mark.slow
def test_a_failing_notebook_stops_nothing(executed):
    night, found = executed
    assert judging.finished(night, found) and len(found.outcomes) == len(NOTEBOOKS)
    (entry,) = night.history.nights()
    assert entry["status"] == parts.FAILED and len(entry["parts"]) == len(NOTEBOOKS)
    suite = ET.parse(night.folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None and (suite.attrib["tests"], suite.attrib["failures"]) == ("7", "4")
    page = (night.folder / "index.html").read_text()
    assert "DeadKernelError" in page and "2_raises.ipynb" in page and "not reached" in page


@pytest.mark.slow
def test_what_an_executed_notebook_shows(executed):
    night, found = executed
    good, raises = (each for each in found.outcomes[:2])
    notebook = nbformat.read(night.folder / good.notebook, as_version=4)
    assert [cell.id for cell in notebook.cells] == ["cell-0", "cell-1", "cell-2"]  # as it was written
    assert notebook.cells[1].outputs[0].text == "quick is True\n"
    assert [cell["id"] for cell in good.cells] == ["cell-0", "cell-1", "cell-2"]
    assert all(cell["seconds"] is not None for cell in good.cells)
    assert raises.cells[2]["seconds"] is None
    notebook = nbformat.read(night.folder / raises.notebook, as_version=4)
    assert notebook.cells[1].outputs[-1].ename == "ZeroDivisionError" and notebook.cells[2].execution_count is None


def test_a_long_line_takes_no_longer_than_it_is():
    """A picture in a report is one line of 100,000 characters."""
    long = nbformat.v4.new_output("display_data", {"text/html": "x" * 3_000_000 + "\n"})
    warns = nbformat.v4.new_output("stream", text="all is well\nUserWarning: it is not\n")
    cells = [nbformat.v4.new_code_cell("", outputs=[each], id=f"c{n}") for n, each in enumerate((long, warns))]
    assert notebook_part._warning(nbformat.v4.new_notebook(cells=cells[:1])) == ""
    assert notebook_part._warning(nbformat.v4.new_notebook(cells=cells)) == "cell c1 warned: UserWarning: it is not"


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_time(executed):
    night, found = executed
    part = next(each.part for each in found.outcomes if each.part.subject.startswith("6"))
    (record,) = night.runs(part)
    assert record["tries"] == 2 and NOT_MADE not in record


@pytest.mark.slow
def test_what_is_there_is_not_made_again(executed):
    night, _ = executed
    assert night.manifest["made"] == night.manifest["made_twice"]


def lesson_of(folder: Path, name: str, source: str) -> Part:
    """A lesson of one cell."""
    cells = [nbformat.v4.new_code_cell(each, id=f"c{n}") for n, each in enumerate(["quick = False", source])]
    cells[0].metadata.tags = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / f"{name}.ipynb"
    execute.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    return Part("lesson", name, "", parts.notebook_call("lesson", path, "cpu", True, cell_limit_s=60))


@pytest.mark.slow
def test_after_its_time_a_night_begins_no_second_try(tmp_path):
    source = "import os, psutil, time\ntime.sleep(4)\nfor process in psutil.Process(os.getppid()).parents()[:1]:\n    process.kill()"
    part = lesson_of(tmp_path, "kills", source)
    night = nights.open_night(tmp_path / "n", TOLD | {"device": "cpu", "quick": True}, [part], History(tmp_path / "h"))
    with pool.embedded("cpu", cpu_workers=1) as workers:
        workers.machines()  # it is ready
        measuring.measure(night, workers, until=time.monotonic() + 3)
    assert night.records.failed(part.again(0))["tries"] == 1


def test_a_part_that_no_worker_survives(tmp_path):
    part = Part("lesson", "x", "", parts.notebook_call("lesson", outline.lessons()[0], "cpu", True))
    records = nights.Records(tmp_path)
    records.put(part.again(0), {NOT_MADE: "the worker that graded it died", "seconds": 0.0, "worker": "", "tries": 2})
    night = Night(tmp_path, TOLD, [part], History(tmp_path / "h"))
    (found,) = judging.assess(night).outcomes
    assert found.status == parts.FAILED and "worker" in found.why
