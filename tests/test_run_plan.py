"""When `grader run` takes a job for warm, and how long it measures: the rule on step times of public scripts, as they were recorded."""

import json
import os
import random
import resource
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from grader.frontends.run import _compress
from grader.own.record import _alone
from grader.own.running import WATCH

sys.path.insert(0, str(WATCH))
import grader_watch_plan as plans

RECORDED = json.loads((Path(__file__).parent / "data" / "step_times.json").read_text())
NONE = {"workers": 0, "prefetch": 0}
STEADY = ("accelerate", "hf_trainer", "mnist", "nanogpt", "rnn_hand", "siamese", "vae", "wlm_lstm", "wlm_trans")
PROFILER_S = 2.5  # starting, ending and writing, as on an H200


def seconds(name):
    return [tenths / 1e4 for tenths in RECORDED[name]["tenths_ms"]]


def warm(times, loader=NONE, compiled=0.0):
    """After how many steps and seconds it is, asked as a job asks; None where it never is."""
    asked = 0.0
    for steps, passed in enumerate(accumulate(times), 1):
        if passed > asked:
            asked = passed + 0.1
            if not plans.warming(times[:steps], passed, passed - compiled, loader):
                return steps, passed
    return None


@pytest.mark.parametrize("name", STEADY)
def test_a_steady_loop_is_measured_within_fifteen_seconds(name):
    times = seconds(name)
    steps, passed = warm(times, RECORDED[name])
    plan = plans.planned(times[:steps], RECORDED[name], plans.WINDOW_S)
    made = 2 * plan["timed"] + 2 * plan["warm"] + plan["active"]
    assert passed < 5
    assert passed + made * plan["step_s"] + PROFILER_S < 15
    assert plan["timed"] >= 80, "a mean of few steps is no measurement"


def test_a_loop_that_waits_in_bursts_is_measured_in_whole_rounds_of_them():
    times, loader = seconds("imagenet"), RECORDED["imagenet"]
    steps, passed = warm(times, loader)
    plan = plans.planned(times[:steps], loader, plans.WINDOW_S)
    assert 6 < passed < 14, "the first ones came from a full queue, three times as fast"
    assert (plan["timed"] % 4, plan["active"] % 4) == (0, 0)
    assert plan["step_s"] == pytest.approx(sum(times[-48:]) / 48, rel=0.25), "in the mean: three of four do not wait"
    assert plan["timed"] * plan["step_s"] < 1.5 * plans.WINDOW_S


def test_short_epochs_do_not_keep_it_from_being_warm():
    assert warm(seconds("dcgan"), RECORDED["dcgan"])[1] < 5


@pytest.mark.parametrize(
    ("times", "least_s"),
    [
        ([30.0] + [0.01] * 2000, 3.0),  # the first step compiles
        ([0.01 * (1 + 20 * 0.99**n) for n in range(3000)], 3.0),  # it falls, step by step
        ([0.05] * 50 + [0.01] * 2000, 3.0),  # a cache is full after 2.5 s
    ],
)
def test_what_is_still_getting_faster_is_not_warm(times, least_s):
    times = times[1:] if times[0] > 1 else times  # time counts from the end of the first step
    steps, passed = warm(times)
    assert passed >= least_s
    window = times[steps : steps + plans.planned(times[:steps], NONE, plans.WINDOW_S)["timed"]]
    assert max(window) < 1.15 * min(times)


def test_it_waits_after_a_compilation():
    assert warm([0.01] * 2000, compiled=5.0)[1] >= 5.0 + plans.WARM_S


def test_what_never_gets_warm_is_measured_all_the_same():
    rising = [0.01 * 1.002**n for n in range(3000)]
    assert warm(rising)[1] == pytest.approx(plans.NEVER_WARM_S, abs=1)


def test_a_job_of_half_minute_steps_is_measured_within_sixteen_of_them():
    steps, _ = warm([30.0] * 40)
    plan = plans.planned([30.0] * steps, NONE, plans.WINDOW_S)
    # one before it is warm, one between
    assert steps + 1 + 2 * plan["timed"] + 1 + 2 * plan["warm"] + plan["active"] <= 16
    assert (plan["timed"], plan["active"]) == (2, 2)
    assert warm([30.0] * 40, {"workers": 4, "prefetch": 2})[0] == 16, "until the loader's queue is used up"


@pytest.mark.parametrize(
    ("times", "passed", "loader", "said"),
    [
        ([0.1] * 5, 0.5, NONE, "12 steps after the first, of which 5 were made"),
        ([0.1] * 20, 2.0, NONE, "3 s of steps, of which 2.0 s had passed"),
        ([0.2] * 20 + [0.1] * 10, 5.0, NONE, "stay as they are: 200 ms, then 100 ms in the last 10 steps"),
        ([0.2] * 20, 4.0, {"workers": 4, "prefetch": 2}, "10 rounds of the loader's 4 workers, of which there were 5"),
    ],
)
def test_what_it_waits_for_is_said(times, passed, loader, said):
    assert said in plans.warming(times, passed, passed, loader)


def test_a_compilation_is_named_only_where_there_was_one():
    assert (
        plans.warming([0.1] * 90, 9.0, 2.0, NONE)
        == "3 s of steps since the last compilation, of which 2.0 s had passed"
    )


def test_little_noise_makes_a_short_window():
    quiet = plans.planned([0.01, 0.0101] * 50, NONE, plans.WINDOW_S)
    draw = random.Random(0)
    loud = plans.planned([draw.uniform(0.006, 0.014) for _ in range(100)], NONE, plans.WINDOW_S)
    assert quiet["timed"] * quiet["step_s"] == pytest.approx(plans.LEAST_S, rel=0.1)
    assert quiet["timed"] < loud["timed"]


def test_windows_that_differ_are_told_from_noise_and_bursts():
    bursts = [0.05, 0.05, 0.05, 0.8]
    assert plans.alike(bursts * 3, [0.05, 0.8, 0.05, 0.05] * 3, 4)
    assert not plans.alike([0.01] * 20, [0.012] * 20, 1)
    assert plans.alike([0.01, 0.012] * 10, [0.0105, 0.0115] * 10, 1)
    assert plans.alike([0.01] * 20, [], 1), "the job ended"


def test_a_step_that_took_no_time_ends_no_report():
    """What a step took besides, such as an evaluation, is taken off, and may be all of it."""
    assert _alone({"means": [0.0, 2.0], "held_up": [0.0, 1.0], "steps": 2}) == [0.0, 1.0]


def test_a_trace_is_kept_whole_or_not_at_all(tmp_path):
    (tmp_path / "raw").write_bytes(os.urandom(1 << 16))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, most[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError):
            _compress(tmp_path / "raw", tmp_path / "trace.json.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert os.listdir(tmp_path) == ["raw"]
    _compress(tmp_path / "raw", tmp_path / "trace.json.gz")
    assert os.listdir(tmp_path) == ["trace.json.gz"]
