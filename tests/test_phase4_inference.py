"""The lab 4e: requests in place of training steps, and looks at their answers in place of losses and weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import variants
from benchmarks import measured
from helpers import eventually, running, said

from grader import calibrate, labs, machine
from grader.checks import answers as answers_check
from grader.errors import UserError
from grader.grade import grade
from grader.labs.lab import Answers
from grader.look import peek
from grader.measure.blocks import Plan
from grader.result import FAIL, NOT_MEASURED, PASS, Result
from grader.sandbox.child_error import ChildError
from grader.sandbox.setting import Limits
from grader.submission import Submission
from grader.workloads import serving

NAME = "4e_inference"
LAB = labs.get(NAME)
CPU = LAB.forms["cpu"]
SHORT = Plan(block_s=0.2, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
SMALL = replace(CPU, options=CPU.options | {"texts": 2, "images": 4}, minimum_gain=None)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")


def answered(source: str, form=SMALL) -> Result:
    return grade(Submission(source), replace(LAB, forms={"cpu": form}), device="cpu", plan=SHORT)


def job(seed: int = 3) -> serving.Serving:
    return serving.make_job(seed, torch.device("cpu"), **SMALL.options)


# ---------------------------------------------------------------- requests


def test_requests_are_the_same_work_and_never_the_same():
    requests = job().requests
    some = [requests.request(n) for n in range(50)]
    for request in some:
        lengths = sorted(map(len, request.texts))
        bounds = np.repeat(SMALL.options["lengths"], SMALL.options["texts"])
        below = np.repeat([1, *SMALL.options["lengths"][:-1]], SMALL.options["texts"])
        assert all(b < length <= bound for b, length, bound in zip(below, lengths, bounds, strict=True))
        assert request.images.shape == (4, 16, 16, 3) and request.images.dtype == torch.uint8
    assert len({text for request in some for text in request.texts if len(text) > 16}) > 0.99 * 50 * 4
    assert len({request.images.numpy().tobytes() for request in some}) > 45
    again = job().requests.request(7)
    assert again.texts == some[7].texts and torch.equal(again.images, some[7].images)
    assert job(4).requests.request(7).texts != some[7].texts
    assert any(list(map(len, request.texts)) != sorted(map(len, request.texts)) for request in some)


def test_logits_differ_from_picture_to_picture():
    made = job()
    pictures = torch.cat([made.requests.request(n).images for n in range(20)])
    with torch.no_grad():
        logits = made.resnet.eval()(pictures.permute(0, 3, 1, 2).float().div(64).sub(2))
    assert 0.5 < logits.std(0).mean() < 2 and logits.mean().abs() < 1


# ---------------------------------------------------------------- looks


def look() -> serving.Look:
    return serving.Look(5, torch.device("cpu"), **SMALL.options)


def test_a_wrong_answer_changes_a_look_by_one_or_more_and_rounding_by_little():
    torch.manual_seed(0)
    scores, logits = 0.5 * torch.randn(6, 128), torch.randn(4, 100)
    scores[0, 16:] = 0  # a short text
    pictures, texts = torch.randn(300, 1, 100), 0.5 * torch.randn(300, 1, 128) * (torch.arange(128) < 16)
    right = [look()(n, (scores, logits)) for n in range(300)]
    size = lambda found: torch.stack([a - b for a, b in zip(found, right, strict=True)]).square().mean().sqrt()  # noqa: E731
    assert 1 < size([look()(n, (scores, torch.cat([pictures[n], logits[1:]]))) for n in range(300)]) < 2
    # of a text 16 bits keep more, so that what is wrong with it must not hide under the rounding of pictures
    assert 3 < size([look()(n, (torch.cat([texts[n], scores[1:]]), logits)) for n in range(300)]) < 6
    assert size([look()(n, (scores.bfloat16().float(), logits.bfloat16().float())) for n in range(300)]) < 0.04


def refused(source: str, requests: int, **options) -> ChildError:
    """What a loop is told that is asked for so many answers."""
    with running(source, form=SMALL, **options) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError) as raised:
            child.run(requests)
    return raised.value


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("scores", "must yield two tensors for each request"),
        (
            "scores, logits.tolist()",
            "logits must be a tensor of floating-point numbers of shape (4, 100), it is a list",
        ),
        ("scores[:2], logits", "scores must be a tensor of floating-point numbers of shape (6, 128), it is (2, 128)"),
        ("scores, logits.int()", "it is (4, 100), torch.int32"),
        ("scores, logits * float('nan')", "The answers to request 1 are not finite"),
    ],
)
def test_what_is_no_answer_is_named(answers, words):
    source = f"""
import torch


def serve(job):
    while True:
        scores, logits = torch.zeros(6, 128), torch.zeros(4, 100)
        yield {answers}
