"""Training jobs for `grader run` and `grader try`, in real processes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

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
CLOCK = """
    import os, random, sys, time
    clock = [0.0]
    time.perf_counter = lambda: clock[0]  # by it a step takes what the job adds, however busy the machine is
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


def watched_all(folder: Path, bodies: dict[str, str], model: str = MODEL, options=LOOK) -> dict[str, dict]:
    """What was seen of each body, all in forked processes of one job: starting Python takes longer than the steps."""
    texts = {name: textwrap.dedent(body) for name, body in bodies.items()}
    run = f"""
        for name, body in {texts!r}.items():
            if not (pid := os.fork()):
                exec(body, globals())
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0, name
            print(name, pid, sep=":", file=open("pids", "a"))
    """
    _, seen = watched(folder, model, run, options={**options, "record": False}, cwd=folder)
    assert seen.status == 0
    pids = dict(line.split(":") for line in (folder / "pids").read_text().splitlines())
    return {name: next(each for each in seen.processes if each["pid"] == int(pid)) for name, pid in pids.items()}


def command(folder: Path, *words: str, **more) -> subprocess.CompletedProcess:
    """`grader run ...`, as a user types it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "grader.frontends.cli", "run", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, timeout=600, **more)
