"""What labs can ask for beside throughput and trace: logs, a preparation, counts of the workload and of the drive."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import GPT, LAB, PLAN, grade_cells, running, warmed_up

from grader import labs, look, trace
from grader.checks import logs as logs_check
from grader.checks import plausible
from grader.checks import prediction as prediction_check
from grader.checks import throughput as throughput_check
from grader.checks import trace as trace_check
from grader.grade import grade
from grader.grading.forms import NEEDS_GPU
from grader.kinds.shared import TRACES
from grader.labs.lab import Logs, Prediction, TraceCheck
from grader.measure import starter as starters
from grader.measure.decision import Pair, decide_healthy
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, Result
from grader.sandbox.child_error import ChildError
from grader.sandbox.contract import some
from grader.submission import Submission
from grader.trace import Metrics
from grader.workloads import gpt, job

LOGS = Logs(("loss", "accuracy"))
GOOD = [{"loss": 2.0, "accuracy": 0.10}, {"loss": 1.5, "accuracy": 0.25}]

LOGGING = """
import torch


def train(job):
    step = 0
    while True:
        {logs}
        step += 1
        yield torch.tensor(1.0)
"""


@pytest.mark.parametrize("name", ["1a_stopwatch", "1b_annotate", "1d_mystery", "3a_precision", "3i_triton"])
def test_in_no_form_for_this_device_nothing_is_measured(name):
    """One of each kind that runs code."""
    lab = labs.get(name)
    result = grade(Submission(lab.starter), replace(lab, forms={"cuda": lab.forms["cuda"]}), device="cpu")
    assert {(check.status, check.reason) for check in result.checks} == {(NOT_MEASURED, NEEDS_GPU)}
    assert [check.name for check in result.checks] == [check.name for check in lab.checks] and not result.warnings


# ---------------------------------------------------------------- logs


def logs_judged(starter, submission, losses, first=24):
    """Of two trainings whose losses are the same."""
    return logs_check.judge(LOGS, starter, submission, losses, losses, first)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accuracy": 0.3}, "Step 1 logged accuracy as 0.3, and the starter logs 0.25"),
        ({"loss": 1.6}, "Step 1 logged the loss 1.6, but yielded 1.5"),
        ({"accuracy": None}, "accuracy as something that is not a finite number"),
        ({"accuracy": True}, "accuracy as something that is not a finite number"),
    ],
)
def test_changed_logs(change, words):
    assert logs_judged(GOOD, GOOD, [2.0, 1.5]).status == PASS
    result = logs_judged(GOOD, [GOOD[0], GOOD[1] | change], [2.0, 1.5])
    assert result.status == FAIL and words in result.reason


def test_missing_logs():
    result = logs_judged(GOOD, [{}, GOOD[1]], [2.0, 1.5])
    assert result.status == FAIL and "Step 0 logged no loss, accuracy" in result.reason
    for steps in (1, logs_check.LATEST, 20):
        never = logs_judged(GOOD, [{}] * steps, [1.0] * steps)
        assert never.status == FAIL and "Step 0" in never.reason
        assert logs_check.to_come([{}] * steps) == (steps <= logs_check.LATEST)


@pytest.fixture(scope="module")
def trainings():
    """Three trainings of a small GPT on the same batches, of 350 steps each: one, the same from weights that are one millionth
    off, and one on the first half of each batch. Step by step, what `3e_compile` logs."""
    steps, batch, length = 350, 8, 64
    torch.manual_seed(2)
    made = [gpt.GPT(2, 64, 4, length, 128)]
    made += [copy.deepcopy(made[0]) for _ in range(2)]
    with torch.no_grad():
        for weights in made[1].parameters():
            weights *= 1 + 1e-6 * torch.randn_like(weights)
    counted = torch.arange(2048).cumsum(0) % 128  # something to learn
    text = torch.where(torch.rand(2048) < 0.7, counted, torch.randint(128, (2048,)))
    starts = torch.randint(len(text) - length - 1, (steps, batch, 1)) + torch.arange(length + 1)
    found = []
    for model, samples in zip(made, (batch, batch, batch // 2), strict=True):
        seen, logged = [], []
        for block in model.blocks:
            block.register_forward_hook(lambda *called, seen=seen: seen.append(called[-1].detach().abs().max().item()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # at which rounding grows
        for at in starts[:, :samples]:
            seen.clear()
            tokens = text[at]
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            logged.append({"loss": loss.item(), "largest": max(seen)})
        found.append(logged)
    return found


@pytest.mark.slow
def test_honest_trainings_that_part_by_rounding_log_other_numbers(trainings):
    """A loop of 3e_compile whose kernels rounded otherwise failed on an H200: its largest activation was 3% off after 941 steps."""
    check, (one, other, half) = Logs(("loss", "largest")), trainings
    losses = [[step["loss"] for step in logged] for logged in trainings]
    apart = [abs(a["largest"] / b["largest"] - 1) for a, b in zip(one, other, strict=True)]
    assert max(apart) > 0.05 > 0.001 > max(apart[:24])
    found = logs_check.judge(check, one, other, losses[0], losses[1], 24)
    assert found.status == PASS, found
    assert found.evidence["largest_of_the_tolerance"] < 0.7, found.evidence
    # what trains on less is seen while nothing can have parted yet, and so is a number that is not a step's own
    assert logs_check.judge(check, one, half, losses[0], losses[2], 24).status == FAIL
    early = [step | {"largest": one[10]["largest"]} if n > 10 else step for n, step in enumerate(one)]
    assert logs_check.judge(check, one, early, losses[0], losses[0], 24).status == FAIL


def test_numbers_of_the_first_steps_and_of_losses_that_agree_must_agree():
    starter = [{"loss": 2.0, "accuracy": 0.5}] * 60
    same, part = [2.0] * 60, [2.0 + 0.01 * (n >= 30) for n in range(60)]
    once = [2.0 + (n == 40) for n in range(60)]  # one loss makes no training another one
    for at, losses, status in (
        (10, part, FAIL),
        (50, part, PASS),
        (50, same, FAIL),
        (26, once, FAIL),
        (46, once, FAIL),
    ):
        logged = [{"loss": loss, "accuracy": 0.52 if n == at else 0.5} for n, loss in enumerate(losses)]
        assert logs_check.judge(LOGS, starter, logged, same, losses, 24).status == status, (at, status)


def test_a_number_may_be_logged_some_steps_later():
    """Whoever reads ten steps' numbers at once waits for the device once in ten steps; when a grade stops, the last ones are
    still to come."""
    many, losses = [GOOD[0]] * 30, [2.0] * 30
    for late in range(logs_check.LATEST + 1):
        assert logs_judged(many, many[late:] + [{}] * late, losses).status == PASS
    later = logs_judged(many, many[11:] + [{}] * 11, losses)
    assert later.status == FAIL and "Step 19 logged no" in later.reason
    wrong = logs_judged(GOOD, [GOOD[0] | {"accuracy": 0.9}, {}], [2.0, 1.5])
    assert wrong.status == FAIL and "Step 0 logged accuracy as" in wrong.reason


def test_what_a_loop_logs_arrives():
    logs = "job.log(step, a=torch.tensor(2.5), b=float('nan')); job.log(step, c=step)"
    with running(LOGGING.format(logs=logs)) as child:
        child.load()
        child.start(1)
        child.run(3)
        assert child.logs() == [{"a": 2.5, "b": None, "c": float(step)} for step in range(3)]


def test_only_numbers_can_be_logged():
    """Which of them is none, and where, is said at once."""
    with running(LOGGING.format(logs="job.log(step, a=torch.ones(1, 1), b=torch.ones(2))")) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError, match=r"job.log takes single numbers, but `b` has the shape \(2,\)") as caught:
            child.run(2)
        assert caught.value.line


def test_a_tensor_of_one_element_is_a_number():
    with running(LOGGING.format(logs="job.log(step, a=torch.full((1, 1), 2.5))")) as child:
        child.load()
        child.start(1)
        child.run(1)
        assert child.logs() == [{"a": 2.5}]


@pytest.mark.slow
def test_no_points_without_the_logs():
    lab = replace(LAB, logs=Logs(("loss",)))  # its starter logs nothing either: the submission is found out by itself
    result = grade_cells(lab.starter, lab=lab)
    assert result.check("parity").status == PASS and result.check("logs").status == FAIL
    assert result.score == 0 and "no longer logs" in result.check("throughput").reason


# ---------------------------------------------------------------- a preparation

PREPARED = """
import torch
{top}