"""
    assert words in refused(source, 1).message


@pytest.mark.parametrize(("device", "ahead"), [("cpu", "0"), pytest.param("cuda", "01", marks=gpu)])
def test_no_process_holds_requests_that_are_to_come(device, ahead):
    """Whatever leads a loop to the harness: what is not there yet cannot be answered with others at once."""
    # in each turn; on a GPU one request is sent while it works on the one before
    source = """
import gc
import torch


def serve(job):
    harness = next(each for each in gc.get_objects() if type(each).__name__ == "Harness")
    for n, request in enumerate(job.requests, 1):
        print("held:", len(harness.service.keys) - n)
        yield torch.zeros(6, 128, device=job.device), torch.zeros(4, 100, device=job.device)
"""
    with running(source, form=SMALL, device=device) as child:
        child.load()
        child.start(1)
        child.run(3)
        child.run(2)
        child.start_profiler()
        child.profile(1, "trace.json")
        assert eventually(lambda: child.output().count("held:") == 8)
    held = child.output().replace("held:", "").split()
    # what a step takes is read from its trace: there it must not have been done with the one before
    assert set(held[:5]) == {*ahead} and set(held[5:]) == {"0"}, held


@gpu
def test_what_ends_a_gpus_work_is_named_while_an_answer_is_waited_for():
    source = """
import torch


def serve(job):
    for request in job.requests:
        logits = torch.zeros(4, 100, device=job.device)
        logits[torch.tensor([9], device=job.device)] = 1
        yield torch.zeros(6, 128, device=job.device), logits
"""
    error = refused(source, 3, device="cuda")
    assert error.kind != "timeout" and "device-side assert" in error.message + error.details


def test_answers_that_drip_are_not_waited_for_one_by_one():
    """All answers of a turn together have the time that it may take, and the message says which."""
    source = """
import time
import torch


def serve(job):
    for request in job.requests:
        time.sleep(0.1)
        yield torch.zeros(6, 128), torch.zeros(4, 100)
"""
    error = refused(source, 200, limits=Limits(step=3.0, first_step=3.0))
    assert error.kind in ("timeout", "crowded") and "gave no answer within 3 s" in error.message


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("other", "changed answers that it had given"),
        ("more", "sent more answers than there were requests"),
    ],
)
def test_what_was_told_of_an_answer_stays(told, words):
    """Else a loop could tell anything, get all requests of its turn for that, and answer them at once."""
    source = f"""
import gc
import torch


def serve(job):
    harness = next(each for each in gc.get_objects() if type(each).__name__ == "Harness")
    tell = harness.tell
    for request in job.requests:
        harness.tell = lambda value: (tell(value), tell(value))[1] if "{told}" == "more" else tell(value + 1)
        yield torch.zeros(6, 128), torch.zeros(4, 100)
"""
    assert words in refused(source, 1).message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def train(job):\n    yield 1\n", "defines no function `serve(job)`"),
        (
            "def serve(job):\n    return 1\n",
            "`serve(job)` is not a generator. It must `yield scores, logits` once for each request",
        ),
        ("def serve(job):\n    yield from ()\n", "job.requests never ends, so loop over it"),
    ],
)
def test_what_is_no_service_is_named(source, words):
    with running(source, form=SMALL) as child, pytest.raises(ChildError) as raised:
        child.load()
        child.start(1)
        child.run(1)
    assert words in raised.value.message


@pytest.mark.parametrize(
    ("take", "words"),
    [
        ("next(requests)", ""),
        ("next(requests), job.requests.request(n)", ""),  # the same one again
        ("[next(requests) for _ in range(4)]", "Request 1 was answered after 4 requests had been taken"),
        ("[next(requests) for _ in range(n + 1)]", "Request 2 was answered after 3 requests had been taken"),
        ("next(requests), job.requests.request(n + 1)", "Request 1 was answered after 2 requests had been taken"),
    ],
)
def test_a_request_is_answered_before_the_next_one_is_taken(take, words):
    """Some requests in one call are a service in which the first one waits for the last."""
    source = f"""
import torch


def serve(job):
    requests = iter(job.requests)
    for n in range(4):
        {take}
        yield torch.zeros(6, 128), torch.zeros(4, 100)
"""
    with running(source, form=SMALL) as child:
        child.load()
        child.start(1)
        if not words:
            child.run(3)
            return
        with pytest.raises(ChildError) as raised:
            child.run(3)
    assert words in raised.value.message and raised.value.line == 9


# the texts of request n, which the loop tries to have before request n - 1 is answered
SHOWS = """
import copy
import operator
import pickle

import torch

from grader.workloads import serving


