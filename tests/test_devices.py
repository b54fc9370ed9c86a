"""What is known of GPUs: names, formats, where the figures come from."""

import os
import resource
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import machine
from grader.devices import DATA_SHEETS, PEAKS, keep, measured_here, native, peaks

# As torch and nvidia-smi give them.
BEFORE_AMPERE = """Tesla P100-PCIE-12GB, Tesla P100-PCIE-16GB, Tesla P100-SXM2-16GB, Tesla V100-PCIE-16GB, Tesla V100-PCIE-32GB,
Tesla V100-SXM2-16GB, Tesla V100-SXM2-32GB, Tesla V100S-PCIE-32GB, Tesla T4"""
AMPERE = """NVIDIA A10, NVIDIA A10G, NVIDIA A100-PCIE-40GB, NVIDIA A100-SXM4-40GB, NVIDIA A100 80GB PCIe, NVIDIA A100-SXM4-80GB,
NVIDIA RTX A6000, NVIDIA GeForce RTX 3060, NVIDIA GeForce RTX 3060 Ti, NVIDIA GeForce RTX 3070, NVIDIA GeForce RTX 3070 Ti,
NVIDIA GeForce RTX 3080, NVIDIA GeForce RTX 3080 Ti, NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 3090 Ti"""
LATER = """NVIDIA L4, NVIDIA L40S, NVIDIA RTX 6000 Ada Generation, NVIDIA GeForce RTX 4060, NVIDIA GeForce RTX 4060 Ti,
NVIDIA GeForce RTX 4070, NVIDIA GeForce RTX 4070 SUPER, NVIDIA GeForce RTX 4070 Ti, NVIDIA GeForce RTX 4070 Ti SUPER,
NVIDIA GeForce RTX 4080, NVIDIA GeForce RTX 4080 SUPER, NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 5060,
NVIDIA GeForce RTX 5060 Ti, NVIDIA GeForce RTX 5070, NVIDIA GeForce RTX 5070 Ti, NVIDIA GeForce RTX 5080,
NVIDIA GeForce RTX 5090, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe,
NVIDIA H200, NVIDIA GH200 480GB, NVIDIA GH200 144G HBM3e, NVIDIA B200, AMD Instinct MI300X"""
OLD, MIDDLE, NEW = (" ".join(names.split()).split(", ") for names in (BEFORE_AMPERE, AMPERE, LATER))


@pytest.mark.parametrize("name", [*OLD, *MIDDLE, *NEW])
def test_a_device_is_found_with_the_formats_that_it_has(name):
    found = peaks(name)
    assert found and found.fp32
    assert (found.bf16 is None) == (found.tf32 is None) == (name in OLD)
    assert (found.half is None) == ("P100" in name)
    assert name in PEAKS or (found.fp8 is None) == (name not in NEW)
    rates = [rate for rate in (found.fp32, found.tf32, found.half, found.fp8) if rate]
    assert rates == sorted(rates)  # a shorter format is never slower
    assert rates[0] > 8e12 and rates[-1] < 5e15 and (found.memory is None or 2e11 < found.memory < 1e13)


# As NVML gives them: parts of a GPU, laptops' and other countries' ones share a known name's beginning, and no more.
OTHERS = """NVIDIA A10-8Q, NVIDIA A10-24C, NVIDIA A10G-24Q, GRID T4-16Q, GRID V100D-8Q, NVIDIA A100-4C, NVIDIA A100-SXM4-40GB MIG 1g.5gb,
NVIDIA H100 80GB HBM3 MIG 3g.40gb, NVIDIA H200 MIG 1g.18gb, NVIDIA A16-4Q, NVIDIA L4-6Q, NVIDIA L40S-48Q, NVIDIA L40, NVIDIA T4G,
NVIDIA GeForce RTX 3060 Laptop GPU, NVIDIA GeForce RTX 4070 Laptop GPU, NVIDIA GeForce RTX 4090 Laptop GPU,
NVIDIA GeForce RTX 5090 Laptop GPU, NVIDIA GeForce RTX 2080 with Max-Q Design, NVIDIA GeForce RTX 4090 D, NVIDIA GeForce RTX 5090 D,
NVIDIA GeForce RTX 5090 D v2, NVIDIA GeForce RTX 4080 SUPER D, NVIDIA GeForce RTX 3050, NVIDIA GeForce GTX 1650, NVIDIA H100 NVL,
NVIDIA H200 NVL, NVIDIA H20, NVIDIA H800, NVIDIA A800-SXM4-80GB, NVIDIA A100X, NVIDIA GH200 120GB, NVIDIA GB200, NVIDIA GB10,
NVIDIA B200 MIG 1g.23gb, NVIDIA B300 SXM6 AC, Tesla V100-SXM3-32GB, Tesla V100-FHHL-16GB, Tesla P4, Tesla T40 24GB,
NVIDIA RTX 6000, NVIDIA RTX PRO 6000 Blackwell Server Edition, NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition,
NVIDIA RTX A6000-48Q, NVIDIA RTX A6000 Laptop GPU, NVIDIA RTX 5000 Ada Generation Laptop GPU, Quadro RTX 6000, NVIDIA Graphics Device,
Orin, AMD Instinct MI300X VF, AMD Instinct MI325X"""


