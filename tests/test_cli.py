"""The command line as a user meets it: real processes, exit statuses, one clear line for unusable input."""

import contextlib
import importlib.util
import json
import math
import os
import pty
import re
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import papermill
import pytest
from helpers import LAB, grade_cells

from grader import calibrate, labs, machine, paths
from grader.classroom import worker
from grader.course import outline
from grader.errors import UserError
from grader.frontends import attempts, cli, silence
from grader.frontends.commands.labs import form_here
from grader.frontends.terminal import Terminal
from grader.measure import calibration
from grader.result import FAIL, CheckResult, Result, write_text

REPOSITORY = Path(__file__).resolve().parents[1]


def grader(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "grader", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


@pytest.mark.slow
def test_a_terminal_that_is_not_utf_8_costs_no_result(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "grader.frontends.cli", "board", "--folder", tmp_path]
    attempts.keep(tmp_path, LAB, grade_cells(LAB.starter, quick=True))
    attempts.note(tmp_path, LAB.name, "4 \N{RIGHTWARDS ARROW} 8 workers")
    done = subprocess.run(command, env=environment, capture_output=True, encoding="latin-1", timeout=600)
    assert done.returncode == 0 and "4 ? 8 workers" in done.stdout, done.stderr


def test_labs_are_listed_as_text_and_as_json():
    assert "2a_workers" in grader("labs").stdout
    rows = json.loads(grader("labs", "--json").stdout)
    assert [row["name"] for row in rows] == list(labs.NAMES)
    assert all(row["points"] == 100 for row in rows)


def test_doctor_says_what_it_can_where_nothing_can_be_written(tmp_path):
    (tmp_path / "cache").write_text("a file")
    done = grader("doctor", env=os.environ | {"GRADER_CACHE": str(tmp_path / "cache" / "in it")})
    assert done.returncode == 2 and "Set GRADER_CACHE" in done.stderr
    assert "processor " in done.stdout and "versions " in done.stdout


def test_doctor_says_what_can_be_measured():
    done = grader("doctor")
    assert done.returncode == 0, done.stderr
    assert "confinement" in done.stdout and "2a_workers" in done.stdout


def test_a_calibration_for_a_class_has_a_worker_s_cores(monkeypatch, tmp_path):
    cores, seen = os.sched_getaffinity(0), []
    monkeypatch.setattr(
        calibrate, "measure_gain", lambda *_: seen.append(machine.cores()) or {"gain": 5.0, "interval": [4.9, 5.1]}
    )
    monkeypatch.setattr(calibration, "store_gain", lambda *_: tmp_path / "calibration.json")
    for name in ("CUDA_VISIBLE_DEVICES", worker.CORES):
        monkeypatch.setenv(name, "")
    of_class = ["--for-class", "--workers", str(len(cores))]
    options = cli.parsed(["calibrate", "2d_formats", "--device", "cpu", *of_class])
    try:
        options.run(options)
    finally:
        monkeypatch.setenv(worker.CORES, ",".join(map(str, cores)))
        worker.dask_setup(None)
    assert seen == [1]


def test_what_a_lab_lacks_here_is_said_before_it_is_begun(monkeypatch, capsys):
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: ["GPU-1"])
    assert form_here(labs.get("3j_communication")) == "cpu" and form_here(labs.get("2a_workers")) == "cuda"
    monkeypatch.undo()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "accelerate" else find(name, *more)
    )
    assert cli.main(["doctor"]) == 0
    assert re.search("^4d_trainer +not here: .*pip install .*accelerate", capsys.readouterr().out, re.M)
    assert cli.main(["labs", "--json"]) == 0
    assert {row["name"]: row["points_here"] for row in json.loads(capsys.readouterr().out)}["4d_trainer"] == 0


