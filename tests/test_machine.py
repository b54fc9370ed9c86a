"""What is read of machines that are not this one: their files and NVML's answers are as those of such a machine."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import labs, machine
from grader.errors import UserError
from grader.grade import grade
from grader.grading.forms import fitted, too_little_memory
from grader.measure import calibration
from grader.result import NOT_MEASURED
from grader.submission import solution

GB = 10**9


@pytest.fixture
def no_answer(monkeypatch):
    """A GPU, and what makes one of NVML's functions say that it does not know."""

    def unknown(name: str) -> None:
        def refuse(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        monkeypatch.setattr(pynvml, name, refuse)

    monkeypatch.setattr(machine, "_gpu", lambda: object())
    unknown("nvmlDeviceGetMigMode")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "a GPU")
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "1")
    return unknown


@pytest.fixture
def small_gpu(no_answer, monkeypatch):
    """A GPU of 80 GB, and what takes all of its memory but so many GB."""

    def leave(free: float, total: float = 80) -> None:
        memory = SimpleNamespace(free=free * GB, total=total * GB, used=(total - free) * GB)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: memory)

    no_answer("nvmlDeviceGetCurrentClocksEventReasons")
    no_answer("nvmlDeviceGetCpuAffinity")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda _: SimpleNamespace(gpu=0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 1)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetIndex", lambda _: 0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda _: object())
    monkeypatch.setattr(machine, "gpus", lambda: ["0"])
    return leave


@pytest.mark.parametrize("total", [24, 80])
def test_a_lab_that_does_not_fit_is_not_measured(small_gpu, total):
    """No loop is started, so none can fail: it is nobody's fault. Where others hold the memory it is measured later."""
    lab = measured_forms(labs.get("4b_nanogpt"), "")
    small_gpu(23.5, total)
    result = grade(solution(lab), lab)
    assert {check.status for check in result.checks} == {NOT_MEASURED} and not result.fatal and not result.score
    assert all(f"needs 37 GB of free GPU memory. 23.5 GB of {total}.0 GB" in each.reason for each in result.checks)
    assert bool(result.disturbed) == (total == 80)
    small_gpu(38)
    assert not too_little_memory(lab, "cuda")


def test_every_form_for_a_gpu_says_what_it_needs():
    for name in labs.loops():
        needed = [form.gpu_memory for form in labs.get(name).gpu_forms]
        assert 1e9 < needed[-1] <= needed[0] <= 80e9 and needed == sorted(needed, reverse=True)


def test_every_lab_has_a_form_for_a_card_of_8_gb_with_a_desktop_on_it():
    assert all(labs.get(name).gpu_forms[-1].gpu_memory <= 7 << 30 for name in labs.loops())


def measured_forms(lab, gpu="a GPU"):
    """The lab as it is when its smaller forms have been measured; with '' as before."""
    return replace(lab, smaller=tuple(replace(form, measured=gpu) for form in lab.smaller))


@given(name=st.sampled_from(labs.loops()), free=st.floats(0.1, 90), total=st.floats(0, 90), seen=st.booleans())
def test_the_largest_form_that_fits_and_was_measured_is_taken(name, free, total, seen):
    declared = measured_forms(labs.get(name), "a GPU" if seen else "")
    state = machine.GpuState(0, int(free * GB), int(max(free, total) * GB), False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "gpu_state", lambda count: state)
        chosen, why = fitted(declared, "cuda")
        lacks = too_little_memory(declared, "cuda")
    form, full = chosen.forms["cuda"], declared.forms["cuda"]
    fits = [each for each in declared.gpu_forms if each.gpu_memory <= state.free_bytes and (seen or each is full)]
    assert form is (fits[0] if fits else full) and bool(lacks) == (not fits)
    assert bool(why) == (form is not full) and (not why or f"In its {form.size} form" in why)
    assert chosen.form_key("cuda") == f"cuda {form.size}".rstrip() and chosen.form_key("cpu") == "cpu"
    assert chosen.forms.get("cpu") is declared.forms.get("cpu") and chosen.checks == declared.checks


