"""GPUs before Ampere: what is decided by compute capability, loops of the course in fp16, and a GPU that is pretended.

What only a GPU shows is in `test_gpu.py`."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from helpers import LAB, running
from hypothesis import given
from hypothesis import strategies as st

from grader import calibrate, labs, machine
from grader.checks.trace import judge
from grader.classroom.store import Store
from grader.classroom.submissions import Job
from grader.devices import NO_MARKS, PRETEND, native, pretence
from grader.errors import UserError
from grader.grading.forms import NEVER_MEASURED, no_marks
from grader.grading.half import NO_16_BITS, hints_here, in_fp16, least_target, on_device, parity_here, says_bf16
from grader.grading.race import yardstick
from grader.kinds.kernel import without_bf16
from grader.labs.lab import Lab, TraceCheck
from grader.measure.calibration import LEAST_GAIN
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult
from grader.submission import Submission, solution
from grader.trace import Metrics

LOOPS = labs.loops()
SOURCES = {f"{name}, {what}": source for name in LOOPS for what, source in (("starter", labs.get(name).starter), ("solution", solution(labs.get(name)).source))}  # fmt: skip
IN_BF16 = [what for what, source in SOURCES.items() if in_fp16(source) != source]
CAPABILITIES = st.tuples(st.integers(5, 12), st.integers(0, 9))
UNITS = ("fp16", "bf16", "tf32", "flash")


def lacks(capability):
    return [what for what in UNITS if what not in native(capability)]


# ---------------------------------------------------------------- decisions by capability


@given(CAPABILITIES, CAPABILITIES)
def test_a_newer_gpu_lacks_nothing_that_an_older_one_has(one, other):
    older, newer = sorted((one, other))
    assert native(older) <= native(newer)
    assert ("bf16" in native(newer)) == ("tf32" in native(newer)) == ("flash" in native(newer)) == (newer >= (8, 0))


@given(CAPABILITIES, st.sampled_from([check for name in LOOPS for check in labs.get(name).trace]))
def test_only_what_a_gpu_cannot_show_is_not_measured(capability, check):
    adapted, cannot = on_device(check, lacks(capability))
    if capability >= (8, 0):
        assert (adapted, cannot) == (check, "")
    in_16_bits = check.metric in ("half_share", "fp16_share", "tensor_core_share.yes")
    assert cannot == (NO_16_BITS if in_16_bits and capability < (7, 0) else "")
    assert (adapted.points, adapted.name, adapted.metric) == (check.points, check.name, check.metric)
    assert (adapted.wanted == check.wanted) == (capability >= (8, 0) or check.metric != "flash_share")


@given(
    CAPABILITIES,
    st.sampled_from([check for name in LOOPS for check in labs.get(name).checks if hasattr(check, "hints")]),
)
def test_a_hint_of_bf16_says_what_an_older_gpu_has(capability, check):
    here = hints_here(check.hints, lacks(capability))
    for hint, declared in zip(here, check.hints, strict=True):
        assert hint.startswith(declared) and (capability < (8, 0) or hint == declared)
        assert capability >= (8, 0) or "bf16" not in hint or "fp16" in hint or "float16" in hint


def test_no_solution_of_the_course_begins_at_a_scale_that_leaves_out_a_step():
    """3a did on a pretended T4: its first gradients are infinite at 65,536."""
    for what, source in SOURCES.items():
        for scaler in re.findall(r"GradScaler\(.*\)", in_fp16(source)):
            assert "init_scale" in scaler, what


@given(st.sampled_from([FAIL, PASS, INCONCLUSIVE]), CAPABILITIES)
def test_a_training_that_is_not_the_same_hears_of_the_scaler_where_there_is_no_bf16(status, capability):
    check = CheckResult("parity", "Same training", status, 0, 0, "Off.", "Do this." * (status == FAIL))
    told = "init_scale" in parity_here(check, lacks(capability)).hint
    assert told == (status == FAIL and capability < (8, 0))


def test_the_card_and_the_page_say_what_an_older_gpu_needs():
    speaking = {name for name in labs.NAMES if says_bf16(labs.get(name))}
    assert {
        "2g_healthy",
        "3a_precision",
        "3c_shapes",
        "3f_attention",
        "3h_fit",
        "3j_communication",
        "4b_nanogpt",
    } <= speaking
    assert not speaking & {"1a_stopwatch", "2a_workers", "2e_syncs", "3d_tiny_ops", "3m_fp16"}
    assert "the untouched loop runs in fp16" in says_bf16(labs.get("3c_shapes"))
    assert "any fused attention counts" in says_bf16(labs.get("3f_attention"))
    assert "the untouched loop runs in fp16" not in says_bf16(labs.get("4d_trainer")), "its loop says bf16=False"


@given(share=st.floats(0, 1), capability=st.sampled_from([(7, 0), (7, 5), (8, 0), (9, 0)]))
def test_where_there_are_no_flash_kernels_any_fused_one_counts(share, capability):
    check = next(each for each in labs.get("3f_attention").trace if each.metric == "flash_share")
    adapted, _ = on_device(check, lacks(capability))
    assert judge(adapted, Metrics(flash_share=share), [], 1.0).status == (
        "PASS" if share >= 0.9 or capability < (8, 0) else "FAIL"
    )
    none = judge(adapted, Metrics(), [], 1.0)  # no fused kernel at all
    assert none.status == "FAIL" and "holds no fused attention kernel" in none.reason


@given(CAPABILITIES, st.sampled_from(LOOPS))
def test_no_target_of_newer_gpus_is_asked_of_older_ones(capability, name):
    for form in labs.get(name).gpu_forms:
        least, why = least_target(form, lacks(capability))
        assert least == form.minimum_gain if capability >= (8, 0) else least <= form.minimum_gain
        assert least >= min(form.minimum_gain, LEAST_GAIN) and bool(why) == (least != form.minimum_gain)


def test_the_yardstick_says_where_its_target_comes_from(monkeypatch):
    monkeypatch.setattr(machine, "gpu_lacks", lambda: lacks((7, 5)))
    monkeypatch.setattr(machine, "gpu_name", lambda: "Tesla T4")
    lab = labs.get("4b_nanogpt")
    found = yardstick(lab, "cuda", Submission(lab.starter))
    assert found.target == LEAST_GAIN and "`grader calibrate` measures what this GPU can gain" in found.source
    healthy = labs.get("2g_healthy")
    for source in (healthy.starter, in_fp16(healthy.starter)):
        assert yardstick(healthy, "cuda", Submission(source)).untouched
    monkeypatch.setattr(machine, "gpu_lacks", list)
    assert yardstick(lab, "cuda", Submission(lab.starter)).target == lab.forms["cuda"].minimum_gain
    assert not yardstick(healthy, "cuda", Submission(in_fp16(healthy.starter))).untouched


def test_a_kernel_is_timed_in_a_type_that_the_gpu_has():
    lab = labs.get("3i_triton")
    other = without_bf16(lab)
    types = {sizes["type"] for check in other.cases for sizes in check.sizes.values()}
    assert types == {"float16", "float32"} and other.forms["cuda"].timed["type"] == "float16"
    assert other.forms["cpu"].timed is None and other.max_score == lab.max_score
    assert [len(check.sizes) for check in other.cases] == [len(check.sizes) for check in lab.cases]


# ---------------------------------------------------------------- the course's loops in fp16


def test_nothing_asks_whether_bf16_can_be_emulated():
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    asked = [
        path
        for path in files
        if path.endswith((".py", ".ipynb", ".md"))
        and path != "tests/test_older_gpus.py"
        and re.search(r"(?<!`)\bis_bf16_supported\(\)(?! counts emulation)", Path(path).read_text(encoding="utf-8"))
    ]
    assert not asked


@pytest.mark.parametrize("what", SOURCES)
def test_every_loop_of_the_course_has_a_form_without_bf16(what):
    made = in_fp16(SOURCES[what])
    ast.parse(made)
    assert in_fp16(made) == made
    if "GradScaler" not in SOURCES[what]:  # else it asks the GPU itself
        assert not re.search(r"bfloat16|\bbf16=", made)
    trains = what not in ("4e_inference, solution", "4d_trainer, starter", "4d_trainer, solution")
    if what in IN_BF16 and trains:  # each gradient is scaled, and each step divides by the scale
        assert made.count("scaler = ") == 1 and "loss.backward()" not in made and "optimizer.step()" not in made
        assert made.count("scaler.step(optimizer)") == made.count("scaler.update()") == 1


def losses(source, form):
    with running(source, form) as child:
        child.load()
        child.start(1)
        return child.run(3)[1]


@pytest.mark.parametrize("what", [what for what in IN_BF16 if what.endswith("solution") and what[:2] in ("3c", "3h")])
def test_a_loop_in_fp16_is_the_same_training(what):
    """On a CPU autocast is off and the scaler is on."""
    form = labs.get(what.partition(",")[0]).forms["cpu"]
    assert losses(in_fp16(SOURCES[what]), form) == pytest.approx(losses(SOURCES[what], form), rel=1e-4)


def test_beside_an_older_gpu_a_cpu_is_calibrated_with_the_solution_as_it_is(monkeypatch):
    monkeypatch.setattr(machine, "gpu_lacks", lambda: lacks((7, 5)))
    monkeypatch.setattr(calibrate, "quiet_here", lambda: None)
    source = "import torch\n\ndef train(job):\n    raise ValueError(torch.bfloat16)\n    yield\n"
    assert in_fp16(source) != source
    monkeypatch.setattr(calibrate, "solution", lambda lab: Submission(source))
    with pytest.raises(UserError, match=r"ValueError .*: torch\.bfloat16"):
        calibrate.measure_gain(LAB, "cpu")


# ---------------------------------------------------------------- a GPU that is pretended


@given(st.integers(1, 12), st.integers(0, 9), st.floats(0.5, 999).map(lambda value: round(value, 1)))
def test_a_gpu_can_be_pretended(major, minor, memory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PRETEND, f"{major}.{minor},{memory}GiB")
        found = pretence()
        assert found.capability == (major, minor) and found.total == int(memory * 2**30)
        assert f"{major}.{minor}" in found.name


@pytest.mark.parametrize("text", ["7.5", "16GiB", "7.5,16GB", "7.5,0GiB", "75,16GiB", "7.5,16GiB;", "T4", "²5.0,1GiB"])
def test_what_cannot_be_read_is_said(monkeypatch, text):
    monkeypatch.setenv(PRETEND, text)
    with pytest.raises(UserError, match="write a compute capability and the memory"):
        pretence()


def test_nothing_is_pretended_by_itself(monkeypatch):
    monkeypatch.delenv(PRETEND, raising=False)
    assert pretence() is None


def test_the_machine_is_seen_as_pretended(monkeypatch):
    memory = SimpleNamespace(free=120 * 2**30, total=141 * 2**30, used=2**30)
    monkeypatch.setenv(PRETEND, "7.5,16GiB")
    monkeypatch.setattr(machine, "_gpu", lambda: object())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: memory)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda _: SimpleNamespace(gpu=0))
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "1")
    monkeypatch.setattr(machine, "gpus", lambda: ["0"])
    assert machine.gpu_lacks() == ["bf16", "tf32", "flash"]
    assert machine.gpu_name() == machine.facts()["gpu"] == "a pretended GPU of capability 7.5 with 16 GiB"
    assert machine.facts()["gpu_memory_gb"] == 17.2
    state = machine.gpu_state()
    assert (state.free_bytes, state.total_bytes) == (15 * 2**30, 16 * 2**30)
    memory.free = 2**30  # what others leave is no more than that
    assert machine.gpu_state().free_bytes == 2**30


def test_points_of_a_guess_or_a_pretence_are_no_marks(monkeypatch):
    monkeypatch.delenv(PRETEND, raising=False)
    lab = labs.get("3a_precision")
    guess = replace(lab, forms={"cuda": replace(lab.forms["cuda"], measured="")})
    assert not no_marks(lab, "cuda") and no_marks(guess, "cuda") == [NEVER_MEASURED]
    monkeypatch.setenv(PRETEND, "7.5,16GiB")
    assert no_marks(lab, "cuda") == [NO_MARKS] and not no_marks(lab, "cpu")


def test_a_grade_of_a_pretended_gpu_is_kept_for_no_class(tmp_path):
    store, job = Store(tmp_path), Job("3a_precision", Submission("x = 1"))
    record = {"machine": "m", "result": {"lab": "3a_precision", "disturbed": "", "warnings": [NO_MARKS]}}
    with pytest.raises(UserError, match="These points are no marks"):
        store.put(job, record)
    assert not [*tmp_path.rglob("*.json")]
    record["result"]["warnings"] = []
    assert store.put(job, record) and [*tmp_path.rglob("*.json")]


def test_a_child_sees_the_pretended_gpu():
    """As far as it can be seen where there is none; in a process of its own, for it stays so."""
    code = """