def test_a_number_that_json_does_not_have(monkeypatch, tmp_path, capsys):
    lab = labs.get("1c_diagnose")
    checks = [CheckResult(c.name, c.title, FAIL, 0, c.points, "no", evidence={"off": [math.inf]}) for c in lab.checks]
    monkeypatch.setattr(
        "grader.frontends.commands.grade.grade", lambda *_, **__: Result(lab.name, lab.title, "traces", checks, {}, {})
    )
    notebook = REPOSITORY / "solutions" / lab.name / f"{lab.name}.ipynb"
    assert cli.main(["grade", lab.name, str(notebook), "--json", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["checks"][0]["evidence"] == {"off": [None]}
    capsys.readouterr()
    assert cli.main(["grade", lab.name, str(notebook), "--json", "-"]) == 0
    assert "Infinity" not in capsys.readouterr().out
    assert cli.main(["grade", lab.name, str(notebook), "--html", "-"]) == 2
    assert "--html needs the name of a file." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "patched", "says"),
    [
        (["class", "labs", "submitted"], "grader.frontends.classroom.grade_class", "finished grades are kept"),
        (["calibrate"], "grader.frontends.commands.calibrate.run", "finished labs are kept"),
        (["nightly"], "grader.frontends.nightly.nightly", "finished parts are kept"),
        (["labs"], "grader.frontends.commands.labs.list_labs", "nothing unfinished was kept"),
    ],
)
def test_who_stops_a_command_is_told_what_is_kept(monkeypatch, capsys, arguments, patched, says):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(patched, stopped)
    assert cli.main(arguments) == 130
    assert says in capsys.readouterr().err


def test_a_lab_that_cannot_be_calibrated_keeps_no_other_back(monkeypatch, capsys, tmp_path):
    def measured(lab, *_):
        if lab.name == "2c_transforms":
            raise UserError("Other programs took up to 47% of the time.")
        return {"gain": 5.0, "interval": [4.9, 5.1]}

    monkeypatch.setattr(calibrate, "measure_gain", measured)
    monkeypatch.setattr(calibration, "store_gain", lambda *_: tmp_path / "calibration.json")
    options = cli.parsed(["calibrate", "--device", "cpu"])
    with pytest.raises(UserError, match="Not calibrated: 2c_transforms"):
        options.run(options)
    said = capsys.readouterr().out
    assert "47%" in said and "2d_formats: the solution gains 5.00x" in said


def test_start_makes_a_copy_and_never_overwrites_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    (tmp_path / "labs" / "2a_workers").mkdir(parents=True)
    (tmp_path / "labs" / "2a_workers" / "2a_workers.ipynb").write_text("released")
    notebook = outline.start("2a_workers")
    assert notebook.read_text() == "released"
    notebook.write_text("mine")
    assert cli.main(["start", "2a_workers"]) == 0 and notebook.read_text() == "mine"
    assert "is there already, as you left it" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["2a_workers"]
    notebook.rename(notebook.with_name("first try.ipynb"))  # as the start notebook says, to begin anew
    assert outline.start("2a_workers").read_text() == "released"
    assert notebook.with_name("first try.ipynb").read_text() == "mine" and len(list(notebook.parent.iterdir())) == 2


def test_a_lab_s_number_is_enough(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    (tmp_path / "labs" / "4e_inference").mkdir(parents=True)
    (tmp_path / "labs" / "4e_inference" / "4e_inference.ipynb").write_text("released")
    assert cli.main(["start", "4e"]) == 0
    assert (tmp_path / "work" / "4e_inference" / "4e_inference.ipynb").read_text() == "released"
    assert "is yours to change" in capsys.readouterr().out
    assert cli.main(["start", "4e"]) == 0 and "is there already" in capsys.readouterr().out
    for command in (["grade", "4e", "x.ipynb"], ["hint", "4e"], ["calibrate", "4e"], ["board", "4e"], ["class", "labs", "submitted", "--lab", "4e"]):  # fmt: skip
        assert "4e_inference" in str(cli.parsed(command).lab), command
    assert len({labs.full(name.partition("_")[0]) for name in labs.NAMES}) == len(labs.NAMES)


@pytest.mark.parametrize("asked, names", [(["--help"], "nightly"), (["diagnose", "--help"], "--annotate")])
def test_help_imports_no_command(asked, names):
    script = f"import sys; sys.argv[1:] = {asked}; import atexit; from grader.frontends.cli import main\n"
    script += "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\nmain()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    heavy = {
        "torch",
        "matplotlib",
        "IPython",
        "dask",
        "numpy",
        "msgspec",
        "psutil",
        "grader.labs",
        "grader.frontends.diagnose",
    }
    assert names in done.stdout and not heavy & set(done.stderr.split())


