"""A few of the corpus of adversaries on a lab that takes a second. All of them, on the labs themselves:
`python -m tests.adversaries`."""

import ast
import copy
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from helpers import LAB, eventually, first, grade_cells, measured_score, slow_starter, submission, warmed_up

from grader import labs
from grader.checks import plausible, throughput
from grader.checks.parity import Replay
from grader.grade import NOTHING_KEPT
from grader.grading.arms import open_arm, set_up
from grader.grading.evidence import Checkpoint, Findings, Race
from grader.grading.first_steps import starter_alone
from grader.grading.race import Policy, decides, exhaust_stockpile, policy_of, starter_again, yardstick
from grader.grading.replay import compared_part
from grader.labs.lab import Lab
from grader.measure import blocks
from grader.measure.blocks import Arm, Plan, Turn
from grader.measure.decision import Pair
from grader.result import silent
from tests import adversaries
from tests.adversaries import _run

SHORT = Plan(block_s=0.2, min_pairs=3, max_pairs=3, profile_steps=2)
CORPUS = {a.name: a for a in adversaries.corpus()}
MORE = ("takes_more_threads", "takes_more_processes")
FEW = [
    "constant_loss",
    "detects_that_it_is_graded",
    "forges_replies",
    "forges_the_trace",
    "function_mode_left_on",
    "initial_weights",
    "lazy_loss",
    "merged_steps",
    "patched_clocks",
    "patches_the_harness",
    "repeats_a_batch",
    "skipped_steps_later",
    "walks_gc",
    "writes_calibration",
    "forged_in_the_block",  # a minute where its gain has to be doubted
]


def test_form():
    assert len(CORPUS) >= 40
    assert {a.category for a in CORPUS.values()} == set(adversaries.CATEGORIES)
    for each in CORPUS.values():
        assert each.says.endswith("."), each.name
        assert set(each.labs) <= {*labs.loops(), *adversaries.OTHERS} and set(each.devices) <= {"cpu", "cuda"}
        assert each.control in adversaries.CONTROLS
        assert bool(each.source) != bool(each.tamper), f"{each.name}: it is a submission or a notebook"


@pytest.mark.parametrize("lab", [*labs.loops(), *adversaries.OTHERS])
def test_each_is_python_and_no_starter(lab):
    """A typing mistake would be rejected like a cheat, and prove nothing."""
    for each in CORPUS.values():
        if each.source and lab in each.labs:
            ast.parse(each.source(lab))
            assert each.source(lab) != labs.get(lab).starter, each.name


@pytest.mark.parametrize("lab", adversaries.LABS)
def test_each_notebook_is_tampered_with(lab):
    released = nbformat.read(f"{labs.__path__[0]}/../../labs/{lab}/{lab}.ipynb", as_version=4)
    for each in CORPUS.values():
        if each.tamper and lab in each.labs:
            notebook = copy.deepcopy(released)
            each.tamper(notebook)
            assert notebook != released, each.name


def test_a_profit_counts_when_it_is_had_again(tmp_path, monkeypatch):
    lab, each = labs.get("2a_workers"), CORPUS["patched_clocks"]
    points = iter([20.0, 1.0])
    monkeypatch.setattr(_run, "adversary", lambda *_: {"points": next(points), "reason": ""})
    monkeypatch.setattr(_run, "control", lambda *_: {"points": 0.0, "reason": ""})
    _run.compared(tmp_path, lab, "cpu", each)
    assert _run.rows(tmp_path, [each], lab, "cpu")[-1].verdict == "no profit"
    points = iter([20.0] * 9)
    (tmp_path / "patched_clocks.json").unlink()
    _run.compared(tmp_path, lab, "cpu", each)
    _run.compared(tmp_path, lab, "cpu", each)  # what is there is not measured again
    assert len(list(points)) == 9 - _run.TRIES
    assert _run.rows(tmp_path, [each], lab, "cpu")[-1].verdict == "PROFITS"


HONEST = {"points": 30.0, "gain": 2.0, "certain": 1.7, "share": 0.5}


@pytest.mark.parametrize(
    ("found", "profit"),
    [
        ({"points": 31.0, "gain": 2.0, "certain": 1.7, "share": 0.5}, False),
        ({"points": 42.0, "gain": 2.0, "certain": 1.95, "share": 0.7}, False),  # as fast, timed with less noise
        ({"points": 42.0, "gain": 2.3, "certain": 2.1, "share": 0.7}, True),  # certainly faster
        ({"points": 45.0, "gain": 2.0, "certain": 1.95, "share": 0.7}, True),  # and points from elsewhere
        ({"points": 45.0, "gain": 2.0, "certain": 1.7, "share": 0.5}, True),
        ({"points": 45.0}, True),  # marks of a gradebook
    ],
)
def test_a_profit_is_more_than_less_noise(found, profit):
    assert _run.profits(found, HONEST) == profit
    assert _run.profits(found, {"points": 30.0}) == (found["points"] > 32)


