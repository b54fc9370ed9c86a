"""`grader run`: a job keeps all that is its own, and what its user gets, in real processes."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import torch

from grader.frontends.run import summary
from grader.own.record import record
from grader.own.running import Files, run_watched
from tests.own_jobs import CLOCK, LOOK, MODEL, ROOT, STEPS, command, script, watched

OLD_TORCH = """open(__file__.replace("job.py", "torch.py"), "w").write("__version__ = '1.9'"); import torch"""


def test_nothing_of_the_job_changes(tmp_path):
    """Losses bit for bit, output, arguments, random state, exit status, what `import` finds."""
    body = """
        import random
        losses = [step(data[i : i + 16]).item().hex() for i in range(60)]
        print(sys.argv[1:], losses, torch.rand(1).item().hex(), random.random() if random.seed(1) is None else 0)
        print(sorted(p for p in sys.path if "watch" in p), "sitecustomize" in sys.modules, file=sys.stderr)
        sys.exit(7)
    """
    path = script(tmp_path, MODEL, body)
    plain = subprocess.run([sys.executable, path, "--a", "b c"], capture_output=True, cwd=tmp_path)
    seen = command(tmp_path, "--at-step", "6", "--out", "out", "--", sys.executable, path, "--a", "b c")
    assert seen.returncode == plain.returncode == 7
    assert seen.stdout == plain.stdout
    assert b"[]" in plain.stderr
    assert b"\n[] " in b"\n" + seen.stderr


def test_the_report_the_trace_and_the_numbers_are_files(tmp_path):
    done = command(
        tmp_path, "--at-step", "6", "--out", "out", "--", sys.executable, script(tmp_path, MODEL, STEPS), "9000"
    )
    assert done.returncode == 0, done.stderr.decode()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "trace.json.gz",
        "report.html",
        "report.json",
        "run.json",
    }
    assert json.loads(gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()))["traceEvents"]
    found = json.loads((tmp_path / "out" / "run.json").read_text())
    assert found["ranks"][0]["steps"] == 9000
    assert b"9,000 (of the optimizer)" in done.stderr
    assert b"this job ran on the CPU" in done.stderr and b"incomplete" not in done.stderr


def test_collections_of_garbage_are_in_the_recording_and_nothing_stays_in_the_job(tmp_path):
    body = """
        import gc
        gc.freeze()
        for i in range(80):
            step(); gc.collect()
        open("left", "w").write(str(gc.callbacks))
    """
    watched(tmp_path, MODEL, body, cwd=tmp_path)
    assert (tmp_path / "left").read_text() == "[]"
    recording = next((tmp_path / "watch").rglob("trace-*.json"))
    collections = [event for event in json.loads(recording.read_text())["traceEvents"] if event["name"] == "Python GC"]
    assert len(collections) >= 3, collections


@pytest.mark.slow
def test_a_path_in_another_encoding_than_the_locale_s(tmp_path):
    """A C locale on a disk with UTF-8: torch.profiler would write to another path, or to none."""
    here = tmp_path / "Kürs"
    here.mkdir()
    job, c = script(tmp_path, MODEL, STEPS), {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = ["--at-step", "6", "--stop", "--out", "out", "--", sys.executable, job, "9000"]
    done = subprocess.run(
        [sys.executable, "-m", "grader", "run", *words],
        cwd=here,
        env=os.environ | c | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert (here / "out" / "trace.json.gz").exists() and b"TypeError" not in done.stderr, done.stderr.decode()


@pytest.mark.slow
def test_a_job_on_another_device_is_not_told_that_it_ran_on_the_cpu(tmp_path):
    job = script(tmp_path, MODEL.replace("import torch\n", "import torch; torch.set_default_device('meta')\n"), STEPS)
    done = command(tmp_path, "--at-step", "6", "--stop", "--", sys.executable, job, "9000")
    assert b"this job ran on meta" in done.stderr
    assert b"(of the optimizer), on meta" in done.stderr
    assert b"CPU" not in done.stderr


@pytest.mark.slow
def test_steps_that_were_quicker_while_recorded_are_no_wait_for_data(tmp_path):
    """Because other programs let them be, or for what the job does seldom."""
    body = """
        for batch in torch.utils.data.DataLoader(data, batch_size=4):
            step(batch); time.sleep(0.0 if torch._C._autograd._profiler_enabled() else 0.05)
    """
    job = script(tmp_path, MODEL, body)
    done = command(tmp_path, "--at-step", "6", "--stop", "--out", "out", "--", sys.executable, job)
    said = json.loads((tmp_path / "out" / "report.json").read_text())["diagnosis"]
    assert said["cause"] is None, said
    words = " ".join(done.stderr.decode().split())  # lines break elsewhere where a number has another digit
    assert "which waited for data for" in words, words


@pytest.mark.slow
def test_other_programs_that_had_the_processor_are_named(tmp_path):
    """Two of them on the job's only core."""
    pin = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    others = [subprocess.Popen([sys.executable, "-c", f"import os; {pin}while True: pass"]) for _ in range(2)]
    try:
        job = script(tmp_path, MODEL, pin, STEPS)
        done = command(tmp_path, "--at-step", "20", "--stop", "--out", "out", "--", sys.executable, job, "1000000")
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert b"other programs used the processor for " in done.stderr
    (lost,) = json.loads((tmp_path / "out" / "run.json").read_text())["lost_to_others"]
    assert lost > 0.2