import os, torch
from grader.sandbox.pretended import pretend
pretend((7, 5), 16 << 30)
assert torch.cuda.get_device_capability() == (7, 5) and "7.5" in torch.cuda.get_device_name()
assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"
torch.backends.cuda.enable_flash_sdp(True)
with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.CUDNN_ATTENTION]):
    assert not torch.backends.cuda.flash_sdp_enabled() and not torch.backends.cuda.cudnn_sdp_enabled()
assert torch.backends.cuda.mem_efficient_sdp_enabled() and not torch.backends.cuda.flash_sdp_enabled()
with torch.autocast("cpu", torch.bfloat16):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
"""
    environment = {name: value for name, value in os.environ.items() if name != PRETEND}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=environment)


def test_nothing_is_pretended_on_a_cpu(monkeypatch):
    """The form for a CPU is measured as ever, and nothing is said of another GPU."""
    monkeypatch.setenv(PRETEND, "7.5,16GiB")
    source = "import torch\n\ndef train(job):\n    while True:\n        yield torch.ones(())\n"
    with running(source) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [1.0]


def test_every_trace_check_of_a_gpu_before_ampere_can_be_passed():
    """With what that GPU has: fp16 on tensor cores, and the memory-efficient attention."""
    best = {"half_share": 1.0, "fp16_share": 1.0, "flash_share": 0.0}
    for name in LOOPS:
        lab = labs.get(name)
        assert isinstance(lab, Lab)
        for check in lab.trace:
            adapted, cannot = on_device(check, lacks((7, 5)))
            assert isinstance(adapted, TraceCheck) and not cannot
            if check.metric in best:
                passes = judge(adapted, replace(Metrics(), **{check.metric: best[check.metric]}), [], 1.0)
                assert passes.status == "PASS", (name, check.name)
