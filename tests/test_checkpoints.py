"""Checkpoints on a slow drive: what it takes, when a write is done, and how a grade judges what lies there."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch
import variants
from helpers import assert_told_apart, said, untimed

from grader import labs
from grader.checks import checkpoints as check
from grader.grade import grade
from grader.labs.lab import Checkpoints, Lab
from grader.measure.blocks import Plan
from grader.result import FAIL, PASS, Result
from grader.sandbox import drive_server
from grader.sandbox.drive import Drive, Written
from grader.submission import Submission
from grader.workloads import checkpoints, drive
from tests import adversaries

NAME = "2j_checkpoint"
LAB = labs.get(NAME)
SHORT = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
BPS = 1e6
STATE = {"a": torch.arange(6.0).view(2, 3), "b": torch.full((25_000,), 0.5)}  # 0.1 s


@pytest.fixture
def served(tmp_path):
    with Drive(tmp_path / drive.NAME, "", 0.0, write_bps=BPS) as server:
        yield server, checkpoints.Checkpoints(str(tmp_path / drive.NAME))


def written(server: Drive, folder) -> Written:
    folder.mkdir()
    return server.written(folder)


# ---------------------------------------------------------------- the drive


def test_a_file_has_what_was_saved_under_its_final_name(served, tmp_path):
    server, mine = served
    mine.save("partial", STATE)
    assert written(server, tmp_path / "before") == Written((), (), {}, 0)
    mine.rename("partial", "step-8")
    found = written(server, tmp_path / "after")
    assert found.steps == (8,) and found.direct == () and found.least == found.files[8].stat().st_size
    read = safetensors.numpy.load_file(found.files[8])
    assert read.keys() == STATE.keys() and all((read[name] == tensor.numpy()).all() for name, tensor in STATE.items())


def test_a_write_takes_its_time_whoever_writes_beside_it(served):
    _, mine = served
    began = time.monotonic()
    mine.save("one", STATE)
    assert time.monotonic() - began >= 0.1
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: mine.save(f"at once {n}".replace(" ", "-"), STATE), range(3)))
    assert time.monotonic() - began >= 0.3, "one link for all"


def test_the_first_and_the_last_are_kept(served, tmp_path):
    server, mine = served
    for step in range(1, 8):
        mine.save("partial", {"a": torch.tensor(float(step))})
        mine.rename("partial", f"step-{step}")
    found = written(server, tmp_path / "kept")
    assert found.steps == tuple(range(1, 8)) and list(found.files) == [1, 2, 6, 7]
    assert safetensors.numpy.load_file(found.files[6])["a"] == 6


@pytest.mark.parametrize(
    "asks",
    [
        lambda mine: mine.rename("nothing", "step-1"),
        lambda mine: (mine.save("partial", STATE), mine.rename("partial", "../step-1")),
        lambda mine: (mine.save("partial", STATE), mine.rename("partial", "step-01")),
        lambda mine: [mine.save(f"partial-{n}", {"a": torch.ones(1)}) for n in range(drive_server.MAX_UNNAMED + 1)],
        lambda mine: drive.ask(mine.drive, b"+999999999999 partial\n") or mine.rename("partial", "step-1"),
        lambda mine: drive.read(mine.drive, "/etc/passwd"),
    ],
)
def test_anything_else_is_refused(served, tmp_path, asks):
    server, mine = served
    with pytest.raises(OSError):
        asks(mine)
    mine.save("partial-0", {"a": torch.ones(1)})  # it still serves
    assert written(server, tmp_path / "kept").steps == ()


def test_a_file_has_no_final_name_before_the_drive_has_it(tmp_path):
    """Whoever renames it on another connection has not waited for the link."""
    with ThreadPoolExecutor(1) as pool, Drive(tmp_path / drive.NAME, "", 0.0, write_bps=1e3) as server:
        path = str(tmp_path / drive.NAME)
        mine = checkpoints.Checkpoints(path)
        writing = pool.submit(drive.ask, path, b"+100000 partial\n", bytes(100_000))  # one part, of 100 s
        for _ in range(20):
            with pytest.raises(OSError):
                mine.rename("partial", "step-8")
            time.sleep(0.05)
        assert written(server, tmp_path / "kept").steps == () and not writing.done()


def test_what_is_written_under_a_final_name_is_told(served, tmp_path):
    server, mine = served
    mine.save("step-3", STATE)
    assert written(server, tmp_path / "kept").direct == (3,)


def test_only_fp32_is_saved(served):
    with pytest.raises(ValueError, match="float32"):
        served[1].save("partial", {"a": torch.ones(2, dtype=torch.bfloat16)})


def test_a_drive_that_takes_nothing_refuses(tmp_path):
    (tmp_path / "files").mkdir()
    with Drive(tmp_path / drive.NAME, tmp_path / "files", 0.0), pytest.raises(OSError):
        checkpoints.Checkpoints(str(tmp_path / drive.NAME)).save("partial", STATE)


# ---------------------------------------------------------------- the check


def states(*steps: int) -> dict[int, dict[str, np.ndarray]]:
    """A run in which both tensors move by the same in each step."""
    return {n: {"a": np.full(4, 1 + n, np.float32), "b": np.full((2, 2), -n, np.float32)} for n in steps}


def lying(folder, files: dict[int, dict[str, np.ndarray]], steps=None, direct=()) -> Written:
    folder.mkdir(exist_ok=True)
    for n, state in files.items():
        safetensors.numpy.save_file(state, folder / str(n))
    kept = {n: folder / str(n) for n in files}
    least = min((file.stat().st_size for file in kept.values()), default=0)
    return Written(tuple(steps or files), tuple(direct), kept, least)


@pytest.fixture
def judged(tmp_path):
    usual = lying(tmp_path / "starter", states(8, 16))

    def judge(files, steps=24, saved=None, **other):
        return check.judge(Checkpoints(), 8, usual, lying(tmp_path / "mine", files, saved, **other), steps)

    return judge


def test_right_checkpoints_pass_and_the_last_may_be_late(judged):
    assert judged(states(8, 16, 24)).status == judged(states(8, 16)).status == PASS
    assert judged(states(8), steps=23).status == PASS and judged({}, steps=15).status == PASS


@pytest.mark.parametrize("late", [1, 3, 8])
@pytest.mark.parametrize("at", [8, 16])
def test_a_tensor_of_a_later_step_is_found(judged, late, at):
    torn = states(8, 16)
    torn[at]["b"] = states(at + late)[at + late]["b"]
    result = judged(torn)
    assert (result.status == FAIL) == (late > 8 * Checkpoints().within)
    assert result.status == PASS or f"In step-{at}, 1 of 2 tensors are not as they were" in result.reason


def test_what_else_is_wrong_is_named(judged, tmp_path):
    def reason(*args, **named):
        result = judged(*args, **named)
        assert result.status == FAIL and result.reason.startswith("Nobody could go on")
        return result.reason

    assert "step-16 is not on the drive" in reason(states(8, 24))
    late = judged(states(8))  # two are on the way, as with a queue of two
    assert "step-16 is not on the drive after step 24, though it may come at most 8 steps late" in late.reason
    assert "wait until it's written" in late.hint
    assert "step-8 was written under its own name" in reason(states(8, 16), direct=[8])
    assert "step-12 was saved" in reason(states(8, 12, 16))
    again = lying(tmp_path / "m", states(8, 16), steps=[8, 16, 8])
    usual = lying(tmp_path / "s", states(8, 16))
    assert "once each" in check.judge(Checkpoints(), 8, usual, again, 24).reason
    other = states(8, 16)
    other[8]["c"] = other[8].pop("b")
    assert "step-8 has no b" in reason(other)
    later = states(8, 16, 24)
    del later[24]["b"]
    assert "bytes, and each of the untouched loop's has" in reason(later, steps=32)
    other = states(8, 16)
    other[8]["a"] = other[8]["a"].astype(np.float64)
    assert "another shape or type" in reason(other)
    nan = states(8, 16)
    nan[16]["a"][0] = np.nan
    assert "In step-16, 1 of 2" in reason(nan)


def test_what_is_saved_twice_is_found_long_after_the_first_ones(judged):
    """Buffers that nobody fills any more: of the right size, in the right order."""
    kept = states(8, 16, 72, 80)
    steps = range(8, 88, 8)
    assert judged(kept, steps=88, saved=steps).status == PASS
    kept[80]["b"] = kept[72]["b"]
    result = judged(kept, steps=88, saved=steps)
    assert result.status == FAIL and "step-80 has the b of step-72" in result.reason
    kept[80]["b"] = kept[72]["b"] + np.float32([[0, 0], [0, 1]])  # marked as new, and no copy of anything
    assert "step-80 has the b of step-72" in judged(kept, steps=88, saved=steps).reason


@pytest.mark.parametrize("made", [(8,), ()])
def test_a_starter_that_has_not_come_as_far_stops_nobody(tmp_path, made):
    usual, mine = lying(tmp_path / "s", states(*made)), lying(tmp_path / "m", states(8, 16, 24))
    assert check.judge(Checkpoints(), 8, usual, mine, 32).status == PASS


def test_a_file_of_anything_is_no_checkpoint(tmp_path):
    mine = lying(tmp_path / "m", states(8, 16))
    mine.files[8].write_bytes(b"\x80\x04cos\nsystem\n" * 10)
    result = check.judge(Checkpoints(), 8, lying(tmp_path / "s", states(8, 16)), mine, 24)
    assert result.status == FAIL and "step-8 cannot be read" in result.reason


# ---------------------------------------------------------------- the lab


def graded(source: str, lab: Lab = LAB) -> Result:
    return grade(Submission(source), lab, device="cpu", plan=SHORT)


@pytest.mark.slow
@pytest.mark.parametrize("which", [variants.starter, variants.solution])
def test_checkpoints_of_starter_and_solution_are_right(which):
    result = graded(which(NAME))
    assert result.check("parity").status == result.check("checkpoints").status == PASS, said(result)
    assert result.check("checkpoints").evidence["checkpoints"] >= 2


@pytest.mark.slow
def test_what_waits_to_be_written_at_the_end_of_a_block_is_told():
    """A drive so slow that a loop which waits for it takes longer for that than for its steps."""
    slow = replace(LAB.forms["cpu"], options=LAB.forms["cpu"].options | {"write_bps": 2e6})
    lab = replace(LAB, forms={"cpu": slow})
    source = {each.name: each for each in adversaries.corpus()}["writes_checkpoints_unseen"].source(NAME)
    plan = replace(SHORT, block_steps=32)
    result = grade(Submission(source), lab, device="cpu", plan=plan)
    assert result.check("parity").status == PASS and result.check("checkpoints").status == FAIL, said(result)
    assert "At the end of a timed block" in result.check("checkpoints").reason and not result.check("throughput").points


@pytest.mark.parametrize(("steps", "saved"), [(16, 1), (23, 1), (24, 2)])
def test_one_may_be_on_the_way_at_the_end_of_a_block(steps, saved):
    assert check.too_late(8, steps, saved) is check.too_late(8, 15, 0) is None
    late = check.too_late(8, steps, saved - 1)
    assert late and f"{saved - 1} of {saved} checkpoints" in late.reason


@pytest.mark.slow
def test_faults_are_rejected_and_honest_forms_are_not():
    lab = untimed(LAB)
    assert_told_apart(variants.faults(NAME), variants.honest_on_a_cpu(NAME), lambda source: graded(source, lab))