@pytest.mark.parametrize("command, status", [("grade", "0 for a report"), ("compare", "2 for files that can't be")])
def test_help_says_what_the_exit_status_means(command, status, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert f"Exit status: {'0 if it measured, 1 if not, ' * (command == 'compare')}{status}" in " ".join(
        capsys.readouterr().out.split()
    )


def test_start_where_nothing_can_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path / "my course")
    (tmp_path / "my course" / "labs" / "2a_workers").mkdir(parents=True)
    work = tmp_path / "my course" / "work"
    work.write_text("no folder")
    assert cli.main(["start", "2a_workers"]) == 2
    assert "2a_workers.ipynb cannot be made: " in capsys.readouterr().err
    work.unlink()
    (tmp_path / "my course" / "labs" / "2a_workers" / "2a_workers.ipynb").write_text("released")
    assert cli.main(["start", "2a_workers"]) == 0
    assert f"jupyter lab '{work}/2a_workers/2a_workers.ipynb'" in capsys.readouterr().out


def test_demo_says_at_once_that_its_reports_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--out", str(tmp_path / "file" / "reports")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("grade", "9z_nothing", "x.ipynb"), "There is no lab '9z_nothing'"),
        (("grade", "2a_workers", "missing.ipynb"), "missing.ipynb cannot be read"),
        (("grade", "2a_workers", REPOSITORY / "README.md"), "is not a notebook"),
        (
            ("grade", "2a_workers", REPOSITORY / "labs/2e_syncs/2e_syncs.ipynb"),
            "a notebook of 2e_syncs, not of 2a_workers",
        ),
        (
            ("grade", REPOSITORY / "labs/2e_syncs/2e_syncs.ipynb", "2e_syncs"),
            "The lab comes first. Use: grader grade 2e_syncs /",
        ),
        (("grade", REPOSITORY / "labs/2e_syncs/2e_syncs.ipynb", "2e"), "The lab comes first. Use: grader grade 2e /"),
        (("grade", "2a", "missing.ipynb"), "missing.ipynb cannot be read"),
        (("start", "2"), "There is no lab '2'"),
        (("hint", "1b"), "Name a check of 1b_annotate."),
        (("hint", "1b_annotate"), "It has hints for: window, phases, cost."),
        (("start", "nothing"), "There is no lab 'nothing'"),
        (("calibrate", "3a_precision", "--device", "cpu"), "needs an NVIDIA GPU"),
    ],
)
def test_unusable_input_is_one_clear_line(arguments, says):
    done = grader(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_the_bare_command_says_where_to_begin():
    done = grader()
    assert not done.returncode and not done.stderr and cli.BEGIN in " ".join(done.stdout.split())


@pytest.mark.skipif(machine.has_gpu(), reason="this machine has a GPU")
def test_a_gpu_that_is_asked_for_and_missing_is_said():
    done = grader("grade", "3a_precision", REPOSITORY / "labs/3a_precision/3a_precision.ipynb", "--device", "cuda")
    assert done.returncode == 2 and "no NVIDIA GPU here" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("gradee 2a", "grader: error: there is no command gradee. Did you mean grade?"),
        ("xyzzy", "grader: error: there is no command xyzzy. `grader --help` lists them."),
        ("diagnose t.json --jsno x", "grader diagnose: error: there is no option --jsno. Did you mean --json?"),
        ("labs --verbose=2", "grader labs: error: there is no option --verbose."),
        ("run --stop-it -- python a.py --x", "grader run: error: there is no option --stop-it. Did you mean --stop?"),
        ("pool keys d --host h", "grader pool keys: error: there is no option --host."),
        ("class colect a.zip", "no command class colect, and no folder colect. Did you mean collect?"),
        ("class marks a b --cavnas", "grader class marks: error: there is no option --cavnas. Did you mean --canvas?"),
    ],
)
def test_what_is_misspelt_is_said_of_its_command(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.split())
    assert ended.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--html", "--annotate"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a pipe", "broken link", "link to itself"])