def prepare(dataset, folder):
    {body}


def train(job):
    value = float((job.folder / "value").read_text())
    while True:
        yield torch.tensor(value)
"""


def test_what_was_prepared_is_there_for_training():
    body = 'import time; time.sleep(0.3); (folder / "value").write_text(str(float(len(dataset) > 10)))'
    with running(PREPARED.format(top="", body=body)) as child:
        child.load()
        assert child.prepare(60) >= 0.3
        child.start(1)
        assert child.run(2)[1] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "limit_s", "words"),
    [
        ("1 / 0", 60, "raised ZeroDivisionError in prepare"),
        ("import time; time.sleep(1000)", 1, "did not finish prepare"),
        ('open("/etc/written", "w")', 60, "raised PermissionError in prepare"),
    ],
)
def test_a_preparation_that_fails(body, limit_s, words):
    with running(PREPARED.format(top="", body=body)) as child:
        child.load()
        with pytest.raises(ChildError, match=words):
            child.prepare(limit_s)


@pytest.mark.slow
def test_the_time_of_a_preparation_counts():
    source = LAB.starter + "\n\ndef prepare(dataset, folder):\n    import time\n\n    time.sleep(2)\n"
    form = replace(GPT, prepare_s=60, prepared_for=10)  # 200 ms a step
    result = grade(Submission(source), replace(LAB, forms={"cpu": form}), device="cpu", plan=PLAN)
    check = result.check("throughput")
    assert check.evidence["prepare_s"] > 1 and check.evidence["prepare_ms_a_step"] > 100
    assert check.evidence["gain"] < 0.8 and "preparation took" in check.reason
    assert len(check.evidence["lost"]) == len(check.evidence["pairs"])


@pytest.mark.slow
def test_the_time_of_a_data_set_counts_as_preparation():
    """The data set that prepare() gets is made by the workload, and a submission can have that do what takes long."""
    patched = """