def serve(job):
    requests, ahead = iter(job.requests), []
    for n in range(1000):
        request = next(requests)
        print(n, hash_of(request), request.texts in ahead, flush=True)
        try:
            ahead.append(({ahead}).texts)
        except (TypeError, AttributeError, ValueError) as error:
            print(error, flush=True)
        yield torch.zeros(6, 128), torch.zeros(4, 100)


def hash_of(request):
    return __import__("hashlib").sha256(b"".join(request.texts)).hexdigest()


def uncounted(requests):
    requests.taken = type("Taken", (), {{"value": 0}})()
    return requests


class Small(int):
    __gt__ = __lt__ = __add__ = __radd__ = lambda self, other: 0
"""


def shown(ahead: str, seed: int = 7) -> tuple[list[str], str]:
    """What each of some requests of two turns is known by, and why the loop was stopped."""
    with running(SHOWS.format(ahead=ahead), form=SMALL) as child:
        child.load()
        child.start(seed)
        stopped = ""
        try:
            for steps in (4, 4):
                child.run(steps)
        except ChildError as error:
            stopped = error.message
        lines = [line.split() for line in child.output().splitlines()]
    found = [line for line in lines if line[-1] in ("True", "False")]
    assert found, child.output()
    assert all(line[-1] == "False" for line in found), "requests were known before their time"
    return [line[1] for line in found], stopped


@pytest.mark.parametrize(
    ("ahead", "stopped"),
    [
        ("job.requests.request(n + 1)", True),
        ("uncounted(copy.copy(job.requests)).request(n + 1)", True),
        ("uncounted(copy.deepcopy(job.requests)).request(n + 1)", False),
        ("uncounted(pickle.loads(pickle.dumps(job.requests))).request(n + 1)", False),
        ("type(job.requests)(7, job.lengths, 2, 4, 16).request(n + 1)", False),
        (f"serving.make_job(7, job.device, **{SMALL.options}).requests.request(n + 1)", False),
        ("job.requests.request(-1)", False),
        ("job.requests.request(Small(n + 1))", True),
        ("next(iter(copy.copy(job.requests)))", False),
    ],
)
def test_no_request_is_known_before_the_last_one_is_answered(ahead, stopped):
    """Whoever knew some could answer them in one call."""
    assert ("had been taken" in shown(ahead)[1]) == stopped


def test_arms_of_one_grade_have_the_same_requests():
    some, again, other = (shown("None", seed)[0] for seed in (7, 7, 8))
    assert some == again and len(set(some + other)) == 16


def test_a_request_may_be_had_again_and_the_first_one_before_the_first_step():
    """To compile, for example. Each iterator begins at the beginning."""
    source = """
import torch


def serve(job):
    first = next(iter(job.requests))

    def answers():
        for n, request in enumerate(job.requests):
            assert (request.texts == first.texts) == (n == 0)
            assert job.requests.request(0).texts == first.texts
            yield torch.zeros(6, 128), torch.zeros(4, 100)

    return answers()
"""
    with running(source, form=SMALL) as child:
        child.load()
        child.start(1)
        child.run(3)
        child.run(3)


def test_a_worker_that_takes_requests_ahead_is_seen():
    source = """
import torch
from torch.utils.data import DataLoader, IterableDataset


class Ahead(IterableDataset):
    def __init__(self, requests):
        self.requests = requests

    def __iter__(self):
        return iter(self.requests)


def serve(job):
    for request in DataLoader(Ahead(job.requests), batch_size=None, num_workers=1):
        yield torch.zeros(6, 128), torch.zeros(4, 100)
"""
    with running(source, form=SMALL) as child, pytest.raises(ChildError, match="requests had been taken"):
        child.load()
        child.start(1)
        child.run(3)


@pytest.mark.slow
def test_what_a_request_is_drawn_from_reaches_no_other_process():
    source = """
import multiprocessing

import torch


def serve(job):
    asked, answer = multiprocessing.Pipe()

    def take():
        for n in range(2):
            asked.recv()
            job.requests.request(n)
            asked.send(n)

    multiprocessing.get_context("fork").Process(target=take).start()
    while True:
        answer.send("next")
        if not answer.poll(5):
            return
        answer.recv()
        yield torch.zeros(6, 128), torch.zeros(4, 100)