@pytest.mark.parametrize("name", " ".join(OTHERS.split()).split(", "))
def test_another_device_is_not_taken_for_one_that_is_known(name):
    assert peaks(name) is None


@given(
    st.sampled_from([*OLD, *MIDDLE, *NEW]),
    st.sampled_from(["", " ", "GRID ", "NVIDIA ", "NVIDIA GeForce "]),
    st.one_of(
        st.from_regex(r"(-[0-9]{1,2}[QCAB]| MIG [1-7]g\.[0-9]{1,3}gb| Laptop GPU| Ti| SUPER| D)?", fullmatch=True),
        st.text(max_size=4),
    ),
)
def test_a_name_is_the_whole_name(name, before, behind):
    whole = before + name + behind
    assert (peaks(whole) is not None) == (whole in {*OLD, *MIDDLE, *NEW})


@pytest.fixture
def divided(monkeypatch):
    """NVML's answers on an H100 that is divided (MIG), for the whole of it and for its slices; the first place is empty."""

    def unknown(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def slice_at(gpu, place):
        if place != 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "slice"

    names = {"whole": "NVIDIA H100 80GB HBM3", "slice": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}
    memory = {"whole": 85 * 10**9, "slice": 10 * 10**9}
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda _: "whole",
        "nvmlDeviceGetHandleByUUID": lambda uuid: {"MIG-1": "slice", "GPU-1": "whole"}[uuid],
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda gpu: "whole" if gpu == "slice" else unknown(),
        "nvmlDeviceGetMigMode": lambda gpu: [1, 1] if gpu == "whole" else unknown(),
        "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_at,
        "nvmlDeviceGetName": names.__getitem__,
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=memory[gpu], free=memory[gpu], used=0),
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: (9, 0) if gpu == "whole" else unknown(),
        "nvmlSystemGetDriverVersion": lambda: "580",
        "nvmlDeviceGetUtilizationRates": unknown,
        "nvmlDeviceGetCurrentClocksEventReasons": unknown,
        "nvmlDeviceGetCpuAffinity": unknown,
        "nvmlDeviceGetIndex": lambda gpu: 0 if gpu == "whole" else unknown(),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    machine._gpu.cache_clear()
    yield
    machine._gpu.cache_clear()