import grader.workloads.gpt as workload

made = workload.make_job


def make_job(*args, **options):
    import time

    time.sleep(2)
    return made(*args, **options)


workload.make_job = make_job
"""
    form = replace(GPT, prepare_s=60, prepared_for=10)
    result = grade(Submission(LAB.starter + patched), replace(LAB, forms={"cpu": form}), device="cpu", plan=PLAN)
    assert result.check("throughput").evidence["prepare_s"] > 1


# ---------------------------------------------------------------- verdicts


def judged(check: TraceCheck, **values) -> tuple[str, str]:
    result = trace_check.judge(check, Metrics(steps=4, complete=True, **values), [], 1.0)
    return result.status, result.reason


@pytest.mark.parametrize(
    ("main_s", "doubted"),
    [(0.0083, False), (0.0133, False), (0.033, True), (0.0005, True)],
    ids=["16 workers", "4 workers, a busy machine", "its threads decode what others read", "another process trains"],
)
def test_who_decodes_is_told_by_the_main_process_s_time(main_s, doubted):
    """Seconds a step; the starter's as well were measured."""
    assert bool(plausible.made_in_main("cpu", (0.0375, main_s))) == doubted
    # on a GPU a process that trains has little to do itself
    assert bool(plausible.made_in_main("cuda", (0.0375, main_s))) == (doubted and main_s > 0.001)


def test_no_wait_for_data_in_the_trace_is_said():
    """A thread that fills a queue, for one: there is no loader to wait for, and no read in the training thread."""
    check = next(c for c in labs.get("2c_transforms").trace if c.metric == "data_wait")
    status, reason = judged(check)
    assert status == INCONCLUSIVE and trace_check.MARK_ALL in reason


def test_a_profiler_of_the_loop_s_own_is_in_the_way():
    source = LAB.starter.replace("    for ", "    torch.profiler.profile().start()\n    for ", 1)
    with warmed_up(source) as arm, pytest.raises(ChildError, match="Take it out"):
        arm.profile(2, "trace.json")


def test_batches_are_drawn_on_the_cpu():
    """Whatever the submission has made the default device."""
    drawn = next(iter(job.Batches(10, 4, 1)))
    with torch.device("meta"):
        assert next(iter(job.Batches(10, 4, 1))) == drawn


def test_a_metric_that_is_absent_can_say_why():
    check = next(c for c in labs.get("4b_nanogpt").trace if c.name == "flash")
    assert judged(check, flash_share=1.0) == (PASS, judged(check, flash_share=1.0)[1])
    assert judged(check)[0] == FAIL and "single operations" in judged(check)[1]
    assert judged(replace(check, absent=""))[0] == INCONCLUSIVE