def test_only_a_plain_file_is_overwritten(kind, option, tmp_path, capsys):
    """Root has the right to put a file in the place of /dev/null, and most containers run as root."""
    target = tmp_path / "out"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(str(target))
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        os.mkfifo(tmp_path / "pipe")
        target.symlink_to({"link to a pipe": "pipe", "broken link": "nothing", "link to itself": "out"}[kind])
    before = target.lstat().st_ino
    assert cli.main(["diagnose", str(REPOSITORY / "data/traces/gpt_input.json.gz"), option, str(target)]) == 2
    assert f"{str(target)!r} cannot be written: It isn't a plain file." in capsys.readouterr().err
    assert target.lstat().st_ino == before and not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_that_is_started_without_its_streams_works(closed, tmp_path):
    page = tmp_path / "page.json"
    command = [sys.executable, "-m", "grader", "diagnose", REPOSITORY / "data/traces/gpt_input.json.gz", "--json", page]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and not done.stderr and json.loads(page.read_text())


@pytest.mark.parametrize("command", [["diagnose"], ["class", "collect"]])
def test_a_name_that_is_no_utf_8_is_said_whole(command):
    done = grader(*command, os.fsdecode(b"no\xffwhere.zip"))
    assert done.returncode == 2 and re.search("no[\ufffd?]where", done.stderr) and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["diagnose"], ["grade", "2a"], ["class", "collect"], ["class", "labs"]])
def test_a_name_cannot_command_the_terminal(command, capsys):
    """It may come out of an archive: colours, the window's title, a line that reads otherwise than it is."""
    assert cli.main([*command, "no\x1b[2J\x1b]0;title\x07\u202ewhere.zip"]) == 2
    said = capsys.readouterr().err
    assert "nowhere.zip" in said and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)


def test_a_file_in_a_folder_s_place_is_said_with_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("empty").mkdir()
    for command in ("scaffold file", "scaffold file/below", "course file", "class collect empty --to file"):
        assert cli.main(command.split()) == 2
        said = capsys.readouterr().err
        assert re.search(r"(File exists|Not a directory)\. (Name|A file has this name)", said), (command, said)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_result_takes_the_place_of_plain_files_alone(kind, tmp_path):
    target = tmp_path / "out"
    os.mkfifo(target) if kind == "pipe" else target.mkdir()
    before = target.lstat().st_ino
    with pytest.raises(OSError) as said:
        write_text(target, "text")
    assert said.value.filename == str(target) and target.lstat().st_ino == before and os.listdir(tmp_path) == ["out"]


PROGRESS = """from grader.frontends.classroom import ClassProgress
from grader.frontends.terminal import Terminal
grade, course = Terminal("2a_workers"), ClassProgress()
grade(0.5, "timing pair 1")
course.begin(2); course.done("jane, 2a", {"seconds": 3.0, "result": {"score": 50}})"""