def test_a_form_that_was_never_measured_is_taken_only_if_it_is_asked_for(small_gpu):
    """Honest work could lose to a guess."""
    lab = measured_forms(labs.get("4b_nanogpt"), "")
    small_gpu(7, 8)
    assert fitted(lab, "cuda") == (lab, "")
    assert "Its small form would fit, but was not measured on any GPU yet." in too_little_memory(lab, "cuda")
    asked = lab.sized("small")
    assert fitted(asked, "cuda") == (asked, "") and not too_little_memory(asked, "cuda")
    assert asked.forms["cuda"].options["layers"] == 6
    with pytest.raises(UserError, match=r"has no GPU form 'tiny'\. Its smaller ones are: mid, small"):
        lab.sized("tiny")


@pytest.mark.parametrize(
    "entry", ["[]", '"x"', '{"KEY": 5}', '{"KEY": {"gain": HUGE, "date": 1, "starter_ms": HUGE}}', "[" * 9999]
)
def test_a_calibration_that_cannot_be_read_is_none_and_can_be_made_again(entry, tmp_path, monkeypatch):
    lab, path = labs.get("3a_precision"), tmp_path / "calibration.json"
    monkeypatch.setattr(calibration, "own_file", lambda: path)
    monkeypatch.setattr(machine, "gpu_name", lambda: "a GPU")
    entry = entry.replace("KEY", machine.key("cuda")).replace("HUGE", "1" * 400)
    path.write_text(f'{{"3a_precision cuda": {entry}}}')
    assert calibration.reference_gain(lab, "cuda")[0] is None and calibration.starter_s(lab, "cuda") is None
    calibration.store_gain(lab, "cuda", {"gain": 5.0, "date": "today"}, path)
    assert calibration.reference_gain(lab, "cuda")[0] == 5.0


def test_what_is_calibrated_of_one_form_says_nothing_of_another(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "own_file", lambda: tmp_path / "calibration.json")
    monkeypatch.setattr(machine, "gpu_name", lambda: "a GPU")
    lab = labs.get("4b_nanogpt")
    calibration.store_gain(lab.sized("small"), "cuda", {"gain": 5.0, "date": "today"}, tmp_path / "calibration.json")
    assert calibration.reference_gain(lab.sized("small"), "cuda") == (5.0, "calibrated on this machine, today")
    assert calibration.reference_gain(lab, "cuda")[0] is None
    assert calibration.honest_spread(lab, "cuda") != calibration.honest_spread(lab.sized("small"), "cuda")
    assert "cuda small" in calibration.outcome_band(lab.sized("small"), "cuda")[1]


def test_a_gpu_without_a_number(no_answer):
    """As in WSL2, where one device file is for all GPUs."""
    no_answer("nvmlDeviceGetMinorNumber")
    assert machine.other_gpu_files() == set()


def test_a_gpu_that_shares_its_host_s_memory(no_answer):
    """It can say what it is, as for a grade on the CPU, though not how much memory it has."""
    no_answer("nvmlDeviceGetMemoryInfo")
    facts = machine.facts()
    assert facts["gpu"] == "a GPU" and "gpu_memory_gb" not in facts


def _written(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.mark.parametrize("version", [1, 2])
def test_memory_that_a_job_may_have(monkeypatch, tmp_path, version):
    """The limit of SLURM or Kubernetes lies on a group above that of the process."""
    process, groups = tmp_path / "proc", tmp_path / "cgroup"
    monkeypatch.setattr(machine, "PROCESS", process)
    monkeypatch.setattr(machine, "CGROUPS", groups)
    if version == 2:
        _written(process, cgroup="0::/job/step\n")
        _written(groups / "job/step", memory__max="max\n")
        stat = "anon 1000000000\nactive_file 500000000\ninactive_file 1500000000\n"
        _written(groups / "job", memory__max=f"{4 * GB}\n", memory__current=f"{3 * GB}\n", memory__stat=stat)
    else:
        _written(process, cgroup="5:cpu:/\n4:memory:/job/step\n")
        stat = "total_active_file 500000000\ntotal_inactive_file 1500000000\n"
        job = {"memory__limit_in_bytes": f"{4 * GB}\n", "memory__usage_in_bytes": f"{3 * GB}\n", "memory__stat": stat}
        _written(groups / "memory/job", **job)
    assert machine.allowed_memory() == 4 * GB
    assert machine.free_memory() == 3 * GB  # files hold two of those in use


def test_without_groups_the_machine_s_memory_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "PROCESS", tmp_path)
    assert machine.free_memory() <= machine.allowed_memory()