NOISY = 0.2  # a pair's, on a busy machine: from three such pairs a gain below 1.4 earns nothing; the tricks' would be 2 and more


def lab(**form) -> Lab:
    return replace(LAB, forms={"cpu": replace(LAB.forms["cpu"], **form)})


@pytest.mark.parametrize("name", first(FEW, 7))
def test_no_profit(name, monkeypatch, nothing_left):
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)
    result = grade_cells(CORPUS[name].source(LAB.name), lab=lab(noise=NOISY), plan=SHORT)
    assert measured_score(result) <= _run.NOISE, _run.reason(result)


STORE = """
import torch
{steps}

def train(job):
    import time
    store, loop, began = [], steps(job), time.monotonic()
    while time.monotonic() - began < 4:
        store.append((next(loop).clone(), {{n: p.detach().clone() for n, p in job.model.named_parameters()}}))
    pace = (time.monotonic() - began) / len(store) / 3
    shown = [None]
    job.weights = lambda: shown[0]
    for loss, shown[0] in store:
        time.sleep(pace)
        yield loss
    job.weights = None
    yield from loop
"""


@pytest.mark.slow
def test_steps_made_before_the_first_earn_nothing(monkeypatch, nothing_left):
    """Each with its weights, so that the training is the same, and at an even pace."""
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)
    steps = LAB.starter.replace("def train(job):", "def steps(job):")
    result = grade_cells(STORE.format(steps=steps), plan=replace(SHORT, use_up_s=1.0))
    check = result.check("throughput")
    assert result.check("parity").status == "PASS", result.check("parity").reason
    assert check.evidence["overstated"] > 1
    assert measured_score(result) <= _run.NOISE


@pytest.mark.parametrize(
    ("untimed_s", "target", "counts"),
    [
        (1.04, 1.27, True),  # 4% of what it ran: a sixth of the points
        (1.04, 30.0, False),  # nothing to speak of where so much earns all
        (0.89, 1.27, False),  # 1.5%: as honest starts differ
    ],
)
def test_a_few_steps_in_store_count_where_little_gain_earns_all(untimed_s, target, counts):
    decide = decides(False, 1.27, LAB.forms["cpu"], Plan(min_pairs=2))
    pairs = (Pair(0.12, 0.1),) * 3
    starter = Arm(None, step_s=0.12, warm_steps=8, untimed_s=0.96, ran_s=7.2, ran_steps=60)  # type: ignore[arg-type]
    submission = Arm(None, step_s=0.1, warm_steps=8, untimed_s=untimed_s, ran_s=6.0, ran_steps=60)  # type: ignore[arg-type]
    policy = Policy("cpu", 1, decide, None, target=target)
    turns = [[Turn(2.0, 20, 0.0)]] * 3
    found = exhaust_stockpile(Race(pairs, decide(pairs)), turns, starter, submission, policy, Plan(use_up_s=0), silent)
    assert found.worked_ahead == counts
    assert not counts or found.decided.certain <= 1.2 / 1.04


TINY = LAB.forms["cpu"].options | {"layers": 1, "batch_size": 2}


COMPILES = """
import os, time, torch, torch._dynamo.utils
{steps}

def train(job):
    torch._dynamo.utils.counters["stats"]["unique_graphs"] += 1
    cache = os.environ["XDG_CACHE_HOME"] + "/compiled"
    if not os.path.exists(cache) or {always}:
        time.sleep(6)
        open(cache, "w").close()
    yield from steps(job)
"""


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
def test_a_loop_that_compiled_is_started_again(always, monkeypatch, nothing_left):
    """What it compiled is at hand then, so its first steps take no longer than another's; one whose still do could work ahead."""
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)
    steps = slow_starter(monkeypatch).replace("def train(job):", "def steps(job):")
    source, target = COMPILES.format(steps=steps, always=always), 100.0 if always else 1.5
    result = grade_cells(source, lab=lab(minimum_gain=target, options=TINY), plan=replace(SHORT, use_up_s=4.0))
    check = result.check("throughput")
    assert result.check("parity").status == "PASS", result.check("parity").reason
    assert check.evidence["compile_s"] > 3
    assert check.evidence["worked_ahead"] == always
    if always:
        assert check.evidence["gain_certain"] < check.evidence["gain_lower"]
    else:
        assert check.points > 0.5 * check.max_points


IN_A_THREAD = """
    import threading

    threading.Thread(target=work, daemon=True).start()
"""
IN_A_PROCESS = """
    import os

    if os.fork() == 0:
        work()
"""
BESIDE = """

def work():
    while True:
        torch.ones(512, 512) @ torch.ones(512, 512)


def train(job):
{start}    yield from steps(job)
"""


