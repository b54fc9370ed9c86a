"""`grader run`: jobs of all kinds as they are, in real processes."""

import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from grader import trace
from grader.frontends.run import summary
from grader.own import record as records
from grader.own.running import run_watched

ROOT = Path(__file__).resolve().parents[1]
LOOK = {"at_step": 6, "window_s": 0.0}  # early and short: what is tested here is what is seen, not how fast it was
MODEL = """
    import os, sys, time
    import torch
    from torch import nn
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(1024, 8), torch.randn(1024, 1))

    def step(batch=data[:16]):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()
"""
STEPS = """
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 80):
        step()
"""


def script(folder: Path, *parts: str) -> str:
    path = folder / "job.py"
    path.write_text("".join(textwrap.dedent(part) for part in parts))
    return str(path)


def watched(folder: Path, *parts: str, arguments=(), options=LOOK, **more):
    """The one process that trained, and all that was seen. A job that makes no steps has none."""
    seen = run_watched([sys.executable, script(folder, *parts), *arguments], folder / "watch", options, **more)
    return (seen.processes[0] if len(seen.processes) == 1 else None), seen


def command(folder: Path, *words: str, **more) -> subprocess.CompletedProcess:
    """`grader run ...`, as a user types it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "grader.frontends.cli", "run", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, timeout=300, **more)


def test_a_job_is_timed_and_recorded(tmp_path):
    process, seen = watched(tmp_path, MODEL, STEPS)
    (look,) = process["looks"]
    assert seen.status == 0
    assert process["steps"] == 80
    assert process["by"] == "optimizer"
    assert process["parameters"] == 161
    assert [len(window) for window in look["step_s"]] == [10, 10] or min(map(len, look["step_s"])) >= 10
    assert all(second > 0 for window in look["step_s"] for second in window)
    recorded = trace.read(Path(look["trace"]))
    assert len(recorded.steps) >= 8
    assert {"backward", "optimizer"} <= process["parts"].keys()


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


def test_a_script_may_look_for_torch_before_it_imports_it(tmp_path):
    """As transformers, accelerate and others do."""
    look = "import importlib.util, sys\nprint(importlib.util.find_spec('torch').name)\n"
    process, seen = watched(tmp_path, look, MODEL, STEPS)
    assert seen.status == 0
    assert process is not None and process["steps"] == 80


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


def test_a_faster_earlier_run_makes_the_status_3(tmp_path):
    slow = script(tmp_path, MODEL, "for _ in range(60):\n    step(); time.sleep(float(sys.argv[1]))\n")
    for name, pause in (("one", "0.01"), ("two", "0.05")):
        assert command(tmp_path, "--out", name, "--", sys.executable, slow, pause).returncode == 0
    again = command(tmp_path, "--out", "three", "--against", "one/run.json", "--", sys.executable, slow, "0.05")
    assert again.returncode == 3
    assert b"slower" in again.stderr
    back = command(tmp_path, "--out", "four", "--against", "two/run.json", "--", sys.executable, slow, "0.01")
    assert back.returncode == 0
    assert b"faster" in back.stderr


@pytest.mark.parametrize(
    ("body", "steps", "by"),
    [
        ("for _ in range(20):\n    for _ in range(4): step.__wrapped__() if 0 else nn.functional.mse_loss(model(data[:4][0]), data[:4][1]).backward()\n    optimizer.step()\n", 20, "optimizer"),
        ("other = torch.optim.SGD(nn.Linear(2, 2).parameters())\nfor _ in range(25):\n    other.step(); step(); other.step()\n", 25, "optimizer"),
        ("NO_OPTIMIZER = 1\nfor _ in range(70):\n    nn.functional.mse_loss(model(data[:4][0]), data[:4][1]).backward()\n    model.zero_grad()\n", 41, "backward"),
        ("NO_OPTIMIZER = 1\nfor _ in range(70):\n    torch.autograd.grad(model(data[:4][0]).sum(), list(model.parameters()))\n", 41, "grad"),
        ("for _ in range(25):\n    x = torch.ones(4, 8, requires_grad=True)\n    torch.autograd.grad(model(x).sum(), x, create_graph=True)\n    step()\n", 25, "optimizer"),
        ("for _ in range(20):\n    for _ in range(40): nn.functional.mse_loss(model(data[:4][0]), data[:4][1]).backward()\n    optimizer.step()\n", 20, "optimizer"),
        ("groups = [{**optimizer.param_groups[0], 'params': [p]} for p in model.parameters()]\nfor _ in range(20):\n    model(data[:4][0]).sum().backward()\n    for group in groups:\n        optimizer.param_groups = [group]; optimizer.step()\n", 20, "optimizer"),
        ("for _ in range(20):\n    for p in model.parameters(): p.grad = torch.randn_like(p)\n    optimizer.step()\n", 20, "optimizer"),
        ("optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60)\ndef again():\n    optimizer.zero_grad(); loss = model(data[:64][0]).sin().sum(); loss.backward(); return loss\nfor _ in range(20): optimizer.step(again)\n", 20, "optimizer"),
    ],
    ids=["accumulation", "two optimizers", "no optimizer", "autograd.grad", "gradient penalty", "long accumulation", "group by group", "other passes", "many evaluations in a step"],
)  # fmt: skip
def test_steps_are_found(tmp_path, body, steps, by):
    """Where none is made, no optimizer waits for gradients."""
    model = MODEL.replace("optimizer = ", "optimizer = None  # ") if "NO_OPTIMIZER" in body else MODEL
    process, _ = watched(tmp_path, model, body)
    assert (process["steps"], process["by"]) == (steps, by)


def test_a_step_that_a_scaler_skips_is_one(tmp_path):
    body = """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10_000)
        for n in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(data[:4][0]), data[:4][1])
            scaler.scale(loss * (float("inf") if n % 4 == 3 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    process, _ = watched(tmp_path, MODEL, body)
    assert process["steps"] == 20
    assert process["counts"]["skipped"] == 5


def test_a_function_can_end_the_steps(tmp_path):
    body = """
        def turn():
            step(); step()
        for _ in range(30):
            turn()
            time.sleep(0.03)
    """
    process, _ = watched(tmp_path, MODEL, body, options={**LOOK, "step": "__main__:turn"})
    assert process["by"] == "function"
    assert 25 <= process["steps"] <= 30  # its first calls may come before it is found


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader_are_no_part_of_it(tmp_path, start):
    body = f"""
        if __name__ == "__main__":
            for _ in range(3):
                loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, multiprocessing_context="{start}")
                for batch in loader:
                    step(batch)
    """
    process, seen = watched(tmp_path, MODEL, body)
    assert seen.status == 0
    assert process["steps"] == 96
    assert process["counts"]["batches"] >= 96
    assert process["loader"] == {"workers": 2, "prefetch": 2, "batch": 32}
    assert process["total_s"]["data_wait"] > 0


def test_samples_are_those_of_all_loaders_and_unequal_steps_are_timed_in_whole_rounds(tmp_path):
    body = """
        def forever(batch):
            while True:
                yield from torch.utils.data.DataLoader(data, batch_size=batch)
        labelled, others = forever(16), forever(64)
        for n in range(120):
            next(others); step(next(labelled)); time.sleep(0.05 if n % 3 == 0 else 0.005)
    """
    process, seen = watched(tmp_path, MODEL, body, options={**LOOK, "at_step": 40})
    assert records.record(seen, [])["ranks"][0]["samples_a_step"] == 80
    assert [len(window) % 3 for window in process["looks"][0]["step_s"]] == [0, 0]


def test_evaluation_and_checkpoints_are_no_steps(tmp_path):
    body = """
        class Model(nn.Sequential):
            def eval(self):  # as in transformers
                return self.train(False)
        model.__class__ = Model
        for n in range(60):
            step()
            if n % 10 == 9:
                model.eval(); time.sleep(0.2); torch.save(model.state_dict(), "c.pt"); model.train()
            nn.BatchNorm1d(8).eval()
    """
    process, seen = watched(tmp_path, MODEL, body, cwd=tmp_path)
    assert process["counts"]["evaluation"] == process["counts"]["checkpoints"] == 6
    assert process["total_s"]["evaluation"] > 1.1
    assert sorted(process["times"])[-7] < 0.15, "steps hold none of the 0.2 s"
    assert "evaluation" in "\n".join(summary(seen, records.record(seen, ["x"])))


@pytest.mark.parametrize("attack", ["", "model.train()"])
def test_what_every_step_evaluates_is_a_part_of_it(tmp_path, attack):
    """A teacher as large as the model, and an attack on the model before each step."""
    body = f"""
        teacher = model if {attack!r} else nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        for n in range(60):
            teacher.eval(); time.sleep(0.02); {attack or "pass"}
            step()
            if n == 50:
                for _ in range(3): torch.save(model.state_dict(), "c.pt")
    """
    process, _ = watched(tmp_path, MODEL, body, cwd=tmp_path)
    assert process["counts"]["evaluation"] == 0
    assert process["counts"]["checkpoints"] == 1, "of several files"
    assert min(process["times"][5:]) > 0.019


def test_an_evaluation_whose_end_is_not_told_takes_no_step_with_it(tmp_path):
    """Lightning sets `training` itself; some scripts never go back to it."""
    body = """
        for n in range(60):
            step(); time.sleep(0.01)
            if n % 10 == 9:
                model.eval(); time.sleep(0.3)
                for part in model.modules():
                    part.training = n < 30
    """
    process, _ = watched(tmp_path, MODEL, body)
    assert process["counts"]["evaluation"] >= 5
    assert process["total_s"]["evaluation"] > 1.4
    assert min(process["times"]) > 0.008, "a step is as long as others"
    assert sorted(process["times"])[-7] < 0.25, "steps hold none of the 0.3 s"


def test_checkpoints_are_seen_however_they_are_written(tmp_path):
    body = """
        import torch.distributed.checkpoint as saving
        for n in range(20):
            step()
            if n % 10 == 9:
                saving.save(model.state_dict(), checkpoint_id=f"c{n}")
    """
    process, seen = watched(tmp_path, MODEL, body, cwd=tmp_path)
    assert seen.status == 0
    assert process["counts"]["checkpoints"] == 2


def test_parts_are_those_of_a_whole_step(tmp_path):
    """Several backward passes in a step; backward passes within the optimizer's step."""
    slow = """
        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x.view_as(x)
            @staticmethod
            def backward(context, gradient):
                time.sleep(pause)
                return gradient
        def loss():
            return Slow.apply(model(data[:4][0])).sum()
        """
    accumulate = """
        pause = 0.01
        for _ in range(60):
            optimizer.zero_grad()
            for _ in range(4):
                loss().backward()
            optimizer.step()
    """
    closure = """
        pause = 0.4
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=1)
        def again():
            optimizer.zero_grad(); found = loss(); found.backward(); return found
        for _ in range(16):
            optimizer.step(again)
    """
    process, _ = watched(tmp_path, MODEL, slow, accumulate)
    assert process["parts"]["backward"] > 0.04
    process, _ = watched(tmp_path, MODEL, slow, closure)
    assert process["parts"]["backward"] > 0.4 > process["parts"]["optimizer"], "backward is no part of the optimizer's"


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
    assert not (tmp_path / "out" / "watch").exists()


def test_ranks_that_the_script_starts_are_ranks(tmp_path):
    body = """
        def rank(number):
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[1])
            torch.distributed.init_process_group("gloo", rank=number, world_size=2)
            for _ in range(150):
                step(); torch.distributed.barrier()
            torch.distributed.destroy_process_group()
        if __name__ == "__main__":
            torch.multiprocessing.spawn(rank, nprocs=2)
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    _, seen = watched(tmp_path, MODEL, body, arguments=[port])
    assert seen.status == 0
    assert [(each["rank"], each["steps"]) for each in seen.processes] == [(0, 150), (1, 150)]


def test_processes_that_train_side_by_side_each_have_a_number(tmp_path):
    body = """
        def alone():
            for _ in range(100):
                step()
        if __name__ == "__main__":
            them = [torch.multiprocessing.Process(target=alone) for _ in range(2)]
            [each.start() for each in them], [each.join() for each in them]
    """
    _, seen = watched(tmp_path, MODEL, body)
    assert seen.status == 0
    assert [(each["rank"], each["steps"]) for each in seen.processes] == [(0, 100), (1, 100)]


def test_a_graph_that_holds_the_optimizer_steps_when_it_is_replayed(tmp_path):
    """What the watcher is told on a GPU, in the order in which it is told; there is no graph on a CPU."""
    body = """
        import grader_watch
        class Graph: pass
        watch, graph, other = grader_watch.watch, Graph(), Graph()
        for _ in range(3):
            step()
        grader_watch._capturing = lambda: True
        step()
        grader_watch._capturing = lambda: False
        watch.graph_captured(graph); watch.graph_captured(other)
        for _ in range(50):
            watch.graph_replayed(graph); watch.graph_replayed(other)
    """
    process, _ = watched(tmp_path, MODEL, body)
    assert (process["steps"], process["by"]) == (53, "graph")


def test_two_ranks_record_the_same_steps(tmp_path):
    body = """
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        for _ in range(int(sys.argv[1])):
            step(); time.sleep(0.005)
        torch.distributed.destroy_process_group()
    """
    path = script(tmp_path, MODEL, body)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path, "500"]
    seen = run_watched(line, tmp_path / "watch", LOOK)
    assert seen.status == 0
    assert [process["rank"] for process in seen.processes] == [0, 1]
    assert [process["steps"] for process in seen.processes] == [500, 500]
    first, second = (process["looks"][0] for process in seen.processes)
    assert first["at_step"] == second["at_step"]
    traces = [trace.read(Path(look["trace"])) for look in (first, second)]
    assert len(traces[0].steps) == len(traces[1].steps) >= 8


def test_the_job_s_own_profiler_comes_first(tmp_path):
    body = """
        for n in range(60):
            step()
            if n == 20:
                with torch.profiler.profile() as own:
                    step()
        assert any(event.key.startswith("aten::") for event in own.key_averages())
    """
    process, seen = watched(tmp_path, MODEL, body, options={**LOOK, "at_step": 6})
    assert seen.status == 0
    assert process["steps"] == 61
    assert process["over"] == "the job ended"


@pytest.mark.parametrize(
    ("body", "status"),
    [("os._exit(5)", 5), ("raise SystemExit(4)", 4), ("os.kill(os.getpid(), 9)", 137), ("1 / 0", 1)],
)
def test_however_a_job_ends_its_status_is_kept(tmp_path, body, status):
    process, seen = watched(tmp_path, MODEL, STEPS, ("time.sleep(2.2); step()\n" if "kill" in body else "") + body)
    assert seen.status == status
    assert process["steps"] == 80 + ("kill" in body)


@pytest.mark.parametrize(
    ("body", "flags", "said"),
    [
        ("print(1)", [], "no Python process of this command imported torch"),
        ("import torch", [], "no step was seen"),
        ("import torch", ["-I"], "no Python process of this command imported torch"),
    ],
)
def test_what_cannot_be_seen_is_said_in_one_line(tmp_path, body, flags, said):
    done = command(tmp_path, "--out", "out", "--", sys.executable, *flags, script(tmp_path, body))
    assert done.returncode == 0
    assert done.stderr.decode().count("\n") == 1
    assert said in done.stderr.decode()


def test_a_command_that_is_none(tmp_path):
    done = command(tmp_path, "--", "no-such-program")
    assert done.returncode == 2
    assert (
        done.stderr.decode()
        == "grader: no-such-program: No such file or directory. Give the command as you type it, after `--`.\n"
    )
    assert command(tmp_path).returncode == 2


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
    out, errors = job.communicate(timeout=120)
    if when == "before torch":
        assert job.returncode == 130
    else:
        assert (job.returncode, out.strip().splitlines()[-1]) == (3, "stopped by hand")
    assert "grader" not in errors.split("Traceback")[-1].replace("grader run:", "") or when == "before torch"
    assert not (tmp_path / "out" / "watch").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)


def test_a_cell_of_a_notebook_is_looked_at(tmp_path):
    """Twice in one kernel, by a real one."""
    import nbformat
    from nbclient import NotebookClient

    train = "for _ in range(80):\n    step()\nprint('trained')"
    cells = ["%load_ext grader", textwrap.dedent(MODEL)]
    cells += [f"%%grader_run --at-step 6 --out {name}\n{train}" for name in ("one", "two")]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute(
        env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    for cell, name in zip(book.cells[2:], ("one", "two"), strict=True):
        said = "".join(output.get("text", "") for output in cell.outputs)
        assert "trained" in said
        assert "80 (of the optimizer)" in said
        assert {"run.json"} <= {path.name for path in (tmp_path / name).iterdir()}
        assert not (tmp_path / name / "watch").exists()