@pytest.mark.parametrize("visible", [None, "0", "GPU-1", "MIG-1"])
def test_a_slice_of_a_gpu_is_not_the_whole_one(divided, monkeypatch, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    facts = machine.facts()
    assert facts["gpu"] == "NVIDIA H100 80GB HBM3 MIG 1g.10gb" and facts["gpu_memory_gb"] == 10
    assert machine.gpu_capability() == (9, 0) and peaks(machine.gpu_name()) is None
    with pytest.raises(RuntimeError, match=r"A slice of a GPU .* Use a whole GPU, or --device cpu"):
        machine.gpu_state()


def test_what_was_measured_comes_first():
    for name, measured in PEAKS.items():
        sheet = DATA_SHEETS[name]
        assert peaks(name) is measured and measured.measured and not sheet.measured
        # nothing exceeds the sheet, or comes to less than two thirds of it
        for rate in ("half", "tf32", "fp32", "memory"):
            assert 0.67 * getattr(sheet, rate) < getattr(measured, rate) <= getattr(sheet, rate)


# float32 on the CUDA cores, TFLOP/s, as huggingface.js has it (NVIDIA_SKUS, MIT licence): a second source for cores and clocks
HUB = """3060 12.74, 3060 Ti 16.2, 3070 20.31, 3070 Ti 21.75, 3080 Ti 34.1, 3090 35.58, 3090 Ti 40, 4060 15.11, 4060 Ti 22.06, 4070 29.15,
4070 SUPER 35.48, 4070 Ti 40.09, 4070 Ti SUPER 44.1, 4080 48.7, 4080 SUPER 52.2, 4090 82.58, 5060 19.18, 5060 Ti 23.7, 5070 30.84,
5070 Ti 43.94, 5080 56.28, 5090 104.8"""


@pytest.mark.parametrize("row", " ".join(HUB.split()).split(", "))
def test_cores_and_clock_of_a_card_are_those_of_a_second_source(row):
    card, _, rate = row.rpartition(" ")
    assert peaks(f"NVIDIA GeForce RTX {card}").fp32 == pytest.approx(float(rate) * 1e12, rel=0.003)


@pytest.mark.parametrize("card, fp32, tf32, half, fp8", [("RTX 4060", 15.11, 15.11, 30.23, 60.46)])
def test_rates_by_format_count_no_sparsity_and_sum_up_in_fp32(card, fp32, tf32, half, fp8):
    found = peaks(f"NVIDIA GeForce {card}")
    told = [found.fp32, found.tf32, found.half, found.fp8]
    assert told == pytest.approx([rate * 1e12 for rate in (fp32, tf32, half, fp8)], rel=0.003)


def test_each_data_sheet_is_named():
    assert all(sheet.source and not sheet.measured for sheet in DATA_SHEETS.values())


# Peak rates with fp32 accumulation as NVIDIA's white papers print them, TFLOP/s: what cores and clock are held against.
@pytest.mark.parametrize(
    "name, fp32, tf32, half",
    [
        ("NVIDIA GeForce RTX 3070", 20.3, 20.3, 40.6),
        ("NVIDIA GeForce RTX 3090", 35.6, 35.6, 71),
        ("NVIDIA GeForce RTX 4090", 82.6, 82.6, 165.2),
        ("NVIDIA GeForce RTX 5090", 104.8, 104.8, 209.5),
        ("NVIDIA RTX A6000", 38.7, 77.4, 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 91.1, 182.1, 364.2),
    ],
)
def test_rates_from_cores_and_clock_are_those_of_the_white_papers(name, fp32, tf32, half):
    found = peaks(name)
    assert [found.fp32, found.tf32, found.half] == pytest.approx([fp32 * 1e12, tf32 * 1e12, half * 1e12], rel=0.006)


@pytest.mark.parametrize(
    "capability, has",
    [
        ((6, 0), set()),
        ((7, 5), {"fp16"}),
        ((8, 0), {"fp16", "bf16", "tf32", "flash"}),
        ((8, 9), {"fp16", "bf16", "tf32", "flash", "fp8"}),
        ((12, 0), {"fp16", "bf16", "tf32", "flash", "fp8"}),
    ],
)
def test_what_a_capability_has(capability, has):
    assert native(capability) == has


RATES = {"half": 61e12, "tf32": None, "fp32": 7.4e12, "memory": 0.24e12, "pinned_copy": 12e9}


def test_what_was_measured_on_this_machine_is_kept_and_comes_before_the_sheet(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path))
    sheet = peaks("Tesla T4")
    assert measured_here("Tesla T4") is None and not sheet.measured
    path = keep("Tesla T4", (7, 5), RATES)
    keep("another", (9, 0), RATES)
    own = peaks("Tesla T4")
    assert own.measured and (own.half, own.fp32, own.memory) == (61e12, 7.4e12, 0.24e12)
    assert own.tf32 is None and own.bf16 is None and own.capability == (7, 5)
    assert peaks("NVIDIA L4") is DATA_SHEETS["NVIDIA L4"]
    keep("NVIDIA H200", (9, 0), RATES)
    assert peaks("NVIDIA H200") is PEAKS["NVIDIA H200"]  # ours was measured with care
    for damage in ("", "[]", "{", '{"Tesla T4": 3}', '{"Tesla T4": {"capability": [7, 5], "fp32": "x"}}', "\x00"):
        path.write_text(damage)
        assert peaks("Tesla T4") is DATA_SHEETS["Tesla T4"]


def test_what_cannot_be_kept_costs_nothing_that_was_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path))
    path = keep("Tesla T4", (7, 5), RATES)
    before = path.read_bytes()
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, most[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError):
            keep("another", (9, 0), RATES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("damage", [{"fp32": None}, {"half": -1.0}, {"memory": float("nan")}, {"half": float("inf")}])
def test_a_rate_that_cannot_be_is_not_believed(monkeypatch, tmp_path, damage):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path))
    keep("Tesla T4", (7, 5), RATES | damage)
    assert measured_here("Tesla T4") is None