def test_what_a_cuda_graph_hides_is_said():
    graphed = trace.metrics(trace.read(TRACES / "gpt_launch_fixed.json.gz"))
    assert graphed.graph_launches == 1
    for lab, name in (("3f_attention", "scores"), ("4b_nanogpt", "aligned")):
        check = next(c for c in labs.get(lab).trace if c.name == name)
        result = trace_check.judge(check, graphed, [], 1.0)
        assert result.status == INCONCLUSIVE and "launches CUDA graphs" in result.reason, result
    flash = next(c for c in labs.get("4b_nanogpt").trace if c.name == "flash")
    assert "CUDA graph" not in trace_check.judge(flash, graphed, [], 1.0).reason  # kernels are recorded


@pytest.mark.parametrize(
    ("waits", "supported", "points"), [(0, 1, 50), (2, 1, 37.5), (2, 0.5, 25), (9, 1, 0), (0, 0.5, 25)]
)
def test_waits_that_are_gone_earn_their_part(waits, supported, points):
    check = labs.get("2e_syncs").trace[0]
    result = trace_check.judge(check, Metrics(steps=4, complete=True, syncs=waits), [], supported)
    assert result.points == points and (result.status == PASS) == (points == 50)


@pytest.mark.parametrize(
    ("idle", "lost", "status", "points"),
    [
        (0.15, 0.0, PASS, 15),
        (0.15, 0.3, PASS, 15),
        (0.35, 0.0, FAIL, 11.79),
        (0.35, 0.1, FAIL, 11.79),  # 28% without what others took
        (0.35, 0.21, INCONCLUSIVE, 11.79),  # seen: four grades at once on one host
        (0.92, 0.21, FAIL, 0),
    ],
)
def test_time_that_others_took_is_not_held_to_be_idle(idle, lost, status, points):
    check = next(c for c in labs.get("4a_resnet50").trace if c.name == "idle")
    result = trace_check.judge(check, Metrics(steps=4, complete=True, gpu_idle_unprofiled=idle), [], 1.0, lost)
    assert (result.status, result.points) == (status, points), result
    assert (status == INCONCLUSIVE) == ("other programs took 21% of the time" in result.reason)


@pytest.mark.parametrize(
    ("spread", "lost", "supported", "status", "points"),
    [
        (1.9, 0.8, 1, PASS, 40),
        (2.09, 0.0, 1, FAIL, 38.8),
        (2.09, 0.83, 1, INCONCLUSIVE, 38.8),  # seen: a loop that collects nothing, on a host with many others
        (2.09, 0.83, 0.5, INCONCLUSIVE, 20),
        (3.03, 0.06, 1, INCONCLUSIVE, 26.27),  # seen: such a loop again, beside one other program
        (3.03, 0.04, 1, FAIL, 26.27),
        (9.0, 0.3, 1, FAIL, 0),
    ],
)
def test_steps_that_others_held_up_are_not_held_against_a_loop(spread, lost, supported, status, points):
    check = labs.get("2i_host").trace[0]
    result = trace_check.judge(check, Metrics(steps=4, complete=True, spread=spread), [], supported, lost)
    assert (result.status, result.points) == (status, points), result
    assert (status == INCONCLUSIVE) == (f"other programs took {lost:.0%} of the time" in result.reason)
    assert ("at most 50% of these points" in result.reason) == (supported == 0.5)


def test_a_short_wait_is_believed_where_nothing_speaks_against_it():
    check = next(c for c in labs.get("2c_transforms").trace if c.name == "waiting")
    plain = {"data_wait": 0.02, "ops_outside_waits": 560}
    assert judged(check, **plain)[0] == judged(check, **plain, data_wait_unprofiled=0.05)[0] == PASS
    times = {"step_ns": 9.2e6, "step_ns_traced": 522e6}
    status, reason = judged(check, **plain, **times, data_wait_unprofiled=1)
    assert status == INCONCLUSIVE and "56.7 times as long" in reason
    status, reason = judged(check, **plain | {"ops_outside_waits": 2350})
    assert status == INCONCLUSIVE and "2,350 operators" in reason
    assert judged(check, data_wait=0.02)[0] == INCONCLUSIVE  # a trace without operators shows no loop
    assert judged(check, **plain | {"data_wait": 0.6})[0] == FAIL  # whatever the rest says