@pytest.mark.slow
def test_a_faster_earlier_run_makes_the_status_3(tmp_path):
    job = script(tmp_path, CLOCK, MODEL, "for _ in range(300):\n    step(); clock[0] += float(sys.argv[1])\n")
    assert command(tmp_path, "--out", "slow", "--", sys.executable, job, "0.05").returncode == 0
    fast = command(tmp_path, "--out", "fast", "--against", "slow/run.json", "--", sys.executable, job, "0.01")
    assert (fast.returncode, b"faster" in fast.stderr) == (0, True)
    again = command(tmp_path, "--against", "fast/run.json", "--", sys.executable, job, "0.05")
    assert (again.returncode, b"slower" in again.stderr) == (3, True)


def test_what_runs_on_in_the_background_is_named_and_not_harmed(tmp_path):
    body = """
        if os.fork():
            os._exit(0)
        os.setsid()
        for n in range(10**9):
            step()
            if os.path.exists("end"):
                break
        open("ended", "w").close()
    """
    quiet = "[os.dup2(os.open(os.devnull, os.O_RDWR), each) for each in range(3)]\n"
    body = textwrap.dedent(body).replace("os.setsid()\n", "os.setsid()\n" + quiet)
    done = command(tmp_path, "--out", "out", "--", sys.executable, script(tmp_path, MODEL, body))
    (tmp_path / "end").touch()
    assert done.returncode == 0
    assert b"runs on (process" in done.stderr
    until = time.monotonic() + 120
    while not (tmp_path / "ended").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not list((tmp_path / "out").glob(".watch*"))


def test_what_a_job_pickles_and_scripts_is_as_without_us(tmp_path):
    """torch.save as the target of a spawned process, and gradients within torch.jit.script, could not be found."""
    body = """
        import pickle, warnings
        import torch
        warnings.simplefilter("ignore")
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save is torch.serialization.save
        def force(x: torch.Tensor) -> torch.Tensor:
            found = torch.autograd.grad([x.square().sum()], [x], create_graph=True)[0]
            assert found is not None
            torch.autograd.backward([found.sum()])
            return found
        assert torch.jit.script(force)(torch.ones(2, requires_grad=True)).sum() == 4
    """
    assert watched(tmp_path, body)[1].status == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [("os._exit(5)", 5), ("os.kill(os.getpid(), 9)", 137), ("1 / 0", 1)],
)
def test_however_a_job_ends_its_status_is_kept(tmp_path, body, status):
    process, seen = watched(tmp_path, MODEL, STEPS, ("time.sleep(2.2); step()\n" if "kill" in body else "") + body)
    assert seen.status == status
    assert process["steps"] == 80 + ("kill" in body)


def test_what_a_job_is_killed_in_the_middle_of_is_told_as_of_then(tmp_path):
    """Its steps take 1.9 s by its own clock, and it is killed within the first timed ones."""
    body = """
        for _ in range(15):
            step(); clock[0] += 1.9
        os.kill(os.getpid(), 9)
    """
    process, seen = watched(tmp_path, CLOCK, MODEL, body, options={"at_step": 6})
    assert (seen.status, process["looks"]) == (137, [])
    assert process["steps"] >= 15 - 10 / 1.9
    assert "It was killed" in "".join(summary(seen, record(seen, [])))


def test_the_spread_of_a_few_steps_lies_between_them(tmp_path):
    _, seen = watched(tmp_path, CLOCK, MODEL, "for n in range(3): step(); clock[0] += 1 + n")
    (rank,) = record(seen, [])["ranks"]
    assert 1 <= rank["step_s_p10"] <= rank["step_s_p90"] <= 2