def on_a_terminal(size: tuple[int, int], source: str, **environment: str) -> str:
    """What a process shows on a terminal of so many lines and columns."""
    environment = {**os.environ, "TERM": "xterm", **environment}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    process = subprocess.Popen([sys.executable, "-c", source], 0, None, theirs, theirs, theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that it's at an end
        while more := os.read(ours, 65536):
            shown += more
    os.close(ours)
    assert not process.wait(60)
    return shown.decode()


@pytest.mark.parametrize("size", [(0, 0), (0, 100), (40, 0), (40, 100)])
def test_each_terminal_shows_progress(size):
    """Some know no size, such as a container's, where a bar would be invisible."""
    shown = on_a_terminal(size, PROGRESS)
    assert (" 50%" in shown) == all(size)
    assert ("2a_workers: timing pair 1" in shown) != all(size)


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_can_be_refused(environment, coloured):
    trace = REPOSITORY / "data/traces/gpt_input.json.gz"
    source = f"from grader.frontends import cli; cli.main(['diagnose', {str(trace)!r}])"
    shown = on_a_terminal((40, 100), source, **environment)
    assert "input-bound" in shown and ("\x1b[" in shown) == coloured


def test_a_bar_reads_as_one_sentence():
    shown = on_a_terminal((40, 120), PROGRESS)
    assert " 50%, timing pair 1" in shown and " left, jane, 2a: 50 points" in shown


@pytest.mark.parametrize("share, explained", [(0.1, True), (1.0, False)])
def test_a_long_silence_is_explained_on_a_terminal(share, explained, monkeypatch, capsys):
    monkeypatch.setattr(silence, "SILENCE_S", 0.05)
    bar = Terminal("3a_precision")
    bar(share, "first steps of the submission (the first may compile, for at most 180 s)")
    time.sleep(1)
    said = "3a_precision: Not done after 0.05 s. Is it compiling, are steps slow, or does the loop never yield? Ctrl+C stops it"
    assert capsys.readouterr().err.count(said) == explained


def test_hints():
    first, last = (grader("hint", "2a_workers", "pinned", "--depth", str(depth)).stdout for depth in (1, 3))
    assert "More: grader hint 2a_workers pinned --depth 2" in first
    assert "non_blocking" in last and "More" not in last
    wrong = grader("hint", "2a_workers", "nothing")
    assert wrong.returncode == 2 and "throughput, reads, pinned" in wrong.stderr


def test_a_gpu_lab_on_a_cpu_gives_no_points_and_says_so():
    done = grader(
        "grade",
        "3a_precision",
        REPOSITORY / "solutions/3a_precision/3a_precision.ipynb",
        "--device",
        "cpu",
        "--json",
        "-",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["score"] == 0 and result["measured_max"] == 0 and result["max_score"] == 100
    assert {check["status"] for check in result["checks"]} == {"NOT MEASURED"}


@pytest.mark.slow
def test_the_starter_earns_next_to_nothing_and_the_result_is_complete(tmp_path):
    notebook = REPOSITORY / "labs/2a_workers/2a_workers.ipynb"
    json_file, page = tmp_path / "result.json", tmp_path / "report.html"
    done = grader("grade", "2a_workers", notebook, "--device", "cpu", "--quick", "--json", json_file, "--html", page)
    assert done.returncode == 0, done.stderr
    result = json.loads(json_file.read_text())
    assert {"lab", "score", "max_score", "measured_max", "checks", "machine", "versions", "warnings"} <= result.keys()
    for check in result["checks"]:
        assert {"name", "status", "points", "max_points", "reason", "evidence"} <= check.keys()
    assert result["measured_max"] == 80 and result["score"] <= 8
    assert "Throughput" in done.stdout and page.read_text().startswith("<!")


def test_the_start_notebook_runs(tmp_path):
    notebook = REPOSITORY / "notebooks/00_start_here.ipynb"
    papermill.execute_notebook(notebook, tmp_path / "out.ipynb", cwd=str(notebook.parent), progress_bar=False)


@pytest.mark.parametrize("disturbed", ["", "Another program uses the GPU."])
@pytest.mark.parametrize("place", ["work/2a_workers", "work/2d_formats", "elsewhere"])
def test_a_grade_in_the_learner_s_own_folder_is_kept_as_by_the_notebook(
    monkeypatch, tmp_path, capsys, disturbed, place
):
    checks = [CheckResult("parity", "The same training", FAIL, 0, 40, "Another loss.")]
    result = Result("2a_workers", "Workers", "cpu", checks, {"cores": 2}, {"torch": "2.11"}, disturbed=disturbed)
    monkeypatch.setattr("grader.frontends.commands.grade.grade", lambda *_, **__: result)
    monkeypatch.setattr("grader.frontends.commands.grade.fork_server", lambda: None)
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / place
    folder.mkdir(parents=True)
    notebook = folder / "mine.ipynb"
    notebook.write_text((REPOSITORY / "labs/2a_workers/2a_workers.ipynb").read_text())
    assert cli.main(["grade", "2a_workers", str(notebook)]) == 0
    kept = {path.name for path in folder.iterdir()} - {"mine.ipynb"}
    said = capsys.readouterr().out
    if disturbed or place != "work/2a_workers":
        assert not kept and "Saved" not in said
    else:
        assert kept == {"report-2a_workers.html", "report-2a_workers.json", "attempts-2a_workers.json"}
        assert Result.from_dict(json.loads((folder / "report-2a_workers.json").read_text())) == result
        assert f"Saved as {place}/report-2a_workers.html and {place}/report-2a_workers.json." in said


@pytest.mark.parametrize(
    "locked, differs",
    [
        ({"cause": "input-bound", "gain": 3}, False),
        ({"cause": "input-bound", "gain": 4}, True),
        ({"cause": "sync-bound", "gain": 3}, True),
        ({"cause": "sync-bound"}, False),  # none that lab.check() would take
        (None, False),
    ],
)
def test_a_grade_says_where_another_prediction_is_locked(tmp_path, capsys, monkeypatch, locked, differs):
    result = Result("2a_workers", "Workers", "cpu", [], {"cores": 2}, {"torch": "2.11"})
    monkeypatch.setattr("grader.frontends.commands.grade.grade", lambda *_, **__: result)
    monkeypatch.setattr("grader.frontends.commands.grade.fork_server", lambda: None)
    filled = "lab.predict(cause='input-bound', gain=3)"
    released = json.loads((REPOSITORY / "labs/2a_workers/2a_workers.ipynb").read_text())
    (cell,) = [cell for cell in released["cells"] if "lab.predict(cause=..." in "".join(cell["source"]) and cell["cell_type"] == "code"]  # fmt: skip
    cell["source"] = [filled]
    (tmp_path / "mine.ipynb").write_text(json.dumps(released))
    if locked:
        (tmp_path / "prediction.json").write_text(json.dumps({"2a_workers": locked}))
    assert cli.main(["grade", "2a", str(tmp_path / "mine.ipynb")]) == 0
    said = capsys.readouterr().out
    assert ("Another prediction is locked beside this notebook" in said) == differs
    assert not differs or f"({locked['cause']}, {locked['gain']} times as fast on a GPU)" in said


PIPED = {
    "compare pipe pipe": "cannot be read: nothing writes to this named pipe",
    "run --against pipe -- true": "cannot be read: nothing writes to this named pipe",
    "pool keys made --users pipe": "nothing writes to this named pipe",
    "class board --agreed pipe": "cannot be read: nothing writes to this named pipe",
    "class collect job.py --students pipe": "cannot be read: nothing writes to this named pipe",
    "class collect pipe": "is a named pipe",
    "diagnose pipe": "is not a regular file",
    "grade 2a pipe": "is not a plain file",
}


@pytest.mark.parametrize("command", PIPED)
def test_a_named_pipe_that_nothing_writes_to_is_told_instead_of_waited_for(tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "job.py").write_text("def make_job(seed, device):\n    pass\n")
    done = grader(*command.split(), cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and PIPED[command] in done.stderr


def test_but_a_pipe_that_something_writes_to_is_a_file(tmp_path):
    reads, writes = os.pipe()
    os.write(writes, b"anna\n")
    os.close(writes)
    done = grader("pool", "keys", "made", "--users", f"/dev/fd/{reads}", cwd=tmp_path, pass_fds=[reads])
    os.close(reads)
    assert done.returncode == 0 and (tmp_path / "made" / "users" / "anna.pem").is_file()
