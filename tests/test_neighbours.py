"""Other programs that keep the processors busy, or fill the memory, during a grade: never a wrong mark. (On the GPU: test_gpu.py.)"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from helpers import LAB, LIMITS, running
from hypothesis import given
from hypothesis import strategies as st
from test_phase4_own_loop import BEFORE, JOB

from grader import machine
from grader.frontends.compare import said
from grader.grade import grade
from grader.labs.lab import Lab
from grader.measure import calibration
from grader.measure.blocks import Plan, core_times, lost_since, usual
from grader.own.compare import compare
from grader.result import INCONCLUSIVE, PASS, CheckResult
from grader.submission import Submission

pytestmark = pytest.mark.usefixtures("nothing_left")

# Both train the same model. Computing takes longer when others want the processor; waiting does not.
COMPUTES = "end = time.thread_time() + {}\n        while time.thread_time() < end:\n            pass"
WAITS = "time.sleep({})"
PLAN = Plan(block_s=0.2, block_steps=2, min_pairs=3, max_pairs=5, profile_steps=2)


def loop(slow: str) -> str:
    return "import time\n" + LAB.starter.replace("        yield", f"        {slow}\n        yield")


class OtherStarter(Lab):
    starter = ""


def lab(starter: str, target: float) -> Lab:
    made = OtherStarter(**{field.name: getattr(LAB, field.name) for field in fields(LAB)})
    form = replace(LAB.forms["cpu"], minimum_gain=target)
    made = replace(made, forms={"cpu": form})
    type(made).starter = starter
    return made


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Three programs a processor that never rest, each in an autogroup of its own: Linux shares processors out among these."""
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command, start_new_session=True) for _ in range(3 * os.cpu_count())]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def graded(starter: str, submission: str, target: float, when: str) -> CheckResult:
    """`when` the neighbour is there: "always" or "later", from the second pair on."""
    with contextlib.ExitStack() as stack:
        if when == "always":
            stack.enter_context(busy())

        def progress(share: float, what: str) -> None:
            if when == "later" and what == "timing pair 2":
                stack.enter_context(busy())

        result = grade(
            Submission(loop(submission)),
            lab(loop(starter), target),
            device="cpu",
            plan=PLAN,
            limits=LIMITS,
            progress=progress,
        )
    assert not result.fatal, result.fatal
    return result.check("throughput")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["always", "later"])
def test_a_neighbour_that_slows_the_starter_gives_no_points(when):
    """Half the fix in truth, at most: 0.06 s of computing against 0.03 s of waiting; the target is 4x. The neighbour makes it 4x."""
    check = graded(COMPUTES.format(0.06), WAITS.format(0.03), target=4.0, when=when)
    assert check.points <= 0.6 * check.max_points, check


@pytest.mark.slow
def test_a_starter_that_was_faster_when_the_machine_was_calibrated(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "own_file", lambda: tmp_path / "calibration.json")
    calibration.store_gain(LAB, "cpu", {"gain": 2.0, "date": "2026-01-01", "starter_ms": 0.1})
    result = grade(Submission(LAB.starter), LAB, device="cpu", plan=PLAN, limits=LIMITS)
    assert [w for w in result.warnings if "took 0.1 ms when this machine was calibrated" in w], result.warnings


@pytest.mark.slow
@pytest.mark.parametrize("when", ["always", "later"])
def test_a_neighbour_that_slows_the_submission_is_not_its_fault(when):
    """More than the target in truth: 0.06 s of waiting against 0.02 s of computing."""
    check = graded(WAITS.format(0.06), COMPUTES.format(0.02), target=1.5, when=when)
    assert check.status in (PASS, INCONCLUSIVE), check


def test_time_in_which_the_grader_waits_for_a_processor_is_lost_too():
    """A block ends when the grader has read its reply: on a busy machine it waited longer for that than the loop did, and an honest
    submission "certainly" gained nothing."""
    cores = os.sched_getaffinity(0)
    with running(LAB.starter, LAB.forms["cpu"]) as child:
        os.sched_setaffinity(0, {min(cores)})
        programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
        try:
            lost = lost_since(child.processes)
            end = time.thread_time() + 0.1
            while time.thread_time() < end:
                pass
            share = lost()
        finally:
            os.sched_setaffinity(0, cores)
            for program in programs:
                program.kill()
                program.wait()
    assert share > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("body", "blamed"), [("while True: pass", False), ("time.sleep(1000)", True)])
def test_a_loop_that_others_held_up_is_not_blamed_for_being_late(body, blamed):
    """It had 0 points for compiling in more than 180 s, with a tenth of a core. One that sleeps is late by itself."""
    source = f"import time, torch\ndef train(job):\n    {body}\n    yield torch.ones(())\n"
    with busy():
        result = grade(Submission(source), LAB, device="cpu", plan=PLAN, limits=replace(LIMITS, first_step=10))
    said = result.fatal if blamed else result.disturbed
    assert "gave no loss within 10 s" in said
    assert ("But other programs kept it from a processor for" in said) != blamed


@pytest.mark.slow
def test_a_comparison_says_what_others_took(tmp_path):
    """Two loops that are the same seemed to be unequally fast, and nothing told that the machine was not free."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "loop.py").write_text(BEFORE)
    files = [tmp_path / name for name in ("loop.py", "loop.py", "job.py")]
    plan = replace(PLAN, min_pairs=2, max_pairs=2)
    with busy():
        found = compare(*files, device="cpu", plan=plan)
    told = [warning for warning in found.warnings if "Other programs took up to" in warning]
    assert len(told) == 1 and f"Note: {told[0]}" in said(found, ["loop.py", "loop.py"]), found.warnings


def test_memory_that_is_filled_is_no_fault_of_the_starter(monkeypatch):
    """What the system keeps of files is given up where programs, the submission's among them, fill the memory."""
    monkeypatch.setattr("grader.grading.gate.LEFT_MAIN_MEMORY", machine.free_memory() - (1 << 30))
    fills = "import mmap\n\nheld = mmap.mmap(-1, 2 << 30)\nfor page in range(0, len(held), mmap.PAGESIZE):\n    held[page] = 1\n\n"
    result = grade(Submission(fills + LAB.starter), LAB, device="cpu", plan=PLAN, limits=LIMITS)
    throughput = result.check("throughput")
    assert throughput.status == INCONCLUSIVE and "GB of memory are left" in throughput.reason, throughput


# ---------------------------------------------------------------- cores that strangers slow


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=40))
def test_usual_cores(times):
    """About as fast as the median of all, and there is always one."""
    found = usual(dict(enumerate(times)))
    slower = sum(time > 1.25 * min(times[core] for core in found) for time in times)
    faster = sum(time < 0.8 * max(times[core] for core in found) for time in times)
    assert found and max(slower, faster) <= len(times) / 2


def test_slow_cores_are_not_usual():
    assert usual({core: 1.8 if core in (1, 6, 7) else 1.0 + core / 100 for core in range(8)}) == [0, 2, 3, 4, 5]


def test_cores_are_looked_at_one_by_one():
    own = os.sched_getaffinity(0)
    times = core_times(own)
    assert times.keys() == own == os.sched_getaffinity(0) and min(times.values()) > 0