def test_what_a_stopped_job_did_while_it_was_looked_at_is_told(tmp_path):
    at_look = []

    def looked(seen):
        (process,) = seen.processes
        at_look.append(process["steps"])
        path = tmp_path / "watch" / f"process-{process['pid']}.json"
        while json.loads(path.read_text())["steps"] <= at_look[0]:
            time.sleep(0.05)
        return True

    process, seen = watched(tmp_path, MODEL, STEPS, arguments=["100000000"], looked=looked)
    assert seen.status == 0
    assert process["steps"] > at_look[0]


@pytest.mark.parametrize(
    ("body", "flags", "status", "said"),
    [
        ("print(1)", [], 0, "no Python process of this command imported torch"),
        ("import torch", [], 0, "no step was seen"),
        ("import torch", ["-I"], 0, "no Python process of this command imported torch"),
        (OLD_TORCH, [], 0, "this job can't be watched. torch 1.9: AttributeError"),
        ("import torch, sys; sys.exit(3)", [], 3, "the command ended with exit status 3 before its first step."),
        ("import sys; sys.exit(3)", [], 3, "exit status 3 before any Python process of it imported torch."),
    ],
)
def test_what_cannot_be_seen_is_said_in_one_line(tmp_path, body, flags, status, said):
    done = command(tmp_path, "--out", "out", "--", sys.executable, *flags, script(tmp_path, body))
    assert done.returncode == status
    assert done.stderr.decode().count("\n") == 1
    assert said in done.stderr.decode()


def test_a_folder_that_holds_files_of_others_keeps_them(tmp_path):
    """Standard error is closed: nothing of what is said gets into the job's output, and the status is the job's."""
    (tmp_path / "watch").mkdir()
    for name in ("watch/mine", "report.html"):
        (tmp_path / name).write_text("as it was")
    line = [sys.executable, "-m", "grader", "run", "--out", ".", "--", sys.executable]
    job = script(tmp_path, MODEL, "step(); print(1); sys.exit(5)")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*line, job], cwd=tmp_path, env=env, capture_output=True)
    assert "report.html is of an earlier run." in done.stderr.decode()
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *line, job], cwd=tmp_path, env=env, capture_output=True
    )
    for each in (done, closed):
        assert (each.returncode, each.stdout) == (5, b"1\n")
    assert {path.name for path in tmp_path.iterdir()} == {"watch", "report.html", "job.py", "run.json"}
    assert (tmp_path / "watch" / "mine").read_text() == (tmp_path / "report.html").read_text() == "as it was"