def test_shares_are_shown_in_per_cent_and_counts_are_not():
    idle = next(c for c in labs.get("2f_end_to_end").trace if c.name == "idle")
    assert "31% of a step" in judged(idle, gpu_idle_unprofiled=0.312)[1]
    reads = next(c for c in labs.get("2d_formats").trace if c.name == "files")
    status, reason = judged(reads, counted={"drive_reads": 63.98})
    assert status == FAIL and reason.startswith("64 files")
    assert judged(reads, counted={"drive_reads": 2086.25})[1].startswith("2,086 files")


def test_a_healthy_loop_that_may_be_slower_keeps_what_is_certain():
    check = labs.get("2g_healthy").throughput
    decided = decide_healthy([Pair(0.1, 0.1), Pair(0.1, 0.105)] * 3, throughput_check.NOT_SLOWER, 0.45, 0.003)
    found = throughput_check.judge_healthy(check, decided, {})
    assert found.status == INCONCLUSIVE and 45 < found.points < 60


@pytest.mark.parametrize(("speed", "points"), [(1.2, 60), (1.0, 60), (0.8, 30), (0.5, 0)])
def test_a_healthy_loop_loses_points_for_what_makes_it_slower(speed, points):
    check = labs.get("2g_healthy").throughput
    pairs = [Pair(0.1, 0.1 / speed) for _ in range(4)]
    decided = decide_healthy(pairs, throughput_check.NOT_SLOWER, 0.45, 0.003)
    assert throughput_check.judge_healthy(check, decided, {}).points == pytest.approx(points, abs=1.5)


REFERENCE, OWN = prediction_check.REFERENCE, prediction_check.OWN
SYNCS = Prediction(points=10, factor=1.5)


@pytest.mark.parametrize(
    "gains, gain, right, words",
    [
        ({REFERENCE: 4.0}, 4, True, "Here the reference solution gains 4.0x."),
        ({REFERENCE: 4.0}, 5.9, True, "right if it lies within a factor of 1.5 of the reference solution's gain"),
        ({REFERENCE: 4.0}, 6.1, False, "right if it lies within a factor of 1.5 of the reference solution's gain"),
        ({REFERENCE: 4.0}, 2.6, False, "Gain 2.6x is off."),
        ({OWN: 29.2}, 20, True, "Here your own loop gains 29.2x."),
        ({OWN: 29.2}, 5, False, "Here your own loop gains 29.2x."),
        ({REFERENCE: 4.0, OWN: 9.0}, 9, True, "the reference solution gains 4.0x and your own loop gains 9.0x"),
        ({REFERENCE: 4.0, OWN: 9.0}, 4, True, "the reference solution gains 4.0x and your own loop gains 9.0x"),
        ({REFERENCE: 4.0, OWN: 40.0}, 13, False, "Gain 13x is off."),
        ({REFERENCE: 1.0, OWN: 1.0}, 2, False, "the reference solution gains 1.0x"),
    ],
)
def test_a_predicted_gain_is_judged_by_the_rule_that_it_states(gains, gain, right, words):
    check = prediction_check.judge(SYNCS, ("sync-bound",), gains, (("cause", "sync-bound"), ("gain", gain)))
    assert (check.status, check.points) == ((PASS, 10) if right else (FAIL, 5))
    assert words in check.reason and prediction_check.RULE.format(factor=1.5) in check.reason
    assert bool(check.hint) != right


@pytest.mark.parametrize("cause, points", [("sync-bound", 5), ("input-bound", 0)])
def test_a_gain_that_nobody_knows_is_not_judged(cause, points):
    said = (("cause", cause), ("gain", 9))
    check = prediction_check.judge(SYNCS, ("sync-bound",), {}, said)
    assert (check.status, check.points, check.unmeasured) == (FAIL, points, 0)
    assert "Gain 9x is not judged yet." in check.reason and "neither is known yet" in check.reason
    assert bool(check.hint) == (not points), "no hint about what could not be judged"
    check = prediction_check.judge(SYNCS, ("sync-bound",), {}, said, undecided=True)
    assert check.status == (INCONCLUSIVE if points else FAIL)


