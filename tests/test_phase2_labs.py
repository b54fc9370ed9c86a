"""The labs of phase 2 on the CPU: what can be measured there separates starter, half fix and solution, and what is wrong is
rejected with its cause named. What needs a GPU is measured by `tests/benchmarks/measured.py`."""

import ast
from dataclasses import replace
from typing import Any

import pytest
import variants
from adversaries import draws_the_data, hands_over_connections, relays_through_shared_memory, trains_in_a_fork
from benchmarks import measured
from helpers import first, looked, said

from grader import labs, machine
from grader.checks import logs as logs_check
from grader.checks import trace as trace_check
from grader.checks.plausible import missing_work
from grader.grade import grade
from grader.look import peek
from grader.measure.blocks import Plan
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, Result
from grader.submission import Submission
from grader.trace import Metrics

LABS = [name for name in labs.loops() if labs.get(name).phase == 2]
HEALTHY = [name for name in LABS if labs.get(name).throughput.healthy]
TIMED = [name for name in LABS if labs.get(name).measures(labs.get(name).throughput, "cpu") and name not in HEALTHY]
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
PLAN = Plan(block_s=0.6, block_steps=2, min_pairs=3, max_pairs=3, precision=0.12, profile_steps=2)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)  # where the training says it all


def graded(name: str, source: str, plan: Plan = PLAN, **prediction: Any) -> Result:
    submission = Submission(source, prediction=tuple(prediction.items()) or None)
    result = grade(submission, labs.get(name), device="cpu", plan=plan)
    assert not result.fatal, result.fatal
    return result


@pytest.mark.parametrize("name", labs.loops())
def test_enough_variants(name):
    """A typing mistake in a variant would be rejected like a wrong fix, and prove nothing."""
    halves, wrongs = variants.halves(name), variants.wrongs(name)
    assert len(halves) >= 2 and len(wrongs) >= 2
    sources = [*halves.values(), *(source for source, _ in wrongs.values())]
    assert len({*sources, variants.starter(name)}) == len(sources) + 1
    sources += [*variants.honest(name).values(), *variants.faults(name).values()]
    for source in sources + [source for _, source in measured.rungs(name)]:
        ast.parse(source)


@pytest.mark.parametrize("name", [name for name in LABS if name not in TIMED + HEALTHY])
@pytest.mark.parametrize("which", ["starter", "solution"])
def test_same_training_where_nothing_can_be_timed(name, which):
    result = graded(name, getattr(variants, which)(name))
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED and result.score == 0
    if labs.get(name).logs:
        assert result.check("logs").status == PASS, said(result)


WRONG = [  # one a lab; those of 2g take a quarter of a minute
    case
    for name in LABS
    for case in first(((name, what) for what in variants.wrongs_on_a_cpu(name)), 0 if name in HEALTHY else 1)
]


@pytest.mark.parametrize("name, what", WRONG)
def test_what_is_wrong_is_rejected_and_named(name, what):
    source, words = variants.wrongs(name)[what]
    result = grade(Submission(source), labs.get(name), device="cpu", plan=PLAN if name in HEALTHY else SHORT)
    check = result.check("throughput")
    if name in HEALTHY and check.status == INCONCLUSIVE:  # a machine too busy to tell
        pytest.skip(check.reason)
    assert words in said(result)
    untimed = labs.get(name).forms["cpu"].minimum_gain is None
    assert check.status == (NOT_MEASURED if untimed else FAIL) and check.points < 0.7 * check.max_points
    assert name in HEALTHY or result.score == 0