@pytest.mark.parametrize("start", ["", IN_A_THREAD, IN_A_PROCESS], ids=["alone", "thread", "process"])
def test_what_more_cores_gain_does_not_count(start, nothing_left):
    """A CPU stands for a GPU there: the starter trains on one core. A busy machine gives two at once to nobody, so it is the main thread's
    work that tells here."""
    source = LAB.starter.replace("def train(job):", "def steps(job):") + BESIDE.format(start=start)
    with warmed_up(source) as arm:
        arm.child.freeze()

        def more_cores() -> bool:
            with arm.timed():
                arm.run(1 + int(1 / arm.step_s))
            return arm.cores(waits=True) > 1

        assert eventually(more_cores) if start else not more_cores()
    assert arm.cores(waits=False) <= arm.cores(waits=True)


def test_workers_of_a_loader_are_no_more_cores():
    arm = Arm(None, ran_all_s=9.5, ran_thread_s=8.0, ran_awake_s=8.0, ran_steps=1000)  # type: ignore[arg-type]
    assert arm.cores(waits=False) == arm.cores(waits=True) == 1.0
    arm = replace(arm, ran_all_s=18.5, ran_awake_s=16.0)
    assert arm.cores(waits=False) == 1.0 and arm.cores(waits=True) == pytest.approx(2)


def test_cores_count_where_a_cpu_stands_for_a_gpu():
    def policy(name: str, form: str) -> Policy:
        findings = Findings(labs.get(name), form)
        findings.yardstick = yardstick(findings.lab, form, submission(findings.lab.starter))
        return policy_of(findings, Plan(), 1.0, Path(), 0, None)

    known = {name: policy(name, "cpu") for more in MORE for name in CORPUS[more].labs}
    assert all(each.one_core for each in known.values())
    assert [name for name, each in known.items() if each.waits] == ["2j_checkpoint"]
    assert not any(policy(name, "cpu").one_core for name in ("2a_workers", "2i_host", "3j_communication"))
    assert not policy("4c_unet", "cuda").one_core and not policy("2j_checkpoint", "cuda").one_core


def test_more_cores_are_told():
    decide = decides(False, 2.0, LAB.forms["cpu"], Plan(min_pairs=2))
    decided = decide((Pair(0.2, 0.1),) * 3)
    counted = replace(decided, certain=decided.certain / 1.8)
    check = throughput.judge(LAB.throughput, counted, 2.0, {"cores": 1.8})
    assert check.status == "FAIL" and "on 1.8 cores at once" in check.reason and check.points < 0.3 * check.max_points
    check = throughput.judge(LAB.throughput, replace(decided, certain=2.5), 2.0, {"cores": 1.8})
    assert check.status == "PASS" and check.points == check.max_points  # who mended it needs no more cores


KEEPS = """
import os, time, torch, torch._dynamo.utils
{steps}

def train(job):
    torch._dynamo.utils.counters["stats"]["unique_graphs"] += 1
    kept = os.environ["XDG_CACHE_HOME"] + "/kept"
    print("kept" if os.path.exists(kept) else "nothing kept", os.environ.get("TORCH_COMPILE_DISABLE"), flush=True)
    open(kept, "w").close()
    time.sleep(6)
    yield from steps(job)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "left"), [("input-bound", "nothing kept 1"), ("compute-bound", "kept None")])
def test_what_a_first_start_has_read_no_second_one_finds(cause, left, monkeypatch, nothing_left):
    """Where the fix is about data, whatever a loop keeps among the compiler's caches may be its samples."""
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)
    source = KEEPS.format(steps=slow_starter(monkeypatch).replace("def train(job):", "def steps(job):"))
    tiny = replace(lab(minimum_gain=100.0, options=TINY), cause=cause, phase=2)
    result = grade_cells(source, lab=tiny, plan=replace(SHORT, use_up_s=1.0))
    assert result.output.split("\n")[0] == left
    assert (NOTHING_KEPT in result.warnings) == (cause == "input-bound")
    assert result.check("throughput").evidence["worked_ahead"]  # what takes long again is no compiler


def test_warnings_of_an_abandoned_start_are_forgotten_with_it():
    """They speak of pairs that nobody counts; what was said before it stays."""
    found = Findings(
        LAB, "cpu", race=Race(warnings=("1 of 3 pairs of blocks don't count, because",)), warnings=["open files"]
    )
    found.start_again()
    assert found.all_warnings == ["open files"] and found.race == Race()