@pytest.mark.parametrize("cause, status, points", [("sync-bound", PASS, 5), ("input-bound", FAIL, 0)])
@pytest.mark.parametrize("device, graded_on", [("cuda", "cpu"), ("cpu", "cuda"), (None, "cpu")])
def test_a_gain_for_another_kind_of_device_waits(device, graded_on, cause, status, points):
    said = (("cause", cause), ("gain", 1.1), *([("device", device)] if device else []))
    check = prediction_check.judge(SYNCS, ("sync-bound",), {REFERENCE: 4.0}, said, graded_on)
    assert (check.status, check.points, check.max_points, check.unmeasured) == (status, points, 10, 5)
    made_for, seen_on = ("a GPU", "a CPU") if graded_on == "cpu" else ("a CPU", "a GPU")
    assert f"not measured. Your prediction is for {made_for}, and this grade was made on {seen_on}." in check.reason
    result = Result("lab", "Lab", graded_on, [check], {}, {})
    assert (result.score, result.max_score, result.measured_max) == (points, 10, 5)
    other = prediction_check.judge(
        SYNCS, ("sync-bound",), {REFERENCE: 4.0}, said, "cpu" if graded_on == "cuda" else "cuda"
    )
    assert other.unmeasured == 0 and "Gain 1.1x is off." in other.reason


@pytest.mark.parametrize("name", labs.loops())
def test_the_page_says_how_a_prediction_is_judged(name):
    lab = labs.get(name)
    page = (Path(__file__).parents[1] / "labs" / name / f"{name}.ipynb").read_text(encoding="utf-8")
    text = "\n".join("".join(cell["source"]) for cell in json.loads(page)["cells"])
    assert f"You get half of the {lab.prediction.points:g} points for the cause and half for the gain. " in text
    assert prediction_check.RULE.format(factor=lab.prediction.factor) in text
    assert (prediction_check.MADE_FOR in text) == lab.scored_on_both


@pytest.mark.parametrize(
    "said, points", [("launch-bound", 10), ("compute-bound", 10), ("sync-bound", 5), ("", 5), (None, 5)]
)
def test_of_two_close_causes_either_is_right(said, points):
    lab = labs.get("3h_fit")
    causes = (lab.cause, *lab.close)
    check = prediction_check.judge(lab.prediction, causes, {REFERENCE: 8.0}, (("cause", said), ("gain", 8.0)))
    assert check.points == points


def test_a_wrong_cause_is_told_without_the_right_one():
    """And without a trace: on a CPU none shows a cause."""
    check = prediction_check.judge(SYNCS, ("sync-bound",), {}, (("cause", "input-bound"), ("gain", 2)))
    assert "Cause 'input-bound' is not what holds this loop back. " in check.reason
    assert "sync" not in check.reason and "trace" not in check.reason


def test_a_loop_that_waits_for_nothing_has_no_syncs_of_the_graders_own():
    """The step in which the harness reads the losses is recorded, and not counted."""
    source = "import torch\n\n\ndef train(job):\n    x = torch.ones(8)\n    while True:\n        x = x + 1\n        yield x.sum()\n"
    with running(source) as child:
        child.load()
        child.start(1)
        child.run(2)
        child.start_profiler()
        child.profile(3, "trace.json")
        data = child.fetch("trace.json", 1 << 24)
    from grader import trace

    recorded = trace.read_bytes(data, expect_gpu=False)
    counted, all_of_them = trace.metrics(recorded, count=3), trace.metrics(recorded)
    assert counted.steps == 3 and all_of_them.steps == 4
    assert counted.cpu_ops < all_of_them.cpu_ops  # the harness's own reading is in the last


BEHIND_WORKERS = """
import time

import torch
from torch.utils.data import DataLoader, Dataset

FIRST_S = 0
start = torch.profiler.profile.start


def slow_start(profiler):  # on a GPU it takes as long
    start(profiler)
    time.sleep(1)


torch.profiler.profile.start = slow_start


class Slow(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.ones(())


def train(job):
    for step, batch in enumerate(DataLoader(Slow(), num_workers=1, prefetch_factor=12)):
        if step == 0:
            time.sleep(FIRST_S)
        yield batch.mean()
"""