IN_THREADS = [
    ("import torch\n", "from concurrent.futures import ThreadPoolExecutor\n\nimport torch\n"),
    ("    loader = DataLoader(job.dataset, batch_sampler=job.batches)\n", "    pool = ThreadPoolExecutor(16)\n"),
    (
        "    for images, labels in loader:\n",
        "    for batch in job.batches:\n        samples = list(pool.map(job.dataset.__getitem__, batch))\n"
        "        images, labels = torch.utils.data.default_collate(samples)\n",
    ),
]
LOOK_FIRST = [("    loader = ", "    job.dataset[0][0].shape\n    loader = ")]
# whatever the loop is given that could hold a counter
SWITCHED_OFF = [
    (
        "    pool = ThreadPoolExecutor(16)\n",
        "    pool = ThreadPoolExecutor(16)\n    counters, job.counters = job.counters, {}\n"
        "    for each in [*vars(job.dataset).values(), *counters.values()]:\n"
        "        if hasattr(each, 'value'):\n            each.value = -1e9\n"
        "    counters.clear()\n    job.dataset.main = 0\n",
    )
]
LOCAL = {"on the local disk": {"read_s": 0.0}, "on the drive": {}}


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (variants.starter("2a_workers"), FAIL),
        (variants.edit(variants.starter("2a_workers"), IN_THREADS), FAIL),
        (variants.edit(variants.starter("2a_workers"), IN_THREADS + SWITCHED_OFF), FAIL),
        (variants.solution("2a_workers"), PASS),
        (variants.edit(variants.solution("2a_workers"), LOOK_FIRST), PASS),
    ],
    ids=["starter", "in threads", "in threads, the counter switched off", "solution", "one sample before the loop"],
)
@pytest.mark.parametrize("where", LOCAL)
def test_a_training_process_that_loads_samples_in_threads_loads_them_itself(source, status, where):
    """The profiler does not see threads that a loop starts."""
    lab = labs.get("2a_workers")
    form = lab.forms["cpu"]
    lab = replace(lab, forms={"cpu": replace(form, options=form.options | LOCAL[where])})
    seen = peek(Submission(source), lab, device="cpu")
    assert not seen.message, seen.message
    loads = seen.metrics.loads_in_main
    assert loads == lab.forms["cpu"].options["batch_size"] if status == FAIL else loads < 0.5
    check = next(check for check in lab.trace if check.name == "reads")
    assert trace_check.judge(check, seen.metrics, [], 1.0).status == status


@pytest.mark.slow
@pytest.mark.parametrize(
    "does", [hands_over_connections, relays_through_shared_memory, trains_in_a_fork], ids=lambda module: module.__name__
)
def test_reading_elsewhere_is_not_decoding_elsewhere(does):
    check = graded("2a_workers", does.source("2a_workers")).check("reads")
    assert check.points == 0 and check.status in (FAIL, INCONCLUSIVE), check.reason


READ_IN_TRAIN = [
    (
        '    with ThreadPoolExecutor(64) as pool, open(folder / SHARD, "wb") as shard:\n',
        '    return\n    with open(folder / SHARD, "wb") as shard:\n',
    ),
    ("        for pixels in pool.map(dataset.read, range(len(dataset))):\n", "        for pixels in ():\n"),
    (
        '    tiles = np.memmap(job.folder / SHARD, np.uint8, "r").reshape(-1, 3, size, size)\n',
        '    pixels = b"".join(job.dataset.read(index) for index in range(len(job.dataset)))\n'
        "    tiles = np.frombuffer(bytearray(pixels), np.uint8).reshape(-1, 3, size, size)\n",
    ),
]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("    pass\n", "`prepare` wrote no such file"),
        ("    open(folder / 'new' / 'tiles.bin', 'w')\n", "Make a folder before"),
    ],
)
def test_a_file_that_is_not_there(where, says):
    source = f"def prepare(dataset, folder):\n{where}def train(job):\n    yield open(job.folder / 'tiles.bin')\n"
    result = grade(Submission(source), labs.get("2d_formats"), device="cpu", quick=True)
    assert says in result.fatal and result.score == 0, result.fatal


@pytest.mark.slow
def test_what_is_trained_on_was_read():
    """The samples can be had without their files; to wait for those is what the lab is about."""
    result = graded("2d_formats", draws_the_data.source("2d_formats"))
    check = result.check("parity")
    assert result.score == 0 and check.status == FAIL and "asked the drive for 0" in check.reason, check.reason


@pytest.mark.slow
def test_reading_all_files_where_the_loop_begins_is_a_preparation():
    """It took 10 s that nothing counted, and divided by all steps of a long grade the files were next to none."""
    result = graded("2d_formats", variants.edit(variants.solution("2d_formats"), READ_IN_TRAIN))
    assert result.check("parity").status == PASS, result.check("parity").reason
    assert result.check("files").points == 0 and result.check("files").status == FAIL
    assert result.check("throughput").evidence["prepare_s"] > 4


@pytest.mark.parametrize("form", labs.get("2f_end_to_end").forms)
def test_close_guesses_may_come_out_otherwise(form):
    """Rounding turns one of a batch's guesses now and then, in a run of some hundred steps; no loop's fault."""
    lab = labs.get("2f_end_to_end")
    one = 1 / lab.forms[form].options["batch_size"]
    for guesses, status in ((1, PASS), (2, PASS), (12, FAIL)):
        logged = [[{"loss": 2.0, "accuracy": 0.0}], [{"loss": 2.0, "accuracy": guesses * one}]]
        assert logs_check.judge(lab.logs, *logged, [2.0], [2.0], 24).status == status


