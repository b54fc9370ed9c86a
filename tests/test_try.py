"""`grader try`: levers on jobs as they are, in real processes. That a lever is faster is measured on a GPU, not here."""

import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from grader.errors import UserError
from grader.frontends.try_levers import copy_of_here, draw, page, text
from grader.measure import decision
from grader.own import running, trying
from grader.own.trying import Lever, Rung, Tried, try_levers
from tests.own_jobs import CLOCK, LOOK, ROOT, watched_all

JOB = """
    import gc, os, sys, time
    import torch
    from torch import nn
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(0, 2, (256,)))
    if __name__ == "__main__":
        for _ in range(500):
            for images, labels in torch.utils.data.DataLoader(data, batch_size=64):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.005)
"""


@pytest.fixture
def job(tmp_path):
    def write(more: str = "") -> list[str]:
        path = tmp_path / "job.py"
        path.write_text(textwrap.dedent(JOB) + more)
        return [sys.executable, str(path)]

    return write


def lever(name: str, **values) -> Lever:
    return Lever(name, name, f"write {name}", values=values)


EXACT = {
    "tf32": "TF32",
    "benchmark": "cudnn.benchmark",
    "loader": "num_workers=2",
    "collector": "gc.freeze()",
    "threads": "1 threads",
    "affinity": "1 cores",
}
NEAR = {
    "autocast": "bfloat16 around Sequential",
    "channels_last": "channels_last for Sequential",
    "fused": "fused=True for AdamW",
}
VALUES = {"workers": 2, "threads": 1, "near": [0]}
WRITE = {
    'torch.set_float32_matmul_precision("high")',
    "DataLoader(..., num_workers=2, persistent_workers=True, prefetch_factor=4) (job.py:12)",
    'with torch.autocast("cpu", torch.bfloat16): around the model and the loss (job.py:13)',
    "torch.optim.AdamW(..., fused=True) (job.py:8)",
    "torch.optim.AdamW(..., foreach=True) (job.py:8)",
}


@pytest.mark.slow
def test_levers_are_applied_and_the_losses_stay_near(tmp_path, job):
    """Several at once. Those that only move or hide work leave each loss as it was, bit for bit."""
    plain = Rung(())
    trying._run(plain, job(), LOOK, tmp_path, 600)
    assert not plain.why_not
    said = []
    for notes in (EXACT, NEAR, {"foreach": "foreach=True for AdamW"}):
        pulled = Rung(tuple(lever(name, **VALUES) for name in notes))
        trying._run(pulled, job(), LOOK, tmp_path, 600)
        assert not pulled.why_not
        assert all(note in " ".join(pulled.notes) for note in notes.values())
        said += pulled.to_write
        assert len(plain.losses) == len(pulled.losses) >= 10
        assert trying._apart(plain.losses, pulled.losses) < trying.ROUNDING
        assert notes is not EXACT or plain.losses == pulled.losses
    assert {line for line in said if not line.startswith("write ")} == WRITE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compile", "compile_graphs"])
def test_the_model_is_compiled(tmp_path, job, name):
    rung = Rung((lever(name),))
    trying._run(rung, job(), LOOK, tmp_path, 300)
    assert not rung.why_not
    assert "torch.compile of Sequential" in " ".join(rung.notes)


def test_what_was_left_switched_on_is_found(tmp_path, job):
    rung = Rung(tuple(each for each in trying.levers(2) if each.name == "no_debugging"))
    trying._run(rung, job(more="\n").copy(), LOOK, tmp_path, 600)
    assert rung.why_not == "none was switched on"
    path = tmp_path / "job.py"
    path.write_text(
        path.read_text().replace(
            "torch.manual_seed(0)", "torch.manual_seed(0); torch.autograd.set_detect_anomaly(True)"
        )
    )
    rung = Rung(rung.levers)
    trying._run(rung, [sys.executable, str(path)], LOOK, tmp_path, 600)
    assert rung.notes == ["anomaly detection was on"]
    assert rung.to_write == ["no anomaly detection"]