def test_a_profile_shows_the_wait_behind_workers_that_filled_their_queue_meanwhile():
    with warmed_up(BEHIND_WORKERS, 6) as each:
        each.profile(4, "trace.json")
        data = each.child.fetch("trace.json", 1 << 24)
    from grader import trace

    assert trace.metrics(trace.read_bytes(data, expect_gpu=False), count=4).data_wait > 0.5
    assert each.child.steps == len(each.losses)


@pytest.mark.slow
def test_a_loop_that_is_profiled_is_timed_when_its_queue_is_used_up():
    source = BEHIND_WORKERS.replace("FIRST_S = 0", "FIRST_S = 1")
    seen = look.profile(Submission(source), LAB, device="cpu")
    assert seen and not seen.message, seen
    assert seen.step_s > 0.045  # its worker needs 0.05 s a batch


# ---------------------------------------------------------------- hints


@pytest.mark.parametrize("name", labs.NAMES)
def test_hints_get_plainer(name):
    for check in labs.get(name).checks:
        if isinstance(check, Prediction):
            continue
        assert len(check.hints) == 3 and all(hint.endswith((".", "?")) for hint in check.hints), check.name
        assert not any("\n" in hint for hint in check.hints), check.name  # no code to paste


# ---------------------------------------------------------------- the starter's timeline


@pytest.mark.slow
def test_the_starters_timeline_is_recorded_once(monkeypatch, tmp_path):
    """However much slower this busy machine is the second time."""
    monkeypatch.setattr(starters, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(starters, "ALIKE", 100)
    first, second = (grade_cells(LAB.starter, plan=PLAN).timelines["before"] for _ in range(2))
    assert first["lanes"] and first | {"step_ns": second["step_ns"]} == second


@pytest.mark.parametrize("step_s, alike", [(0.105, True), (0.14, True), (0.16, False), (0.06, False)])
def test_a_timeline_holds_for_a_starter_as_fast(monkeypatch, tmp_path, step_s, alike):
    monkeypatch.setattr(starters, "cache_dir", lambda: tmp_path)
    assert starters.timeline(LAB, "cpu", 0.1, 4) is None
    starters.keep(LAB, "cpu", 0.1, 4, {"lanes": ["one"]})
    assert bool(starters.timeline(LAB, "cpu", step_s, 4)) == alike


@pytest.mark.parametrize("text", ["{", "[]", '{"of": 1}'])
def test_a_damaged_timeline_is_recorded_anew(monkeypatch, tmp_path, text):
    monkeypatch.setattr(starters, "cache_dir", lambda: tmp_path)
    starters.keep(LAB, "cpu", 0.1, 4, {"lanes": ["one"]})
    (file,) = tmp_path.rglob("*.json")
    file.write_text(text)
    assert starters.timeline(LAB, "cpu", 0.1, 4) is None


def test_another_starter_has_another_timeline(monkeypatch, tmp_path):
    monkeypatch.setattr(starters, "cache_dir", lambda: tmp_path)
    starters.keep(LAB, "cpu", 0.1, 4, {"lanes": ["one"]})
    assert starters.timeline(LAB, "cpu", 0.1, 4) and not starters.timeline(LAB, "cpu", 0.1, 2)  # of fewer steps
    monkeypatch.setattr(type(LAB), "starter", property(lambda self: "another"))
    assert starters.timeline(LAB, "cpu", 0.1, 4) is None


def test_another_version_of_the_grader_draws_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(starters, "cache_dir", lambda: tmp_path)
    starters.keep(LAB, "cpu", 0.1, 4, {"lanes": ["one"]})
    monkeypatch.setattr(starters, "version", lambda: "another")
    assert starters.timeline(LAB, "cpu", 0.1, 4) is None


@pytest.mark.parametrize("size, whole", [(4_000, True), (10_000_000, False)])
def test_an_error_s_message_is_whole_unless_it_is_a_flood(size, whole):
    source = f'def train(job):\n    raise RuntimeError("x" * {size} + " and what to do.")\n    yield\n'
    with pytest.raises(ChildError) as told, running(source) as child:
        child.load()
        child.start(1)
        child.run(1)
    assert told.value.message.endswith("and what to do.") == whole
    assert len(told.value.message) < 6_000 and ("[cut: " in told.value.message) != whole


def test_parameters_that_are_not_named_are_counted():
    assert some(list("abcde")) == list("abcde")
    assert ", ".join(some(list("abcdefg"))) == "a, b, c, d, e, and 2 more"