STEPS, LOSSES = 200, [2.0] * 200
RIGHT = [{"loss": 2.0, "accuracy": (7 * step % 16) / 16} for step in range(STEPS)]
INVENTED = [values | {"accuracy": 0.5} for values in RIGHT]


@pytest.mark.parametrize(
    "logged, status",
    [
        (RIGHT, PASS),
        (RIGHT[:-8] + [{}] * 8, PASS),  # the last are still to come
        ([INVENTED[n] if n > 60 and n % 16 == 0 else values for n, values in enumerate(RIGHT)], PASS),  # rounding
        (RIGHT[:100] + INVENTED[100:], FAIL),
        (RIGHT[:100] + RIGHT[99:-1], FAIL),  # those of the step before
        (RIGHT[:100] + [RIGHT[n - n % 3] for n in range(100, STEPS)], FAIL),  # of every third step
    ],
)
def test_logs_are_the_reference_s_after_the_starter_s_last_step(logged, status):
    check = labs.get("2f_end_to_end").logs
    first = logs_check.judge(check, RIGHT[:60], logged, LOSSES[:60], LOSSES, 24)
    assert first.status == PASS
    second = logs_check.beside_the_reference(check, first, RIGHT, logged, LOSSES, LOSSES, 24)
    assert second.status == status and second.evidence["accuracy_of_the_tolerance"] == 0
    assert ("in place of" in second.reason) == (status == FAIL)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize(
    ("prediction", "points"),
    [({}, 0), ({"cause": "no idea", "gain": 999.0}, 0), ({"cause": "compute-bound", "gain": 3.0}, 80)],
)
def test_to_hand_in_nothing_is_no_answer(name, prediction, points):
    """Nothing was harmed, and nothing was found."""
    result = graded(name, labs.get(name).starter, **prediction)
    check = result.check("throughput")
    assert result.score == points or check.status == INCONCLUSIVE, said(result)


def test_waits_that_leave_a_mark_on_a_cpu():
    """Four of the starter's seven: print, `if`, the mask and `.item()`; the copies and `synchronize` leave none."""
    name = "2e_syncs"
    starter, solution = counts(name, variants.starter(name), "cpu"), counts(name, variants.solution(name), "cpu")
    assert (starter.would_wait, solution.would_wait) == (4, 0)


# ---------------------------------------------------------------- counts that only a GPU shows


def counts(name: str, source: str, device: str = "auto"):
    return looked(labs.get(name), source, device)


@gpu
def test_syncs_on_a_gpu():
    name = "2e_syncs"
    starter = counts(name, variants.starter(name)).syncs
    halves = [counts(name, source).syncs for source in variants.halves(name).values()]
    assert starter >= 7 and counts(name, variants.solution(name)).syncs == 0
    assert all(0 < half < starter for half in halves)


@pytest.mark.parametrize("copied, status", [(50_331_648.0, ""), (1_024.0, FAIL), (None, INCONCLUSIVE)])
def test_tiles_that_stay_on_the_gpu_are_not_counted(copied, status):
    said = missing_work(labs.get("2b_transfers").forms["cuda"], Metrics(h2d_bytes=copied))
    assert not said if not status else said[0] == status
    assert status != FAIL or ("0.0 MB were copied" in said[1] and "keep the data set on the GPU" in said[1])


@gpu
def test_copies_on_a_gpu():
    name = "2b_transfers"
    starter, solution = counts(name, variants.starter(name)), counts(name, variants.solution(name))
    assert starter.h2d_copies >= 65 and starter.h2d_pinned == 0 and starter.h2d_overlap < 0.1
    assert solution.h2d_copies <= 4 and solution.h2d_pinned == 1 and solution.h2d_overlap >= 0.5


@gpu
def test_nothing_waits_at_the_end_on_a_gpu():
    name = "2f_end_to_end"
    starter, solution = counts(name, variants.starter(name)), counts(name, variants.solution(name))
    assert starter.h2d_copies >= 128 and starter.syncs > 100 and starter.counted["connections"] >= 64
    assert solution.h2d_copies <= 4 and solution.syncs == 0
