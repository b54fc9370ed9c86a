"""The GPU's own meter of energy."""

import math
import time

import pynvml
import pytest

from grader import machine, nvml

TICK_S, WATTS = 0.05, 400.0


@pytest.fixture
def counter(monkeypatch):
    """NVML's counter of a GPU that draws 400 W and says so every 50 ms."""
    begin = time.perf_counter()

    def millijoules(_):
        ticks = int((time.perf_counter() - begin) / TICK_S)
        return 1e3 * WATTS * TICK_S * ticks

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", millijoules)


def test_a_window_begins_and_ends_where_the_counter_moves(counter):
    slept = []

    def work():
        time.sleep(0.002)
        slept.append(1)

    used = nvml.used("a GPU", work, 0.2)
    assert used.joules % (WATTS * TICK_S) == 0 and used.joules >= WATTS * 0.2
    assert used.seconds >= 0.2 and 0 < used.calls < len(slept), "the calls before the first tick do not count"
    assert used.watts == used.joules / used.seconds


def test_a_counter_that_stands_still_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda _: 7_000)
    monkeypatch.setattr(nvml, "LONGEST_TICK_S", 0.01)
    assert nvml.used("a GPU", lambda: None, 0.01).joules == 0


def test_without_a_counter_there_are_seconds_and_no_joules():
    used = nvml.used(None, lambda: None, 0.01)
    assert math.isnan(used.joules) and math.isnan(used.watts) and used.seconds >= 0.01 and used.calls > 0


@pytest.mark.skipif(machine.has_gpu(), reason="this machine may have a meter")
def test_no_meter_without_a_gpu(capsys):
    from grader.frontends import lesson

    assert lesson.energy_meter() is None
    assert capsys.readouterr().out.startswith("NOT MEASURED: ")


@pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")
def test_a_gpu_at_work_draws_more_than_one_that_waits():
    import torch

    from grader.frontends import lesson

    gpu, a = lesson.energy_meter(), torch.randn(4096, 4096, device="cuda")
    if gpu is None:
        pytest.skip("this GPU counts no energy")

    def multiply():
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()

    waits = nvml.used(gpu, lambda: time.sleep(0.01), 1)
    works = nvml.used(gpu, multiply, 1)
    assert 0 < waits.watts < works.watts < 3_000