def test_a_torch_that_came_before_us_is_watched(tmp_path):
    """In a virtual environment, whose .pth file imports it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv" / "lib").glob("*/site-packages"))
    (packages / "a.pth").write_text(f"{Path(torch.__file__).parents[1]}\nimport torch\n")
    seen = run_watched([str(tmp_path / "venv/bin/python"), script(tmp_path, MODEL, STEPS)], tmp_path / "watch", LOOK)
    assert [process["steps"] for process in seen.processes] == [80]


def test_a_command_that_is_none(tmp_path):
    done = command(tmp_path, "--", "no-such-program")
    assert done.returncode == 2
    assert (
        done.stderr.decode()
        == "grader: no-such-program: No such file or directory. Give the command as you type it, after `--`. For what only a shell knows: bash -c '...'\n"
    )
    assert command(tmp_path).returncode == 2
    done = command(tmp_path, "--", "SEED=1", "python", "job.py")
    assert b"A variable is set before `grader`, as in: SEED=1 grader ..." in done.stderr


@pytest.mark.slow
def test_the_job_goes_on_whatever_becomes_of_the_report(tmp_path):
    """And what is ignored, as under nohup, the job ignores too."""
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    body = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN); sys.exit(6)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        long = STEPS.replace("step()", "step(); time.sleep(0.02)")
        done = command(
            tmp_path,
            "--at-step",
            "6",
            "--out",
            "out",
            "--",
            sys.executable,
            script(tmp_path, MODEL, long, body),
            "1000",
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.returncode, done.stdout) == (6, b"True\n"), done.stderr
    assert b"no report of this look" in done.stderr
    assert b"1,000 (of the optimizer)" in done.stderr


@pytest.mark.slow
def test_it_can_be_stopped_once_looked_at(tmp_path):
    """Also a job that catches everything, and what it started."""
    body = """
        import signal, subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(child.pid, flush=True)
        while True:
            try:
                step()
            except BaseException:
                pass
    """
    done = command(
        tmp_path, "--at-step", "6", "--stop", "--out", "out", "--", sys.executable, script(tmp_path, MODEL, body)
    )
    assert done.returncode == 0
    assert (tmp_path / "out" / "report.html").exists()
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int(done.stdout)).status() == psutil.STATUS_ZOMBIE, "it runs on"


@pytest.mark.parametrize("when", ["before torch", "warming up", "looked at"])
def test_control_c_is_the_job_s(tmp_path, when):
    body = """
        try:
            for n in range(10**9):
                step()
                if n == 3 or n == 3000:
                    print("at", n, flush=True)
        except KeyboardInterrupt:
            print("stopped by hand", flush=True)
            sys.exit(3)
    """
    early = "import time; print('at 0', flush=True); time.sleep(600)\n" if when == "before torch" else ""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "grader.frontends.cli", "run", "--at-step", "6", "--out", "out", "--"]
    job = subprocess.Popen(
        [*line, sys.executable, script(tmp_path, early, MODEL, body)], cwd=tmp_path, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = {"before torch": "at 0", "warming up": "at 3", "looked at": "at 3000"}[when]
    while job.stdout.readline().strip() != until:
        assert job.poll() is None
    time.sleep(0.2)
    os.killpg(job.pid, signal.SIGINT)
    out, errors = job.communicate(timeout=600)
    if when == "before torch":
        assert job.returncode == 130
    else:
        assert (job.returncode, out.strip().splitlines()[-1]) == (3, "stopped by hand")
    assert "grader" not in errors.split("Traceback")[-1].replace("grader run:", "") or when == "before torch"
    assert not list((tmp_path / "out").glob(".watch*"))
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)


@pytest.mark.parametrize(
    "where", ["torch.autograd.profiler._disable_profiler", "torch.profiler.profile.export_chrome_trace"]
)
def test_control_c_while_the_recording_ends(tmp_path, where):
    """It is the job's at once, and nothing half is left."""
    owner, _, name = where.rpartition(".")
    body = f"""
        import signal
        import torch.profiler
        original = {where}
        def interrupted(*args):
            if not os.path.exists("interrupted"):
                open("interrupted", "w").close()
                os.kill(os.getpid(), signal.SIGINT)
            return original(*args)
        {owner}.{name} = interrupted
        try:
            for n in range(10**9):
                step()
        except KeyboardInterrupt:
            print("stopped by hand", flush=True)
            sys.exit(3)
    """
    line = ["--at-step", "6", "--out", "out", "--", sys.executable, script(tmp_path, MODEL, body)]
    done = command(tmp_path, *line)
    assert (tmp_path / "interrupted").exists()
    assert (done.returncode, done.stdout) == (3, b"stopped by hand\n"), done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"It ended within the measurement" in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"run.json"}
    assert json.loads((tmp_path / "out" / "run.json").read_text())["ranks"][0]["windows_s"]


def test_what_a_signal_handler_of_the_job_raises_is_the_job_s(tmp_path):
    """Also where the signal comes while the watcher writes."""
    body = """
        import functools, signal
        import torch.profiler
        class Preempted(Exception): pass
        def preempted(*_): raise Preempted
        signal.signal(signal.SIGUSR1, functools.partial(preempted))
        def once(original):
            called = []
            def call(*args):
                if not called:
                    called.append(1)
                    os.kill(os.getpid(), signal.SIGUSR1)
                return original(*args)
            return call
        for _ in range(8): step()
        os.replace = once(os.replace)
        torch.profiler.profile.export_chrome_trace = once(torch.profiler.profile.export_chrome_trace)
        for _ in range(2):
            try:
                for n in range(5000): step()
            except Preempted:
                print("preempted", flush=True)
    """
    process, seen = watched(tmp_path, MODEL, body, cwd=tmp_path, files=Files(b"", tmp_path / "printed"))
    assert (tmp_path / "printed").read_text() == "preempted\n" * 2
    assert (seen.status, process["over"]) == (0, "the job ended")


def test_a_cell_of_a_notebook_is_looked_at(tmp_path):
    """Twice in one kernel, by a real one."""
    import nbformat
    from nbclient import NotebookClient

    train = "for _ in range(80):\n    step()\nprint('trained')"
    cells = ["%load_ext grader", textwrap.dedent(MODEL)]
    cells += [f"%%grader_run --at-step 6 --out '{name}'\n{train}" for name in ("one", "the other")]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute(
        env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    for cell, name in zip(book.cells[2:], ("one", "the other"), strict=True):
        said = "".join(output.get("text", "") for output in cell.outputs)
        assert "trained" in said
        assert "80 (of the optimizer)" in said
        assert {"run.json"} <= {path.name for path in (tmp_path / name).iterdir()}
        assert not list((tmp_path / name).glob(".watch*"))