def test_levers_that_have_nothing_to_do_say_why(tmp_path, job):
    command = job()
    path = Path(command[1])
    before = """torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
new = torch.optim.AdamW
torch.optim.AdamW = lambda p, lr: new(p, lr, foreach=True)"""
    path.write_text(path.read_text().replace("torch.manual_seed(0)", before))
    rung = Rung(tuple(each for each in trying.levers(2) if each.name in ("tf32", "benchmark", "foreach")))
    trying._run(rung, command, LOOK, tmp_path, 600)
    assert set(rung.why_not.split("; ")) == {"the script sets it itself", "AdamW has foreach=True already"}


PLAIN_JOB = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.compile(nn.Linear(8, 1), backend="eager", fullgraph=True)
    class Own(torch.optim.Optimizer):
        def __init__(self): super().__init__(list(model.parameters()), {})
        def step(self):
            with torch.no_grad():
                for p in self.param_groups[0]["params"]: p -= 0.01 * p.grad
    optimizer = Own()
    for _ in range(80):
        loss = (model(torch.randn(4, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
NO_USE = {
    "no_debugging": "none was switched on",
    "loader": "no DataLoader of torch.utils.data was made",
    "channels_last": "OptimizedModule has no Conv2d",
    "attention": trying.NO_ATTENTION,
    "fused": trying.NO_OPTION,
    "foreach": trying.NO_OPTION,
}


@pytest.mark.slow
def test_levers_that_have_nothing_to_do_are_known_from_the_job_as_it_is(tmp_path, job):
    """They are asked in its first run, which changes nothing of it, and none of them costs a run."""
    path = tmp_path / "plain.py"
    path.write_text(textwrap.dedent(PLAIN_JOB))
    plain, chosen, first = [sys.executable, str(path)], trying.levers(2), Rung(())
    names = [each.name for each in chosen]
    asked = trying._run(first, plain, LOOK, tmp_path, 600, names)
    found = {each.name: trying._no_use(each, asked) for each in chosen}
    assert {name: found[name] for name in NO_USE} == NO_USE
    assert "is compiled already" in found["compile"]
    path.write_text(path.read_text().replace("torch.compile(nn.Linear(8, 1), ", "nn.Linear(8, 1); model.compile("))
    asked = trying._run(Rung(()), plain, LOOK, tmp_path, 600, names)
    assert not trying._no_use(next(each for each in chosen if each.name == "autocast"), asked), "it can't be known"
    only = [each for each in chosen if each.name in NO_USE or each.gpu]
    tried = try_levers(plain, only, budget_s=600, options=LOOK, cwd=tmp_path)
    assert tried.runs == 2 and tried.baseline.losses == first.losses
    assert {rung.why_not for rung in tried.alone if rung.levers[0].gpu} == {trying.NO_GPU}
    asked = trying._run(Rung(()), job(), LOOK, tmp_path, 600, names)
    assert {each.name for each in chosen if trying._no_use(each, asked)} == {"no_debugging", "attention"}


ATTENTION = """
    import math, os, sys
    import torch
    from torch import nn
    from torch.nn import functional as F
    torch.manual_seed(0)
    torch.set_num_threads(1)
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.register_buffer("mask", torch.tril(torch.ones(12, 12)).view(1, 1, 12, 12))
        def forward(self, x):
            q, k, v = (part.view(4, 12, 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            if kind == "minGPT":
                scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(8))
                scores = scores.masked_fill(self.mask == 0, float("-inf"))
                y = F.dropout(F.softmax(scores, dim=-1), 0.0, self.training) @ v
            elif kind == "transformers":
                scores = torch.matmul(q, k.transpose(2, 3)) * 8**-0.5 + torch.where(self.mask == 0, -1e9, 0.0)
                weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
                y = torch.matmul(nn.functional.dropout(weights, p=0.0, training=self.training), v)
            elif kind == "einsum":
                scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) / 8**0.5
                y = torch.einsum("b h i j, b h j d -> b h i d", scores.softmax(dim=-1), v)
            elif kind == "in place":
                scores = q @ k.transpose(-2, -1)
                scores /= 8**0.5
                scores.masked_fill_(self.mask == 0, float("-inf"))
                y = scores.softmax(-1) @ v
            elif kind == "weights are used":
                weights = (q @ k.transpose(-2, -1)).softmax(-1)
                y = weights @ v + weights.mean()
            else:
                y = torch.relu(q @ k.transpose(-2, -1)) @ v
            return self.out(y.transpose(1, 2).reshape(4, 12, 32))
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
    kind = KIND
    for _ in range(60):
        x = torch.randn(4, 12, 32)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
FUSED = ("minGPT", "transformers", "einsum", "weights are used")


@pytest.mark.slow
def test_attention_that_is_written_out_is_fused_or_left(tmp_path):
    """Losses as near as rounding; where it can't be fused, bit for bit."""
    bodies = {kind: TRAIN.replace("KIND", repr(kind)) for kind in (*FUSED, "in place", "no softmax")}
    found = []
    for name, levers in (("plain", []), ("pulled", ["attention"])):
        (tmp_path / name).mkdir()
        options = {**LOOK, "losses": 20, "levers": levers}
        found.append(watched_all(tmp_path / name, bodies, ATTENTION, options))
    for kind in bodies:
        plain, pulled = (each[kind] for each in found)
        assert bool(pulled["notes"]) == (kind in FUSED), kind
        assert len(plain["losses"]) == 20
        assert trying._apart(plain["losses"], pulled["losses"]) < 1e-5
        if kind not in FUSED:
            assert plain["losses"] == pulled["losses"]


def test_one_run_of_a_lever_is_judged_by_how_much_runs_differ():
    """Slower by 5% where runs differ by 10%: cannot tell; by 60%: slower. Never where nothing ran twice."""
    base, few = Rung((), [0.100, 0.110, 0.098], [0.0] * 3), Rung((), [0.1], [0.0])
    near, far = Rung((lever("tf32"),), [0.108], [0.0]), Rung((lever("fused"),), [0.16], [0.0])
    found = Tried(base, [near, far])
    trying._judge(found, near, base)
    trying._judge(found, far, base)
    assert (near.said, far.said) == (decision.UNKNOWN, decision.SLOWER)
    assert "of one run" in text(found)
    rows = text(found).splitlines()[3:5]
    assert [row.split()[0] for row in rows] == ["tf32", "fused"], "a row a lever, and no empty line between"
    trying._judge(Tried(few, [near, far]), far, few)
    assert far.said == decision.UNKNOWN
    assert "one run" in text(found)


def test_levers_that_were_not_measured_are_not_said_to_gain_nothing():
    base, cut = Rung((), [0.1] * 2, [0.0] * 2), Rung((lever("tf32"),), why_not=trying.SPENT)
    assert "No lever was measured" in text(Tried(base, [cut]))
    spent = text(Tried(base, [cut] * 3, seconds=100, complete=False, longest_s=50))
    assert "A run took up to 50 s here, so give it about --budget 8m." in " ".join(spent.split())
    empty = page(["python", "train.py"], Tried(base, [cut]))
    assert "No lever was measured" in empty and not re.search("<img|Each lever alone", empty)
    same = Rung((lever("fused"),), [0.1] * 2, [0.0] * 2)
    found = Tried(base, [cut, same])
    trying._judge(found, same, base)
    assert "No lever is certain to make it faster" in text(found) and "No lever was measured" not in text(found)


def test_the_gain_of_all_of_them_is_that_of_their_rows():
    base, low = Rung((), [0.1, 0.3], [0.0] * 2), Rung((lever("tf32"),), [0.05] * 2, [0.0] * 2)
    high = Rung((lever("tf32"), lever("fused")), [0.02, 0.03], [0.0] * 2)
    found = Tried(base, [low], [low])
    trying._judge(found, low, base)
    assert "as it is: 173.2 ms" in text(found), "which is 3.46 times 50"
    assert "3.46x" in text(found) and "tf32 makes it 3.46 times as fast" in text(found)
    found.ladder.append(high)
    trying._judge(found, high, low)
    assert "2.04x" in text(found) and "all of them together make it 7.07 times as fast" in text(found)


DRAWN = """
    import torch
    pulled = os.environ.get("EARLY", "") + os.environ.get("LATE", "")
    run = len([name for name in os.listdir() if name.startswith(f"run{pulled}-")])
    open(f"run{pulled}-{run}", "w").close()
    step_ms = DRAWN[pulled][min(run, len(DRAWN[pulled]) - 1)]
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        clock[0] += step_ms / 1000
        time.sleep(0.002)
"""
DRAWS = {
    # a gain of 1.03 in the first run, and of 1.21 in the later ones
    "one": ({"": [16, 17], "L": [15.6, 14]}, ["late"]),
    "on top": ({"": [16, 17], "E": [5], "L": [15.6, 14], "EL": [4]}, ["early", "early + late"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_what_is_found_to_pay_at_last_stands_on_the_ladder(tmp_path, monkeypatch, name):
    """A lever whose first run says nothing, and whose later ones do: alone, or on top of what was there."""
    # no program takes of a clock that is drawn
    monkeypatch.setattr(running, "lost_since", lambda *_, **__: lambda: 0.0)
    drawn, ladder = DRAWS[name]
    path = tmp_path / "job.py"
    path.write_text(textwrap.dedent(CLOCK + DRAWN).replace("DRAWN", repr(drawn)))
    early, late = (
        Lever("collector", word, f"write {word}", environment={word.upper(): word[0].upper()})
        for word in ("early", "late")
    )
    late = dataclasses.replace(late, name="threads", values={"threads": 1})
    chosen = [late] if name == "one" else [late, early]
    found = try_levers(
        [sys.executable, str(path)], chosen, budget_s=600, options=LOOK, place=lambda: contextlib.nullcontext(tmp_path)
    )
    assert [rung.title for rung in found.ladder] == ladder
    assert {rung.title: rung.said for rung in found.alone}["late"] == decision.FASTER
    assert found.comparable
    said = text(found)
    assert ("late makes it" if name == "one" else "all of them together make it") in said
    assert [f"- write {word}" in said for word in ("early", "late")] == [name == "on top", True]
    assert draw(found.baseline, [rung for rung in found.alone if rung.step_s]).axes
    assert len(list(tmp_path.glob("runEL-*"))) == (0 if name == "one" else 2)


def test_what_other_programs_took_is_no_gain():
    """The job as it is on a busy machine, and the lever on a quiet one: it seemed twice as fast, for others had half of the time."""
    base = Rung((), [0.2, 0.21, 0.2], lost=[0.5, 0.5, 0.5])
    quiet, double = (
        Rung((lever(name),), step_s, lost=[0.0] * 3)
        for name, step_s in (("tf32", [0.1, 0.1, 0.11]), ("fused", [0.02, 0.02, 0.021]))
    )
    found = Tried(base, [quiet, double])
    for rung in found.alone:
        trying._judge(found, rung, base)
    assert (quiet.said, double.said) == (decision.UNKNOWN, decision.FASTER)
    assert quiet.gain.factor > 1.8 and quiet.gain.lower < 1
    assert "Other programs used the processor for up to 50% of a run's time" in text(found)


def test_levers_that_change_nothing_seldom_seem_to():
    """A dozen on a machine whose runs differ by 5%: with the interval of each alone one of them was "faster" in four jobs of ten."""
    draw, wrong = random.Random(0), 0
    for _ in range(100):
        base, *rungs = (
            Rung(some, [draw.lognormvariate(0, 0.05) for _ in range(3)], lost=[0.0] * 3)
            for some in [()] + [(lever("tf32"),)] * 12
        )
        found = Tried(base, rungs)
        for rung in rungs:
            trying._judge(found, rung, base)
        wrong += any(rung.said == decision.FASTER for rung in rungs)
    assert wrong <= 5


def test_a_lever_that_breaks_the_job_says_why(tmp_path, job):
    more = "    if os.environ.get('BREAK'): raise ValueError('no such thing')\n"
    broken = Lever("tf32", "tf32", "", environment={"BREAK": "1"})
    command = job(more=more.replace("    if", "if"))
    path = Path(command[1])
    path.write_text(
        path.read_text().replace(
            "torch.manual_seed(0)",
            "torch.manual_seed(0)\nif os.environ.get('BREAK'): raise ValueError('no such thing')",
        )
    )
    rung = Rung((broken,))
    trying._run(rung, command, LOOK, tmp_path, 600)
    assert rung.why_not == "ValueError: no such thing"


def test_a_job_without_steps_is_an_error_in_one_line(tmp_path):
    path = tmp_path / "none.py"
    path.write_text("import torch")
    with pytest.raises(UserError, match="no step of an optimizer was seen"):
        try_levers([sys.executable, str(path)], [lever("tf32")], budget_s=60, options=LOOK)


@pytest.mark.slow
def test_nothing_of_the_user_s_is_changed_in_a_copy(tmp_path, job):
    command = job(
        more="    torch.save(model.state_dict(), 'model.pt'); open('log.txt', 'a').write('x')\n".replace("    ", "", 1)
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = ["--only", "collector", "--budget", "60s", "--at-step", "6", "--in-copy", "--json", "-"]
    line = [sys.executable, "-m", "grader", "try", *options, "--", sys.executable, "job.py"]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert json.loads(done.stdout)["baseline"]["step_s"]
    assert command


def test_each_run_has_a_copy_of_its_own(tmp_path, job, monkeypatch):
    """A job that goes on from what another run left, or refuses to begin beside it."""
    begin = "torch.manual_seed(0); open('log.txt', 'x').close()"
    path = Path(job()[1])
    path.write_text(path.read_text().replace("torch.manual_seed(0)", begin))
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    rung = Rung(())
    for _ in range(2):
        with copy_of_here() as folder:
            trying._run(rung, [sys.executable, "job.py"], LOOK, folder, 600)
    assert len(rung.step_s) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"job.py", "pipe"}


def test_what_the_budget_cuts_short_says_so_and_loses_nothing(tmp_path, job):
    fresh, known = Rung((lever("tf32"),)), Rung((lever("tf32"),), [0.1], [0.0], notes=["TF32"])
    for rung in (fresh, known):
        trying._run(rung, job(), LOOK, tmp_path, 0.2)
    assert fresh.why_not == trying.SPENT
    assert known.why_not == "" and known.step_s == [0.1]
    known.lost = [0.5]
    assert "intervals" not in text(Tried(known, [fresh])), "there are none"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_and_all_levers(tmp_path, job, number):
    more = "open(f'started-{os.getpid()}', 'w').close(); torch.manual_seed(0)"
    command = job()
    path = Path(command[1])
    path.write_text(path.read_text().replace("torch.manual_seed(0)", more))
    line = [sys.executable, "-m", "grader.frontends.cli", "try", "--", *command]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.Popen(line, cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (started := list(tmp_path.glob("started-*"))):
        assert done.poll() is None
        time.sleep(0.05)
    done.send_signal(number)
    _, said = done.communicate(timeout=600)
    assert done.returncode == 130
    assert b"stopped" in said and b"Traceback" not in said
    assert not psutil.pid_exists(int(started[0].name.partition("-")[2]))
    assert len(list(tmp_path.glob("started-*"))) == 1


def test_each_run_gets_the_standard_input(tmp_path):
    read, write = os.pipe()
    os.write(write, b"0.5\n")
    os.close(write)
    kept = os.dup(0)
    os.dup2(read, 0)
    trying.given_input.cache_clear()
    try:
        path = tmp_path / "job.py"
        path.write_text("import sys; sys.exit(sys.stdin.read())")
        for _ in range(2):
            rung = Rung(())
            trying._run(rung, [sys.executable, str(path)], LOOK, tmp_path, 60)
            assert rung.why_not.endswith(": 0.5")
    finally:
        os.dup2(kept, 0)
        trying.given_input.cache_clear()


def test_a_name_of_no_lever_is_answered_with_those_there_are():
    command = [sys.executable, "-m", "grader", "try", "--only", "nope,loader", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--only nope names no lever. The levers here: no_debugging, loader" in done.stderr


def test_losses_that_part_are_marked():
    base = Rung((), [0.1, 0.1], [0.0] * 2, losses=[1.0, 0.9, 0.8])
    same, other = (
        Rung((lever("tf32"),), [0.05, 0.05], [0.0] * 2, losses=[1.001, 0.9, 0.8]),
        Rung((lever("fused"),), [0.05, 0.05], [0.0] * 2, losses=[1.5, 1.4, 1.4]),
    )
    found = Tried(base, [same, other])
    for rung in found.alone:
        trying._judge(found, rung, base)
    said = text(found)
    assert said.count("more than rounding") == 1
    assert same.said == other.said == decision.FASTER
