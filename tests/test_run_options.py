"""The options of `grader run`, on real processes: a function that ends the steps, when it is looked, and what is no value."""

import json
import re
import sys
from pathlib import Path

import pytest

from grader.errors import UserError
from grader.frontends.cli import main
from grader.own.record import read_record
from tests.own_jobs import LOOK, MODEL, STEPS, command, script, watched

TURNS = """
    class Turns:
        def of_an_object(self):
            step(); step()
        @staticmethod
        def static():
            step(); step()
        @classmethod
        def of_the_class(kind):
            step(); step()
    def turn():
        step(); step()
    turns = Turns()
    for _ in range(20):
        {call}; time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "call"),
    [
        ("job:turn", "turn()"),
        ("some/job.py:turn", "turn()"),
        ("__main__:Turns.static", "turns.static()"),
        ("job:Turns.of_the_class", "turns.of_the_class()"),
        ("job:Turns.of_an_object", "turns.of_an_object()"),
        ("job:turns.of_an_object", "turns.of_an_object()"),
    ],
)
def test_a_function_of_the_script_ends_the_steps(tmp_path, asked, call):
    process, seen = watched(tmp_path, MODEL, TURNS.format(call=call), options={**LOOK, "step": asked})
    assert seen.status == 0
    assert process["by"] == "function"
    assert 10 <= process["steps"] <= 20  # its first calls may come before it is found


def test_a_function_that_was_imported_by_name_ends_the_steps(tmp_path):
    (tmp_path / "engine.py").write_text("def turn(step):\n    step(); step()\n")
    body = """
        from engine import turn as one
        for _ in range(20):
            one(step); time.sleep(0.05)
    """
    process, _ = watched(tmp_path, MODEL, body, options={**LOOK, "step": "engine:turn"})
    assert process["by"] == "function"
    assert 10 <= process["steps"] <= 20


def test_a_package_s_function_ends_the_steps(tmp_path):
    (tmp_path / "pkg").mkdir()
    body = MODEL + TURNS.format(call="turn()")
    Path(script(tmp_path, body)).rename(tmp_path / "pkg" / "__main__.py")
    done = command(tmp_path, "--step", "pkg:turn", "--", sys.executable, "-m", "pkg")
    assert "(calls of --step's function)" in done.stderr.decode()


def test_a_function_that_is_not_there_is_named(tmp_path):
    done = command(tmp_path, "--step", "job:no_such", "--", sys.executable, script(tmp_path, MODEL, "step()"))
    assert done.returncode == 0
    assert "job:no_such is not there, or was not called" in done.stderr.decode()


def test_a_look_at_a_step_waits_for_its_time_as_well(tmp_path):
    process, _ = watched(tmp_path, MODEL, "for _ in range(80): step()", options={**LOOK, "after_s": 3600.0})
    assert process["looks"] == []
    assert process["waits_for"].startswith("--after 3600s, of which ")
    done = command(tmp_path, "--at-step", "5000", "--", sys.executable, script(tmp_path, MODEL, "step(); step()"))
    assert "It waited for --at-step 5,000.\n" in done.stderr.decode()
    assert "Let it make more steps, or make --at-step smaller.\n" in done.stderr.decode()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--at-step", "-3"], "-3 is no step, such as 100"),
        (["--at-step", "0"], "0 is no step, such as 100"),
        (["--at-step", "1e3"], "1e3 is no step, such as 100"),
        (["--every", "0"], "0 is no time to wait for, such as 90s, 10m or 1h"),
        (["--after", "10x"], "10x is no time, such as 90s, 10m or 1h"),
        (["--step", "train"], "--step train is no MODULE:FUNCTION, such as train:one_step."),
    ],
)
def test_what_is_no_value_is_refused(tmp_path, options, said):
    done = command(tmp_path, *options, "--", "true")
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


def test_a_budget_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["try", "--budget", "0s", "--", "true"])
    assert ended.value.code == 2
    assert "0s is no time to wait for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["python job.py"], "Leave out the quotes around the whole command."),
        (["./job.py"], "It can't be started by itself. Give what runs it, as in: python ./job.py"),
        (["source", "activate"], "For what only a shell knows: bash -c '...'"),
    ],
)
def test_what_cannot_be_started_says_how(tmp_path, words, said):
    script(tmp_path, "print(1)")
    done = command(tmp_path, "--", *words)
    assert done.returncode == 2
    assert re.fullmatch(f"grader: .*{re.escape(said)}\n", done.stderr.decode())


def test_a_job_that_empties_its_environment_is_recorded_without_a_word(tmp_path, capfd):
    process, _ = watched(tmp_path, MODEL, "os.environ.clear()", STEPS, "print(dict(os.environ))")
    assert process["looks"][0]["trace"]
    assert capfd.readouterr() == ("{}\n", "")


RANK = {"step_s_median": 1.0, "blocks_s": [1.0, 2.0], "parts_s": {"backward": 0.5}, "device": "cpu"}


@pytest.mark.parametrize(
    "broken",
    [
        *({name: value for name, value in RANK.items() if name != left} for left in RANK),
        *({**RANK, name: "much"} for name in RANK if name != "device"),
        {**RANK, "blocks_s": [1.0, float("nan")]},
        {**RANK, "parts_s": {"backward": None}},
        {**RANK, "device": None},
    ],
)
def test_an_earlier_run_that_is_damaged_is_refused_before_the_job_starts(tmp_path, broken):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"version": 1, "ranks": [RANK, {**RANK, "step_s_median": None}]}))
    assert read_record(path)["ranks"][0] == RANK
    path.write_text(json.dumps({"version": 1, "ranks": [RANK, broken]}))
    with pytest.raises(UserError, match=r"is no run\.json"):
        read_record(path)


def test_a_job_without_steps_is_not_as_fast_as_an_earlier_one(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"version": 1, "ranks": [RANK]}))
    done = command(tmp_path, "--against", "run.json", "--", "true")
    assert done.returncode == 2
    assert "Too few steps were made for a comparison with the earlier run." in done.stderr.decode()
    assert command(tmp_path, "--against", "run.json", "--", "false").returncode == 1
