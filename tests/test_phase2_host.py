"""Lab 2i: how its metric is counted, the records, and that starter, half fix and solution are told apart by it."""

import gc

import pytest
import torch
import variants

from grader import labs, trace
from grader.grading.forms import prepared
from grader.look import peek
from grader.submission import Submission
from grader.trace.metrics import SPREAD_OF
from grader.workloads import records
from tests.loops import Recording

NAME = "2i_host"
LAB = labs.get(NAME)
LIMIT = LAB.trace[0].wanted.bound


def recorded(lengths: list[int], gpu: list[int] | None = None) -> trace.Metrics:
    """Steps of these lengths, ns, after one that is not counted. gpu: how long each one's kernel runs; a GPU works in order."""
    made, at, free = Recording().step(0, 0, 1000), 1000, 1000
    for n, length in enumerate(lengths):
        made.step(n + 1, at, at + length)
        if gpu:
            free = max(free, at + 2) + gpu[n]
            made.work("kernel", "gemm", at + 1, free - gpu[n], gpu[n])
        at += length
    return trace.metrics(made.read(expect_gpu=bool(gpu)))


def test_the_spread_of_steps_on_the_host():
    assert recorded([1000] * 40).spread == 1
    assert recorded([1000, 1000, 1000, 9000] * 10).spread == 9
    assert recorded([1000] * 39 + [9000]).spread == 1, "one in forty is less than one in twenty"


def test_steps_of_a_host_that_runs_ahead_are_as_long_as_the_gpu_s():
    """It makes some steps in no time, and then waits."""
    assert recorded([10] * 8 + [1000] * 40, gpu=[900] * 48).spread < 1.2
    assert recorded([100, 100, 100, 9000] * 12, gpu=[900] * 48).spread > 5, "the queue runs empty"


def test_too_few_steps_have_no_spread():
    assert recorded([1000] * (SPREAD_OF - 1)).spread is None
    assert recorded([1000] * SPREAD_OF).spread == 1


def test_records_are_what_the_sizes_say_and_follow_from_the_seed():
    some, same, other = (records.drawn(50, seed) for seed in (1, 1, 2))
    assert some == same != other
    for record in some:
        assert gc.is_tracked(record) and len(record["events"]) == 8 and all(map(gc.is_tracked, record["events"]))
        assert 0 <= record["label"] < records.CLASSES
    events, labels = records.collate(some)
    assert events.shape == (50, 16) and labels.shape == (50,)
    assert events.min() >= 0 and events.max() < records.KINDS
    assert set(labels.tolist()) <= set(range(records.CLASSES)) and len(set(labels.tolist())) > 3


@pytest.mark.parametrize("form", [*LAB.gpu_forms, LAB.forms["cpu"]], ids=["gpu", "cpu"])
def test_what_must_be_trained_has_its_own_part(form):
    options, _ = prepared(form)
    with torch.device("meta"):
        names = dict(records.network(options["width"], options["layers"]).named_parameters())
    assert [name for name in names if name.startswith(records.APART)] == ["0.weight"]


@pytest.mark.slow
def test_pauses_show_in_the_spread_and_their_absence_too():
    values = {}
    sources = {
        "starter": LAB.starter,
        "half": variants.half_fix(NAME),
        "solution": variants.solution(NAME),
        "frozen": variants.honest(NAME)["frozen, and collects as before"],
    }
    for name, source in sources.items():
        seen = peek(Submission(source), LAB, device="cpu")
        assert not seen.message, seen.message
        values[name] = seen.metrics.spread
    assert min(values["starter"], values["half"]) > LIMIT, values
    assert max(values["solution"], values["frozen"]) < min(values["starter"], values["half"]), values
