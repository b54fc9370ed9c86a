"""Loops of one's own behind the contract: two of them compared by the grader's blocks, and what is said about it."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grader import machine
from grader.errors import UserError
from grader.frontends import cli
from grader.frontends.compare import agreement, said
from grader.measure import decision
from grader.measure.blocks import Plan
from grader.measure.decision import EQUAL, FASTER, SAME, SLOWER, UNKNOWN, Gain, Pair, direction
from grader.own.compare import FULL, QUICK, Comparison, compare, decide
from grader.result import FAIL, PASS
from grader.sandbox.probe import confinement

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

from grader.workloads.job import Batches, Job

torch.set_num_threads(1)


def make_job(seed, device):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 8, generator=draw), torch.randint(4, (256,), generator=draw)
    torch.manual_seed(seed)
    return Job(model=nn.Linear(8, 4), dataset=TensorDataset(x, y), batches=Batches(256, 16, seed), lr=1e-3, device=device)
"""
BEFORE = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=job.lr)
    for x, y in DataLoader(job.dataset, batch_sampler=job.batches):
        loss = F.cross_entropy(job.model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
"""
AFTER = BEFORE.replace(
    "for x, y in DataLoader(job.dataset, batch_sampler=job.batches):",
    "for chosen in job.batches:\n        x, y = job.dataset[chosen]",
)
TINY = Plan(block_s=0.05, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)


@pytest.fixture
def files(tmp_path):
    """Writes job.py, before.py and after.py; `compared` measures them."""

    class Files:
        folder = tmp_path

        def write(self, job=JOB, before=BEFORE, after=AFTER):
            for name, text in (("job", job), ("before", before), ("after", after)):
                (tmp_path / f"{name}.py").write_text(text)
            return self

        def compared(self, **options):
            return compare(*(tmp_path / f"{name}.py" for name in ("before", "after", "job")), **({"device": "cpu", "plan": TINY} | options))  # fmt: skip

    return Files().write()


# ---------------------------------------------------------------- the decision


@given(st.floats(0.2, 5), st.floats(1, 3))
@example(1 / SAME, 1.0)  # slower by what still counts as equal; turned round, the last bit decides
def test_direction_follows_the_interval(factor, half):
    low, high = factor / half, factor * half
    said = direction(Gain(factor, low, high, 0.01, 4))
    assert (said == EQUAL) == (low >= 1 / SAME and high <= SAME)
    if said == UNKNOWN:
        assert low <= 1 <= high
    elif said != EQUAL:
        assert (said == FASTER) == (factor > 1)
    if not any(math.isclose(end, mark) for end in (low, high) for mark in (1 / SAME, 1, SAME)):  # 1 / end is rounded
        turned = {FASTER: SLOWER, SLOWER: FASTER}.get(said, said)
        assert direction(Gain(1 / factor, 1 / high, 1 / low, 0.01, 4)) == turned


def pairs(*times: tuple[float, float], lost: float = 0.0) -> list[Pair]:
    return [Pair(before, after, lost, 0.0) for before, after in times]


@pytest.mark.parametrize(
    "measured, says",
    [
        (pairs((2.0, 1.0), (2.02, 1.0), (2.0, 1.01)), FASTER),
        (pairs((1.0, 2.0), (1.0, 2.02), (1.01, 2.0)), SLOWER),
        (pairs((1.0, 1.0), (1.001, 1.0), (1.0, 1.001)), EQUAL),
        (pairs((1.0, 1.4), (1.5, 1.0), (1.0, 1.0)), UNKNOWN),
        # the loop before was slowed in all starts but one: it may be as fast as the other
        (pairs((1.0, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0)), UNKNOWN),
        # the loop after was fast in all starts but one
        (pairs((1.3, 1.3), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (1.3, 1.0)), UNKNOWN),
        (pairs((1.3, 1.3), (1.0, 1.3), (1.0, 1.3), (1.0, 1.3), (1.0, 1.3), (1.0, 1.3), (1.0, 1.3)), UNKNOWN),
    ],
)
def test_what_pairs_say(measured, says):
    found = decide(measured, 0.005)
    assert (direction(found.gain) if found.settled else UNKNOWN) == says


def verdicts(before, after, times: int = 400) -> list[str]:
    """What comparisons say of two loops whose starts take as long as these draw."""
    draw, said = np.random.default_rng(0), []
    for _ in range(times):
        starts: list[Pair] = []
        found = None
        while len(starts) < FULL.max_pairs and not (found and found.settled):
            starts.append(Pair(float(before(draw)), float(after(draw))))
            found = decide(starts, 0.01, FULL.min_pairs)
        said.append(direction(found.gain) if found.settled else UNKNOWN)
    return said


def steady(draw) -> float:
    return np.exp(draw.normal(0, 0.005))


@pytest.mark.parametrize("sigma", [0.03, 0.05, 0.1])
def test_luck_of_one_side_is_no_verdict(sigma):
    """No start is left out because one loop was slow in it: that is what must be known."""
    for loops in (
        (lambda draw: np.exp(draw.normal(0, sigma)), steady),
        (steady, lambda draw: np.exp(draw.normal(0, sigma))),
    ):
        said = verdicts(*loops)
        assert said.count(FASTER) + said.count(SLOWER) < 0.04 * len(said)


def test_a_loop_that_is_fast_by_luck_at_its_birth_is_not_as_fast():
    said = verdicts(lambda draw: 1.5 ** draw.integers(2), steady)
    assert said.count(EQUAL) < 0.1 * len(said)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=2, max_size=10))
def test_settled_says_something(times):
    found = decide(pairs(*times), 0.01)
    assert not found.settled or direction(found.gain) != UNKNOWN
    assert decide(pairs(*times)[:1], 0.01) is None


# ---------------------------------------------------------------- for real


@pytest.mark.slow
def test_two_loops_that_train_the_same(files):
    told = []
    found = files.compared(progress=lambda share, what: told.append((share, what)))
    shares, progress = zip(*told, strict=True)
    assert list(shares) == sorted(shares) and 0 <= shares[0] < shares[-1] == 1
    assert not found.message and found.said in (FASTER, SLOWER, EQUAL, UNKNOWN)
    assert found.before_s > 0 and found.after_s > 0
    assert found.gain.factor == pytest.approx(found.before_s / found.after_s, rel=0.5)
    assert found.agreement.status == PASS and "Losses and weights agree" in agreement(found)
    assert found.traces.keys() == {"before", "after"}
    assert {name: a.step_ns / 1e9 for name, a in found.analyses().items()} == pytest.approx(found.traced_s)
    # not the one that closes the recording, in which the harness waits
    assert {a.metrics.steps for a in found.analyses().values()} == {TINY.profile_steps}
    found.traced_s = {}  # as where the process died while it was profiled
    assert found.analyses().keys() == {"before", "after"}
    assert found.starts == 2 and "both started 2 times" in " ".join(said(found, ["before.py", "after.py"]))
    assert (
        "timing pair 2" in progress
        and "starting both loops again, 2" in progress
        and any("before.py" in what for what in progress)
    )
    assert not any("submission" in what or "starter" in what for what in progress)


@pytest.mark.slow
def test_modules_of_ones_own_come_from_a_folder_that_is_named(files):
    mine = files.folder / "mine"
    mine.mkdir()
    (mine / "helper_of_mine.py").write_text("RATE = 1.0\n")
    own = "from helper_of_mine import RATE\n"
    files.write(job=JOB.replace("import torch\n", f"import torch\n{own}", 1), after=own + AFTER)
    assert "No module named 'helper_of_mine'" in files.compared().message
    found = files.compared(readable=(mine,))
    assert not found.message and found.agreement.status == PASS


@pytest.mark.slow
def test_a_loop_may_choose_its_cores(files):
    chosen = BEFORE.replace(
        "    optimizer =", "    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n    optimizer ="
    )
    found = files.write(before="import os\n" + chosen).compared()
    assert not found.message and found.before_s > 0


FREED = """
import ctypes
import resource

import torch

from grader.own.job import _keep_memory

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages (PR_SET_THP_DISABLE): with them faults are few
_keep_memory()


def step():
    pieces = [torch.ones(5 << 18) for _ in range(4)]  # of 5 MB


for _ in range(5):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


@pytest.mark.slow
def test_what_is_freed_stays_with_the_process():
    """Else whether it does is a process's luck, and makes a step half as long again: of eight processes three had it."""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
        assert int(done.stdout) < 100


def test_one_start_is_no_verdict(files):
    """Two processes that do the same differ; how much, only others can tell."""
    found = files.compared(plan=replace(TINY, min_pairs=1, max_pairs=1))
    assert found.starts == 1 and found.gain is None and found.before_s and found.said == UNKNOWN


@pytest.mark.slow
def test_what_fails_at_a_later_start(files):
    """Is told, and nothing else of the gain: two starts would be too few."""
    mood = files.folder / "mood.txt"
    mood.write_text("well")
    files.write(
        after=AFTER.replace("    optimizer =", f"    assert open({str(mood)!r}).read() == 'well'\n    optimizer =")
    )

    def progress(share, what):
        if what == "starting both loops again, 3":
            mood.write_text("ill")

    found = files.compared(plan=replace(TINY, min_pairs=3, max_pairs=3), readable=(mood,), progress=progress)
    assert found.message.startswith("after.py raised AssertionError") and "(after.py, line 8)" in found.message
    assert not found.said and found.starts == 0
    assert found.gain is None and found.agreement.status == PASS


@pytest.mark.slow
def test_a_machine_that_is_busy_at_a_later_start(files, monkeypatch):
    """Memory runs short when both loops are started for the third time: what was measured until then stands."""

    def progress(share, what):
        if what == "starting both loops again, 3":
            monkeypatch.setattr(machine, "free_memory", lambda: 1e6)

    found = files.compared(plan=replace(TINY, min_pairs=2, max_pairs=9), progress=progress)
    if found.starts == 2 and found.warnings:  # else it was settled by then
        assert any("do not count: only 0.0 GB of memory are left" in warning for warning in found.warnings)
    assert found.said and found.gain and not found.message
    monkeypatch.setattr(machine, "free_memory", lambda: 1e12)
    found = files.compared(plan=replace(TINY, min_pairs=4, max_pairs=9), progress=progress)
    assert not found.said and found.gain is None and "Not measured: only 0.0 GB" in found.message


@pytest.mark.slow
def test_what_neither_loop_trains_may_be_what_it_was(files):
    """A norm's ones lie on the grid of bfloat16, and nobody has rounded them."""
    job = JOB.replace("nn.Linear(8, 4)", "nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 4))")
    frozen = "    job.model[1].requires_grad_(False)\n    optimizer ="
    loops = {"before": BEFORE.replace("    optimizer =", frozen), "after": AFTER.replace("    optimizer =", frozen)}
    found = files.write(job=job, **loops).compared()
    assert not found.message and found.agreement.status == PASS, found.agreement


@pytest.mark.slow
def test_a_loop_that_trains_another_model_is_timed_and_told_so(files):
    files.write(after=AFTER.replace("lr=job.lr", "lr=2 * job.lr"))
    found = files.compared()
    assert found.agreement.status == FAIL and found.gain is not None
    assert "don't agree" in agreement(found) and "starter" not in agreement(found)
    assert said(found, ["before.py", "after.py"])[0] == agreement(found), "a gain by another training is not the news"


@pytest.mark.parametrize(
    "change, usable, says",
    [
        (
            {"after": AFTER.replace("job.model(x)", "job.modle(x)")},
            True,
            ("after.py raised AttributeError", "(after.py, line 11)"),
        ),
        (
            {"before": BEFORE.replace("yield loss", "return loss")},
            True,
            ("`train(job)` is not a generator", "before.py"),
        ),
        ({"after": AFTER.replace("def train", "def trian")}, False, ("after.py defines no function `train(job)`",)),
        ({"job": JOB.replace("def make_job", "def make_a_job")}, False, ("job.py defines no function make_job",)),
        ({"job": JOB.replace("return Job(", "return dict(")}, False, ("job.py returned dict",)),
        (
            {"job": JOB.replace("manual_seed(seed)", "manuel_seed(seed)")},
            False,
            ("job.py raised AttributeError in line 14: ",),
        ),
        ({"job": JOB.replace("device):", "device:")}, False, ("job.py is no Python: ", "(line 11)")),
        (
            {"after": AFTER.replace("chosen in", "chosen at")},
            False,
            ("after.py raised SyntaxError", "(after.py, line 9)"),
        ),
    ],
)
def test_what_fails_is_said_with_its_place(files, change, usable, says):
    found = files.write(**change).compared()
    assert not found.said and found.gain is None and found.unusable != usable
    assert all(words in found.message for words in says), found.message
    assert "submission" not in found.message + found.output and ("after" in change or not found.output)


def test_a_data_set_that_fails_is_said_with_both_places(files):
    missing = """

class Missing(list):
    def __getitem__(self, index):
        return {}["x"]
"""
    found = files.write(job=JOB.replace("TensorDataset(x, y)", "Missing()") + missing).compared()
    assert "raised KeyError in its loop: 'x' (job.py, line 20, called from before.py, line 9)." in found.message


@pytest.mark.slow
def test_confined_but_for_what_may_be_read(files):
    if not confinement().files:
        pytest.skip("files cannot be confined here")
    (files.folder / "rate.txt").write_text("0.001")
    own = f"lr=float(open({str(files.folder / 'rate.txt')!r}).read())"
    files.write(after=AFTER.replace("lr=job.lr", own))
    denied = files.compared()
    assert not denied.said and "PermissionError" in denied.message
    allowed = files.compared(readable=(files.folder / "rate.txt",))
    assert allowed.agreement.status == PASS, allowed.message


@pytest.mark.parametrize(
    "change, status",
    [(("def train", "def trian"), 2), (("chosen in", "chosen at"), 2), (("job.model(x)", "job.modle(x)"), 1)],
)
def test_a_file_that_does_not_load_is_none_that_can_be_used(files, capsys, change, status):
    files.write(after=AFTER.replace(*change))
    paths = [str(files.folder / name) for name in ("before.py", "after.py")]
    assert cli.main(["compare", *paths, "--device", "cpu"]) == status
    assert "after.py" in capsys.readouterr().out


@pytest.mark.parametrize("plan, advised", [(TINY, True), (QUICK, True), (FULL, False)])
def test_more_starts_are_advised_where_there_can_be_more(plan, advised):
    found = Comparison(said=UNKNOWN, starts=8, gain=Gain(1.02, 0.9, 1.1, 0.05, 8), plan=plan)
    lines = " ".join(said(found, ["before.py", "after.py"]))
    assert ("without --quick" in lines) == advised
    assert ("The interval is 22% wide, so it can't show a gain below 1.11x." in lines) != advised
    assert "when nothing else" in lines


def test_files_that_cannot_be_used(files, capsys):
    before, after = files.folder / "before.py", files.folder / "after.py"
    for arguments, says in (
        ([before, files.folder / "gone.py"], "gone.py cannot be read"),
        ([".", after], ". is a folder"),
        ([before, files.folder], "is a folder"),
        ([before, after, "--job", files.folder], "cannot be read"),
        ([before, after, "--job", files.folder / "gone"], "gone is missing. Its make_job(seed, device)"),
        ([before, after, "--read", files.folder / "gone"], "gone is not there"),
        ([before, after, "--html", files.folder / "no" / "x.html"], "cannot be written"),
    ):
        assert cli.main(["compare", *map(str, arguments), "--device", "cpu"]) == 2
        assert says in capsys.readouterr().err
    (files.folder / "job.txt").write_text(JOB)
    found = compare(before, after, files.folder / "job.txt", device="cpu")
    assert found.message == "job.txt is no Python file: its name does not end in .py."
    (files.folder / "binary.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        compare(before, files.folder / "binary.py", files.folder / "job.py", device="cpu")


@pytest.mark.slow
def test_on_the_command_line(files, capsys):
    page = files.folder / "page.html"
    arguments = ["before.py", "after.py"]
    arguments = [str(files.folder / name) for name in arguments]
    assert cli.main(["compare", *arguments, "--device", "cpu", "--quick", "--html", str(page), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["agrees"] and data["before"] == "before.py" and data["said"]
    low, high = data["gain"]["lower"], data["gain"]["upper"]
    assert low < data["gain"]["factor"] < high and math.isfinite(high)
    assert data["diagnosis"]["other"] and data["versions"]["torch"]
    text = page.read_text()
    assert "before.py and after.py" in text and "What changed" in text and "<script" not in text
    assert cli.main(["compare", *arguments[:1], *arguments[:1], "--device", "cpu", "--quick"]) == 0
    assert "Losses and weights agree" in capsys.readouterr().out


def test_words_for_every_verdict():
    from grader.frontends.compare import VERDICTS

    assert set(VERDICTS) == {decision.FASTER, decision.SLOWER, decision.EQUAL, decision.UNKNOWN}
