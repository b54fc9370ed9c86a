"""What only a GPU can show. Skipped, and said so, where there is none."""

import contextlib
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import variants

from grader import labs, machine
from grader.checks.plausible import least_step_s
from grader.devices import NO_MARKS, PEAKS, PRETEND
from grader.grade import grade
from grader.grading.forms import HELD_BY_OTHERS
from grader.grading.half import in_fp16
from grader.look import peek
from grader.measure.blocks import QUICK
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS
from grader.submission import Submission

gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")

# NVML's utilisation is that of the last second at most (nvmlUtilization_t): only then is a neighbour to be seen
NEIGHBOUR = """
import time, torch
a = torch.randn(4096, 4096, device="cuda")
seen = time.monotonic() + 1
while True:
    a @ a
    torch.cuda.synchronize()
    if seen and time.monotonic() > seen:
        print("busy", flush=True)
        seen = None
"""


@contextlib.contextmanager
def neighbour(program: str = NEIGHBOUR):
    """Another program that keeps the GPU busy."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "busy\n"
        yield
    finally:
        process.kill()
        process.wait()


def graded(source: str, plan=QUICK):
    result = grade(Submission(source), labs.get("3a_precision"), plan=plan)
    return result, result.check("throughput")


@gpu
def test_a_neighbour_that_is_there_before_the_grade():
    with neighbour():
        result, throughput = graded(variants.solution("3a_precision"))
    assert throughput.status == INCONCLUSIVE and throughput.points == 0, throughput
    assert "another program" in throughput.reason
    assert result.score == 0


@gpu
def test_a_neighbour_that_comes_in_the_middle():
    plan = replace(QUICK, min_pairs=8, max_pairs=8)
    found, came = [], threading.Event()

    def come(share: float, what: str) -> None:
        if what == "timing pair 2" and not came.is_set():
            came.set()
            stack.enter_context(neighbour())

    with contextlib.ExitStack() as stack:
        lab = labs.get("3a_precision")
        found = grade(Submission(variants.solution(lab.name)), lab, plan=plan, progress=come)
    assert found.check("throughput").status == INCONCLUSIVE, found.check("throughput")
    assert found.check("throughput").points == 0


@gpu
def test_a_neighbour_that_comes_and_goes():
    """The pair that it disturbed is measured again."""
    here: list[threading.Timer] = []

    def come_and_go(share: float, what: str) -> None:
        if what == "timing pair 2" and not here:
            stack.enter_context(neighbour())
            here.append(threading.Timer(4.0, stack.close))
            here[0].start()

    lab = labs.get("3a_precision")
    with contextlib.ExitStack() as stack:
        plan = replace(QUICK, min_pairs=3, max_pairs=8)
        result = grade(Submission(variants.solution(lab.name)), lab, plan=plan, progress=come_and_go)
        here[0].join()
    throughput = result.check("throughput")
    assert throughput.status in (PASS, INCONCLUSIVE), throughput
    if throughput.status == PASS:
        assert throughput.evidence["pairs_left_out"] >= 1, throughput
        assert [w for w in result.warnings if "don't count, because the GPU was busy" in w], result.warnings


HOARDER = """
import torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - {leave}, dtype=torch.uint8, device="cuda")
print("busy", flush=True)
import time
time.sleep(600)
"""


@gpu
def test_too_little_free_memory():
    with neighbour(HOARDER.format(leave=4 << 30)):
        _, throughput = graded(variants.solution("3a_precision"))
    assert throughput.status == NOT_MEASURED and HELD_BY_OTHERS in throughput.reason, throughput


@gpu
def test_memory_that_a_neighbour_took_in_the_middle():
    """The submission then finds none for itself; that is not its fault."""
    source = variants.solution("3a_precision").replace(
        "        yield",
        "        held = torch.empty(6 << 30, dtype=torch.uint8, device=job.device)\n"
        "        del held\n        torch.cuda.empty_cache()  # each step needs it anew\n        yield",
    )

    def come(share: float, what: str) -> None:
        if what == "timing pair 1":
            stack.enter_context(neighbour(HOARDER.format(leave=1 << 30)))

    with contextlib.ExitStack() as stack:
        result = grade(Submission(source), labs.get("3a_precision"), plan=QUICK, progress=come)
    assert "another program took" in result.disturbed, result
    assert result.check("throughput").status == INCONCLUSIVE


@gpu
def test_peek_counts_what_a_gpu_step_does():
    lab = labs.get("2a_workers")
    starter = peek(Submission(lab.starter), lab)
    assert not starter.output  # what is shown as printed by the submission was not printed by our own profiler
    assert starter.metrics.loads_in_main == 64
    assert starter.metrics.h2d_pinned == 0
    fixed = peek(Submission(variants.solution(lab.name)), lab)
    assert fixed.metrics.loads_in_main == 0
    assert fixed.metrics.h2d_pinned == 1
    assert fixed.metrics.syncs < starter.metrics.syncs


@gpu
@pytest.mark.skipif(machine.gpu_name() not in PEAKS, reason="this GPU's peak is not known")
def test_a_rate_that_the_gpu_cannot_have_is_rejected():
    lab = labs.get("3a_precision")
    form = replace(lab.forms["cuda"], flops=1e15)  # as if a step had to do a hundred times as much
    result = grade(Submission(lab.starter), replace(lab, forms={"cuda": form}), plan=QUICK)
    assert result.check("throughput").status == FAIL
    assert "needs at least" in result.check("throughput").reason


def test_the_shortest_possible_step():
    assert least_step_s("NVIDIA H200", 799e12) == 1
    assert least_step_s("some other GPU", 799e12) is None  # nobody else's peak
    assert least_step_s("NVIDIA H200", None) is None


SEEN = """
import torch

def train(job):
    assert torch.cuda.get_device_capability() == (7, 5)
    assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] == 8 << 30
    assert not torch.cuda.is_bf16_supported(including_emulation=False)
    ones = torch.ones(8, 8, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert (ones @ ones).dtype == torch.float32
    with torch.autocast("cuda", torch.float16):
        assert (ones @ ones).dtype == torch.float16
    assert torch.compile(lambda x: (x * 2).sin() + x)(ones).isfinite().all()
    torch.set_float32_matmul_precision("high")
    a, b = torch.randn(2, 512, 512, device="cuda").double()
    far = ((a.float() @ b.float()).double() - a @ b).norm() / (a @ b).norm()
    assert far < 1e-5, far  # TF32 is off by 3e-4
    try:
        torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("as pretended")
    while True:
        yield torch.ones((), device="cuda")
"""


@gpu
def test_loops_see_a_gpu_that_is_pretended(monkeypatch):
    monkeypatch.setenv(PRETEND, "7.5,8GiB")
    seen = peek(Submission(SEEN), labs.get("2e_syncs"), profiled=False)
    assert not seen.message and "as pretended" in seen.output, seen


@gpu
def test_fp16_with_a_scaler_is_the_whole_fix_on_a_gpu_before_ampere(monkeypatch):
    monkeypatch.setenv(PRETEND, "7.5,60GiB")
    lab = labs.get("3f_attention")
    result = grade(Submission(in_fp16(variants.solution(lab.name))), lab)
    assert result.warnings[0] == NO_MARKS and "capability 7.5" in result.machine["gpu"]
    judged = [check for check in result.checks if check.name != "prediction"]
    assert {check.status for check in judged} == {PASS}, judged
