"""What the lessons share: what this machine is, timing, a prediction beside its measurement, small pictures.

`lesson.seconds_per_step` is the stopwatch that `notebooks/1_instrumentation/1_throughput.ipynb` builds line by line."""

import atexit
import datetime
import os
import platform
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import matplotlib
import numpy as np
import psutil
import pynvml
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from grader import machine, paths
from grader.data import cache
from grader.nvml import joules
from grader.safe_text import cores_text
from grader.trace.words import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, plain_number

COLORS = [BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, INK]  # colour-blind safe, in the order of use
COUNTERS = {"SMs active": 2, "warps resident": 3, "tensor cores": 5, "memory bandwidth": 10}  # NVML's nvmlGpmMetricId_t
MEASURED = paths.DATA / "measured"  # what our machines gained, by machine and lab
TRACES = paths.DATA / "traces"  # recorded on an H200, for machines without a GPU

plt.switch_backend(matplotlib.get_backend())  # now: a notebook then shows figures that pyplot did not make, too
# Said of every use of the profiler by some releases of torch: https://github.com/pytorch/pytorch/issues/180348
warnings.filterwarnings("ignore", message=".*Profiler clears events")
# Said by some releases of what they do themselves when they compile: https://github.com/pytorch/pytorch/issues/166286,
# https://github.com/pytorch/ao/pull/4109
warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated")
# Said where the first thing that a backward pass does is a matrix product: its thread gets a context then, and all is well.
# https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/cuda/CublasHandlePool.cpp
warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")
# Lessons try more loader workers than a small machine has cores, to show what comes of it.
warnings.filterwarnings("ignore", message="This DataLoader will create")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # without a GPU the profiler reports that on standard error, each time