def test_a_starter_that_is_slower_beside_the_submission_earns_nothing(nothing_left):
    """In whatever way: it is known how fast it is alone."""
    form = LAB.forms["cpu"]
    setup, decide = set_up(form, "cpu"), decides(False, 2.0, form, Plan(min_pairs=2))
    with open_arm(LAB.starter, setup, trusted=True) as starter:
        alone = starter_alone(starter, setup, 1, silent).step_s
        pairs = (Pair(100 * alone, alone),) * 3
        known = Race(pairs, decide(pairs), alone_s=(alone,))
        assert known.decided.certain > 90
        known = starter_again(known, starter, SHORT, silent)
        assert len(known.alone_s) == 2 and known.slowed == pytest.approx(100 * alone / max(known.alone_s))
        assert known.decided.certain < 100 / known.slowed and not known.decided.settled
        pairs = (Pair(alone, alone / 100),) * 3
        known = Race(pairs, decide(pairs), alone_s=known.alone_s)
        known = starter_again(known, starter, SHORT, silent)  # nothing is in doubt
        assert len(known.alone_s) == 2 and known.slowed == 1 and known.decided.certain > 90


def test_what_the_reference_cannot_follow_does_not_count():
    pairs = (Pair(0.3, 0.2),) * 2 + (Pair(0.3, 0.01),) * 4
    decide = decides(False, 3.0, labs.get("2a_workers").forms["cpu"], Plan(min_pairs=2))
    checkpoints = tuple(Checkpoint(step, Path(), n) for step, n in ((100, 1), (200, 2), (90_000, 6)))
    known = Race(pairs, replace(decide(pairs), certain=1.2), checkpoints)
    everything = Replay([], {each.step: {} for each in checkpoints}, 1.0, 1.0)
    assert compared_part(known, everything, decide) == (known, ())
    known, (warning,) = compared_part(known, replace(everything, updates={100: {}, 200: {}}), decide)
    assert known.pairs == pairs[:2] and known.gain.factor == pytest.approx(1.5)
    assert known.decided.certain == 1.2  # what was uncertain for another reason stays so
    assert "could follow 200" in warning
    known, _ = compared_part(known, replace(everything, updates={100: {}}), decide)
    assert known.decided is None
    even = Race(pairs[:1] * 8, checkpoints=(Checkpoint(100, Path(), 6), Checkpoint(90_000, Path(), 8)))
    for slowed, settled in (
        (1.0, True),
        (1.3, False),
    ):  # that something slowed the starter beside it is no fault of the loop's
        known, _ = compared_part(
            replace(even, decided=decide(even.pairs), slowed=slowed), replace(everything, updates={100: {}}), decide
        )
        assert known.decided.settled == settled


def test_what_has_failed_already_is_not_replayed(monkeypatch, nothing_left):
    """A loop that trains nothing makes thousands of steps in its time, which the reference would train for hours."""
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)
    # 60 timed steps of the starter's, however slow it is here: after 40 the losses are a third apart, and a quarter is too far
    enough = replace(SHORT, block_steps=30, min_pairs=2, max_pairs=2)
    result = grade_cells(CORPUS["constant_loss"].source(LAB.name), plan=enough)
    assert result.check("parity").status == "FAIL"
    assert not any("reference solution" in warning for warning in result.warnings)


def test_honest_work_keeps_its_points(monkeypatch, nothing_left):
    """The same training without a detour that the slow loop makes: a few hundred steps in all."""
    monkeypatch.setattr(blocks, "CHUNK_S", 0.05)
    fast = slow_starter(monkeypatch)
    result = grade_cells(fast, lab=lab(minimum_gain=1.5, options=TINY), plan=SHORT)
    assert result.check("parity").status == "PASS", result.check("parity").reason
    assert result.check("throughput").points > 0.5 * LAB.throughput.points
    assert "held_out_loss" in result.check("parity").evidence, (
        "its last step was not compared with the reference solution's"
    )


IN_A_THREAD = """

from concurrent.futures import ThreadPoolExecutor


def train(job):
    loop = steps(job)
    with ThreadPoolExecutor(1) as thread:
        while True:
            yield thread.submit(next, loop).result()
"""


@pytest.mark.parametrize("hidden", [False, True])
def test_work_in_a_thread_is_in_no_trace(hidden, nothing_left):
    source = LAB.starter.replace("def train(job):", "def steps(job):") + IN_A_THREAD if hidden else LAB.starter
    with warmed_up(source) as arm:
        arm.child.freeze()
        with arm.timed():
            arm.run(1 + int(1 / arm.step_s))
    for metric, value in (("cpu_ops", 9.0), ("score_matrices", 0.0), ("work", 1.0), ("data_wait", 0.0)):
        assert bool(plausible.beside_the_trace(metric, value, "cpu", arm.main_thread)) == hidden, arm.main_thread
        assert not plausible.beside_the_trace(metric, value, "cuda", arm.main_thread)
