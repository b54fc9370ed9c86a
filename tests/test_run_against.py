"""`grader run --against`: faster, as fast or slower than an earlier run, in real processes."""

import multiprocessing
import os
from itertools import pairwise
from statistics import fmean

import pytest

from grader.measure import decision
from grader.own import record as records
from grader.own.running import Seen
from tests.own_jobs import CLOCK, LOOK, MODEL, watched, watched_all

pytestmark = pytest.mark.slow
RUNS = 21
TRAIN = """
    draw = random.Random({seed})
    born = draw.gauss(0, 0.01)
    for _ in range(300):
        step()
        clock[0] += {factor} * 2 * (3 if draw.random() < 0.01 else 1) * (1 + born + abs(draw.gauss(0, 0.1)))
"""


def run_of(process: dict) -> dict:
    return records.record(Seen([process], status=0), ["python"])


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """Runs of one job whose steps scatter by a tenth, with single long ones, each run fast or slow by one percent from its birth;
    and of one that does 15% more."""
    bodies = {f"as it is {n}": TRAIN.format(seed=n, factor=1) for n in range(RUNS)}
    bodies |= {f"slower {n}": TRAIN.format(seed=100 + n, factor=1.15) for n in range(5)}
    found = watched_all(tmp_path_factory.mktemp("noisy"), bodies, CLOCK + MODEL)
    runs = {name: run_of(process) for name, process in found.items()}
    return [[run for name, run in runs.items() if name.startswith(word)] for word in ("as it is", "slower")]


def test_a_run_is_as_fast_as_another_one_of_the_same_job(noisy):
    """No false alarm in twenty. After several earlier runs as well."""
    equal, _ = noisy
    assert [records.against([one], other)[0] for one, other in pairwise(equal)] == [decision.EQUAL] * (RUNS - 1)
    assert [records.against(equal[n : n + 4], equal[n + 4])[0] for n in range(8)] == [decision.EQUAL] * 8


def test_a_run_that_is_slower_by_a_seventh_is_found(noisy):
    equal, slower = noisy
    for n, run in enumerate(slower):
        said, gain, held_up = records.against([equal[n]], run)
        assert (said, held_up < 0.1) == (decision.SLOWER, True)
        assert gain.lower < 1 / 1.15 < gain.upper < 1
        assert records.against([run], equal[n])[0] == decision.FASTER
        for earlier in (equal[n : n + 2], equal[n : n + 5]):
            assert records.against(earlier, run)[0] == decision.SLOWER


def _spin() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while True:
        pass


def test_what_other_programs_took_is_no_slowdown(tmp_path):
    """Two others on the job's only core: what the job waited for them is known, and it is not called slower."""
    body = """
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        end = time.perf_counter() + 4
        while time.perf_counter() < end:
            step()
    """
    others = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(2)]
    for each in others:
        each.start()
    try:
        process, _ = watched(tmp_path, MODEL, body, options={**LOOK, "record": False})
    finally:
        for each in others:
            each.kill()
    slowed = run_of(process)
    (rank,) = slowed["ranks"]
    assert fmean(rank["blocks_alone_s"]) < 0.8 * fmean(rank["blocks_s"])
    alone = {**rank, "blocks_s": rank["blocks_alone_s"]}
    said, gain, held_up = records.against([{**slowed, "ranks": [alone]}], slowed)
    assert said != decision.SLOWER
    assert gain.factor < 0.8 and held_up > 0.2


def test_a_run_json_of_an_earlier_release_can_be_compared_with(noisy):
    equal, slower = noisy
    (rank,) = equal[0]["ranks"]
    old = {**equal[0], "ranks": [{name: value for name, value in rank.items() if name != "blocks_alone_s"}]}
    assert records.against([old], slower[0])[0] == decision.SLOWER


def test_of_steps_in_turns_none_is_left_out(tmp_path):
    """More steps than are told of one by one. Each 320th is long, as where a game is played before them, or each fifth."""
    found = watched_all(
        tmp_path,
        {
            "rare": "for n in range(4800): clock[0] += 801 if n % 320 == 319 else 1; step()",
            "each fifth": "for n in range(4800): clock[0] += 10 if n % 5 == 4 else 1; step()",
        },
        model=CLOCK + MODEL,
    )
    rare, fifth = (records.record(Seen(processes=[each]), [])["ranks"][0] for each in found.values())
    assert rare["step_s_mean"] == pytest.approx(1 + 800 / 320, rel=0.05)
    assert fmean(rare["blocks_s"]) == pytest.approx(1 + 800 / 320, rel=0.05)
    assert rare["step_s_median"] == fifth["step_s_median"] == 1
    assert fifth["step_s_mean"] == pytest.approx(1 + 9 / 5, rel=0.01)
    assert fifth["step_s_p90"] == 10


def test_of_a_long_job_the_groups_of_steps_get_larger(tmp_path):
    body = """
        import grader_watch, grader_watch_steps
        grader_watch_steps.KEPT = 600
        for n in range(4800):
            clock[0] += 801 if n % 320 == 319 else 1
            step()
        print(grader_watch.watch.kept.every, len(grader_watch.watch.kept.times), file=open("groups", "w"))
    """
    _, seen = watched(tmp_path, CLOCK, MODEL, body, cwd=tmp_path)
    assert (tmp_path / "groups").read_text() == "8 599\n"
    (rank,) = records.record(seen, [])["ranks"]
    assert rank["step_s_mean"] == pytest.approx(1 + 800 / 320, rel=0.05)
    assert rank["step_s_median"] == 1