matplotlib.rcParams.update(
    {
        "axes.prop_cycle": plt.cycler(color=COLORS),
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "figure.figsize": (8, 3),
        "figure.dpi": 90,
        "font.size": 9.5,
        "grid.color": "#EDEDED",
        "legend.frameon": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


def here() -> None:
    """Print what the numbers of this notebook were measured on: device, driver, cores, versions, date."""
    facts = machine.facts()
    no_gpu = "no NVIDIA GPU: smaller experiments, on the CPU"
    print(f"{facts['gpu']}, driver {facts['driver']}" if facts["gpu"] else no_gpu)
    print(f"{facts['cpu']}, {cores_text(facts['cores'])}")
    print(f"torch {torch.__version__}, Python {machine.versions()['python']}, {datetime.date.today()}")


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronise() -> None:
    """Wait until the GPU has done all that was asked of it; nothing to wait for without one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def scratch_folder() -> Path:
    """A new folder beside the course's data (/tmp may be memory), gone with this kernel; what killed ones left here is deleted now."""
    mine = f"lesson-{re.sub(r'[^A-Za-z0-9.]', '_', platform.node())}"
    for left in cache.cache_dir().glob(f"{mine}-*-*"):
        owner = left.name.removeprefix(mine).split("-")[1]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{mine}-{os.getpid()}-", dir=cache.cache_dir()))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def seconds_per_step(step: Callable[[], object], steps: int, warmup: int = 3, repeats: int = 5) -> np.ndarray:
    """Time `step()`: `warmup` calls that do not count, then `repeats` blocks of `steps` calls, each begun and ended with
    the GPU idle. Returns the seconds a step of each block, shape (repeats,)."""
    for _ in range(warmup):
        step()
    times = []
    for _ in range(repeats):
        synchronise()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        synchronise()
        times.append((time.perf_counter() - begin) / steps)
    return np.array(times)


def nvml() -> Any:
    """NVML's handle of the GPU that torch calls cuda:0."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")


def energy_meter() -> Any | None:
    """NVML's handle of the GPU, for `grader.nvml.used`; None, with a line that says why, where it counts no energy."""
    if not torch.cuda.is_available():
        print("NOT MEASURED: joules need an NVIDIA GPU that counts its own")
        return None
    try:
        gpu = nvml()
        joules(gpu)
        return gpu
    except pynvml.NVMLError as error:
        print(f"NOT MEASURED: this GPU counts no joules ({error})")
        return None


class Counters:
    """The GPU's own counters over a `with` block: `values` maps each of COUNTERS to per cent. Empty, with a line that says
    why, where they cannot be had: they need Hopper or newer.

    https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlGpmFunctions.html"""

    def __enter__(self) -> Self:
        self.values: dict[str, float] = {}
        self._samples: list[Any] = []
        try:
            gpu = nvml()
            self._samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
            self._take = lambda sample: pynvml.nvmlGpmSampleGet(gpu, sample)
            self._take(self._samples[0])
        except (pynvml.NVMLError, AttributeError) as error:  # AttributeError: an old nvidia-ml-py
            self._give_up(error)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._samples:
            return
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(COUNTERS)
        request.sample1, request.sample2 = self._samples
        for i, metric in enumerate(COUNTERS.values()):
            request.metrics[i].metricId = metric
        try:
            self._take(self._samples[1])
            pynvml.nvmlGpmMetricsGet(request)
            self.values = {name: request.metrics[i].value for i, name in enumerate(COUNTERS)}
        except pynvml.NVMLError as error:
            self._give_up(error)
        for sample in self._samples:
            pynvml.nvmlGpmSampleFree(sample)

    def _give_up(self, error: Exception) -> None:
        print(f"no hardware counters here: {error}")
        for sample in self._samples:
            pynvml.nvmlGpmSampleFree(sample)
        self._samples = []


def compare(
    guess: float | str | None,
    measured: float | str,
    unit: str = "",
    how: str = "measured",
    *,
    many: float | str | None = None,
    because: str = "",
) -> None:
    """Print a prediction beside what was measured: the learner's `guess` (None for none), and the wrong one that `many` make,
    with `because`, the line that makes it natural. `how` the value was found, where that is another word: "recorded"."""

    def show(value: float | str) -> str:
        return value if isinstance(value, str) else f"{plain_number(value)} {unit}".strip()

    guesses = {"your guess": guess, "many guess": many}
    said = {words: value for words, value in guesses.items() if value is not None}
    line = "    ".join(f"{words}: {show(value)}" for words, value in [*said.items(), (how, measured)])
    first = next(iter(said.values()), "")
    if not isinstance(first, str) and not isinstance(measured, str) and first and measured:
        line += f"    ({'your ' if len(said) == 2 else ''}guess / {how} = {plain_number(first / measured)})"
    print(line)
    if because:
        print(f"why many guess that: {because}")


def bars(values: Mapping[str, float], unit: str, title: str = "") -> Axes:
    """Draw one horizontal bar a value, with its number. Call `plt.show()`, or let the cell end."""
    _, axes = plt.subplots(figsize=(8, 0.5 + 0.36 * len(values) + 0.25 * bool(title)))
    names = list(values)[::-1]
    drawn = axes.barh(
        names, [values[n] for n in names], color=[COLORS[i % len(COLORS)] for i in range(len(names))][::-1]
    )
    axes.bar_label(drawn, labels=[f"{plain_number(values[n])} {unit}" for n in names], padding=4)
    axes.margins(x=0.2)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    axes.set_title(title, loc="left", fontweight="bold")
    return axes


def lines(x: Sequence[float], values: Mapping[str, Sequence[float]], x_name: str, y_name: str, title: str = "") -> Axes:
    """Draw one line with dots for each named row of values, from 0 upwards. Call `plt.show()`, or let the cell end."""
    _, axes = plt.subplots()
    for (name, row), marker in zip(values.items(), "osD^vPX" * len(values), strict=False):
        axes.plot(x, row, marker=marker, label=name)
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontweight="bold")
    if len(values) > 1:
        axes.legend()
    return axes


def plain_log(axis: Axis) -> None:
    """Label a logarithmic axis (`axes.xaxis` or `axes.yaxis`, drawn already) in plain numbers, 1 2 5 10 and not 2 x 10^0."""
    low, high = sorted(axis.get_view_interval())
    if high < 5 * low:
        axis.set_major_locator(MaxNLocator(4))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high < 300 * low else LogLocator(numticks=5))
    axis.set_major_formatter(lambda value, _: plain_number(value))
    axis.set_minor_formatter(NullFormatter())