"""
    with running(source, form=SMALL) as child:
        child.load()
        child.start(1)
        child.run(1)
        with pytest.raises(ChildError):
            child.run(1)
        assert "Requests must be taken in the process that answers them" in child.output()


def test_a_child_that_reads_nothing_holds_nobody_up():
    """A request of ours can be more than a pipe takes."""
    source = "import torch\ndef serve(job):\n    while True:\n        yield torch.zeros(6, 128), torch.zeros(4, 100)\n"
    limits = Limits()
    with running(source, form=SMALL, limits=limits) as child:
        child.load()
        child.freeze()
        limits.load = 1.0
        with pytest.raises(ChildError, match="within 1 s"):
            child.ask("ready", more="than a pipe takes" * 100_000)


# ---------------------------------------------------------------- verdicts

WITHIN = Answers(steps=6, within=0.5)


@pytest.mark.parametrize(
    ("off", "status"),
    [
        ([0.1] * 40, PASS),
        ([0.1] * 39 + [1.2], PASS),  # one look alone can be far off by chance
        ([0.1] * 30 + [1.0] * 10, FAIL),  # honest until nobody looks any more
        ([0.1] * 33 + [1.0] * 6, FAIL),  # the last few as well
        ([0.9] * 6, FAIL),
    ],
)
def test_looks_are_compared_to_the_end(off, status):
    right = [10.0 * i for i in range(len(off))]
    result = answers_check.judge(WITHIN, right, [a + b for a, b in zip(right, off, strict=True)])
    assert result.status == status, result.reason


def test_only_what_both_have_answered_is_compared():
    result = answers_check.judge(WITHIN, [1.0] * 12, [1.0] * 500)
    assert result.status == PASS and result.evidence["requests"] == 12


# ---------------------------------------------------------------- the lab


def test_the_ladder_has_a_name_for_each_rung():
    names = [name for name, _ in measured.rungs(NAME)]
    assert len(set(names)) == len(names) and names[-1] == "the solution" and len(names) >= 7


def test_the_solution_gives_the_same_answers():
    result = answered(variants.solution(NAME))
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").status == NOT_MEASURED


def test_other_answers_earn_nothing():
    source, words = variants.wrongs(NAME)["in the order of their lengths"]
    result = answered(source)
    assert words in said(result) and result.score == 0
    assert FAIL in {check.status for check in result.checks if not check.max_points}


def test_there_is_no_spread_to_calibrate():
    with pytest.raises(UserError, match="trains nothing"):
        calibrate.measure_spread(LAB, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[NAME])
def test_what_is_another_service_is_named(what):
    source, words = variants.wrongs(NAME)[what]
    result = grade(Submission(source), LAB, device="cpu", plan=SHORT)
    assert words in said(result) and result.score == 0


@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    plain = replace(CPU, minimum_gain=None)
    for what, source in variants.faults(NAME).items():
        assert answered(source, plain).check("parity").status == FAIL, what
    for what, source in variants.honest_on_a_cpu(NAME).items():
        result = answered(source, plain)
        assert not result.fatal and result.check("parity").status == PASS, f"{what}: {said(result)}"


@pytest.mark.slow
def test_the_solution_answers_every_request():
    result = grade(Submission(variants.solution(NAME)), LAB, device="cpu", plan=SHORT)
    assert result.check("parity").status == PASS, said(result)
    assert "worst_beside_the_reference_solution" in result.check("parity").evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [
        "job.done > 30",  # right while the first requests are compared, and in the second hundred no longer
        "torch.autograd._profiler_enabled()",  # whatever is cheap, for the trace
    ],
)
def test_answers_that_are_wrong_later_are_found(when):
    served = "        yield scores, logits"
    source = variants.solution(NAME).replace(
        served,
        "        job.done = getattr(job, 'done', 0) + 1\n"
        f"        if {when}:\n            logits = logits.roll(1, 0)\n" + served,
    )
    result = grade(Submission(source), LAB, device="cpu", plan=SHORT)
    assert result.check("parity").status == FAIL and result.score == 0, said(result)


@pytest.mark.parametrize(("profiled", "steps"), [(1, 1), (None, 3)])
def test_long_steps_are_profiled_less_often(profiled, steps):
    lab = replace(LAB, forms={"cpu": replace(SMALL, profiled=profiled)})
    found = peek(Submission(variants.starter(NAME)), lab, device="cpu")
    assert not found.message and found.metrics.steps == steps


@gpu
def test_causes_on_a_gpu():
    starter, solution = (peek(Submission(which(NAME)), LAB) for which in (variants.starter, variants.solution))
    assert not starter.message and not solution.message, (starter.message, solution.message)
    before, after = starter.metrics, solution.metrics
    assert before.syncs > 80 and after.syncs <= 1
    assert before.launches > 2000 and after.launches <= 100
    assert before.half_share == 0 and after.half_share >= 0.9
    assert before.h2d_pinned == 0 and after.h2d_pinned >= 0.9


@gpu
def test_gains_on_a_gpu():
    result = grade(Submission(variants.solution(NAME)), LAB, device="cuda", plan=SHORT)
    assert result.check("parity").status == PASS, said(result)
    assert result.check("throughput").evidence["gain"] > 12, said(result)
