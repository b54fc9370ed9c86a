"""Facts about this machine, and whether it is free to measure on. No torch: NVML and the operating system answer."""

import contextlib
import glob
import importlib.metadata
import math
import os
import platform
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import pynvml

from grader import nvml
from grader.cores import CAN_CHOOSE, Unit, cut, flat, parse, shares, usable, written
from grader.devices import native, pretence
from grader.errors import UserError

# Thermal and hardware-slowdown bits of nvmlClocksEventReasons. Power capping is normal under load and not among them.
_THROTTLING = 0x20 | 0x40 | 0x08  # SwThermalSlowdown, HwThermalSlowdown, HwSlowdown
PROCESS, CGROUPS, CPUS = Path("/proc/self"), Path("/sys/fs/cgroup"), Path("/sys/devices/system/cpu")
CORES = "GRADER_CORES"  # in a worker's environment: its cores, "0-3,8"; nobody divides them once more
# where in its cores a process begins that may have some of them only: containers of one host do not know of each other
_SOMEWHERE = random.random()
BUSY_PERCENT = 5  # utilisation above which a GPU on which we run nothing is in someone else's use


@lru_cache(maxsize=1)
def _gpu() -> Any:
    """NVML's handle of the GPU that CUDA's device 0 is, or None."""
    try:
        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return nvml.handle("0" if visible is None else visible.split(",")[0].strip())
    except pynvml.NVMLError:
        return None


def _seen() -> Any:
    """NVML's handle of what CUDA's device 0 is, a slice of it where it is divided."""
    return nvml.seen(_gpu(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def _first(count: int) -> list[Any]:
    """NVML's handles of CUDA's first `count` devices, fewer where there are fewer."""
    return [_gpu(), *(nvml.handle(name) for name in gpus()[1:count])] if has_gpu() else []


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not has_gpu():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(n) for n in range(pynvml.nvmlDeviceGetCount())]
    return [name.strip() for name in visible.split(",") if name.strip()]


def other_gpu_files() -> set[str]:
    """The device files of the GPUs that are not CUDA's device 0: what a loop that is graded on one GPU need not open."""
    if not has_gpu():
        return set()
    try:
        own = f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(_gpu())}"
    except pynvml.NVMLError:  # WSL2, which has one device file for all
        return set()
    return {path for path in glob.glob("/dev/nvidia[0-9]*") if path != own}


def has_gpu() -> bool:
    return _gpu() is not None


def gpu_name() -> str | None:
    pretended = pretence()
    return (pretended.name if pretended else str(pynvml.nvmlDeviceGetName(_seen()))) if has_gpu() else None


def gpu_capability() -> tuple[int, int]:
    """That of this machine's GPU, which must be there, or of the one that is pretended."""
    pretended = pretence()
    return pretended.capability if pretended else pynvml.nvmlDeviceGetCudaComputeCapability(_gpu())


def gpu_lacks() -> list[str]:
    """Of what `devices.native` tells of, what this machine's GPU has no units for; [] without a GPU."""
    return [what for what in ("fp16", "bf16", "tf32", "flash") if has_gpu() and what not in native(gpu_capability())]


def cpu_name() -> str:
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    # arm64 has numbers, by which a Grace is another one than a Graviton
    numbers = [found[name] for name in ("CPU implementer", "CPU part") if name in found]
    return found.get("model name") or " ".join([platform.processor() or platform.machine(), *numbers])


# ---------------------------------------------------------------- which cores are a grade's

ASKED = "as --cores or cores= says"
_held: ContextVar[tuple[frozenset[int], str] | None] = ContextVar("cores", default=None)  # of this thread, and why


def own_cores(gpus: int) -> contextlib.AbstractContextManager[None]:
    """Keep this thread, and all that it starts, on the `share` of CUDA's first `gpus` GPUs, or on the cores it is kept on already."""
    return kept_on(*share(gpus))


@contextlib.contextmanager
def kept_on(cores: Iterable[int], why: str) -> Iterator[None]:
    """Keep this thread, and all that it starts, on these cores. why: as `facts` says it."""
    kept, before = frozenset(cores), usable()
    token = _held.set((kept, why))
    try:
        _move(kept)
        yield
    finally:
        _move(before)
        _held.reset(token)


def _move(cores: frozenset[int]) -> None:
    if CAN_CHOOSE:
        os.sched_setaffinity(0, cores)


def held_cores() -> frozenset[int]:
    """Those that this thread is kept on, whatever another process did to it since; else those that it may use."""
    held = _held.get()
    return held[0] if held else usable()


def share(gpus: int) -> tuple[frozenset[int], str]:
    """The cores of a grade on CUDA's first `gpus` GPUs, 0 for one on the CPU, and why it has these."""
    # a GPU's share, so that grades on several GPUs at once do not meet, though none knows of another. Cores that somebody chose
    # for this process (`taskset`, SLURM, a class's pool) are not divided; a container's are
    if held := _held.get():
        return held
    allowed = usable()
    if chosen := _chosen(allowed):
        cores, why = cut(_units(allowed), quota(), _SOMEWHERE), "those that it was started on"
    elif gpus and has_gpu():
        cores = flat(gpu_shares()[:gpus])
        why = (
            f"the share of {gpus} of the host's GPUs in {len(allowed)}"
            if gpus > 1
            else f"its GPU's share of {len(allowed)}"
        )
    else:
        cores, why = cut(_units(allowed), quota(), _SOMEWHERE), f"some of {len(allowed)}"
    if not chosen and len(allowed) == len(set(cores)):
        why = "all"
    elif quota() < len(allowed):
        why += f"; its container has the time of {quota():.4g}"
    return frozenset(cores), why


def gpu_shares() -> list[tuple[int, ...]]:
    """The cores of each GPU that this process may use, in CUDA's order: equal shares among all GPUs of the host, near ones first."""
    allowed = usable()
    ours = [int(pynvml.nvmlDeviceGetIndex(nvml.handle(name))) for name in gpus()]  # places among all of the host
    # chosen for this process, and so for its GPUs alone
    sharing = ours if _chosen(allowed) else [*range(pynvml.nvmlDeviceGetCount())]
    dealt = shares(_units(allowed), [_near(n, allowed) for n in sharing])
    own = dict(zip(sharing, dealt, strict=True))
    return [tuple(cut(own[n], quota() / len(sharing), _SOMEWHERE)) for n in ours]


def cpu_shares(count: int) -> list[tuple[int, ...]]:
    """The cores that this process may use in `count` equal shares."""
    allowed = usable()
    dealt = shares(_units(allowed), [allowed] * count)
    return [tuple(cut(own, quota() / count, _SOMEWHERE)) for own in dealt]


def _chosen(allowed: frozenset[int]) -> bool:
    """Whether somebody chose these cores for this process."""
    if os.environ.get(CORES) or _held.get():
        return True
    try:  # in a container its first process has all of the container's
        return not allowed >= os.sched_getaffinity(1)
    except (OSError, AttributeError):  # macOS has no such call
        return len(allowed) < (os.cpu_count() or 1)


def _near(index: int, allowed: frozenset[int]) -> frozenset[int]:
    """The cores next to a GPU; all of them where the driver does not tell, as in some virtual machines."""
    try:
        words = pynvml.nvmlDeviceGetCpuAffinity(pynvml.nvmlDeviceGetHandleByIndex(index), max(allowed) // 64 + 1)
    except pynvml.NVMLError:
        return allowed
    return frozenset(core for core in allowed if words[core // 64] >> core % 64 & 1) or allowed


def _units(cores: frozenset[int]) -> list[Unit]:
    """These cores, the threads of one together, package by package: https://docs.kernel.org/admin-guide/cputopology.html"""
    found: dict[Unit, int] = {}
    left = set(cores)
    while left:
        core, package, threads = min(left), 0, set[int]()
        with contextlib.suppress(OSError, ValueError):  # not every virtual machine tells
            folder = CPUS / f"cpu{core}" / "topology"
            threads = parse((folder / "thread_siblings_list").read_text())
            package = int((folder / "physical_package_id").read_text())
        unit = {core} | left & threads
        found[tuple(sorted(unit))] = package
        left -= unit
    return sorted(found, key=lambda unit: (found[unit], unit))


def quota() -> float:
    """How many cores' time this process and all that shares its container may have; inf for no limit."""
    # https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files, https://docs.kernel.org/scheduler/sched-bwc.html
    most = math.inf
    for folder in _cgroups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
                limit, period = (int(word) for name in names for word in (folder / name).read_text().split())
                most = min(most, limit / period) if limit > 0 else most
    return most


def asked_cores(text: str) -> frozenset[int]:
    """What `--cores` says: how many, those of its GPU's share first, or which. Raises UserError where this process has not got them."""
    allowed = usable()
    if text.isascii() and text.isdigit():
        own, _ = share(1)
        in_order = [*flat(_units(own)), *flat(_units(allowed - own))]
        if not 1 <= int(text[:9]) <= len(allowed):
            raise UserError(f"cores {text}: say how many, from 1 to {len(allowed)}, or which, as in 0-3,8.")
        return frozenset(in_order[: int(text)])
    try:
        cores = frozenset(parse(text))
    except ValueError:
        raise UserError(f"cores {text}: say how many, as in 8, or which, as in 0-3,8.") from None
    if missing := cores - allowed:
        raise UserError(f"cores {text}: this process may not use {written(missing)}, but {written(allowed)}.")
    return cores


def cores(gpus: int = 0) -> int:
    """How many cores a grade on so many GPUs has."""
    return len(share(gpus)[0])


# ---------------------------------------------------------------- what a result says of this machine


Scheduling = tuple[set[int], int, int]  # on which cores a thread may run, by which policy, and how nice it is


def scheduling(thread: int) -> Scheduling:
    """That of a thread; 0 for the one that asks. Raises OSError where there is no such thread."""
    return os.sched_getaffinity(thread), os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


def facts() -> dict[str, Any]:
    """What a result says about the hardware; of a grade's cores also which they are, and why."""
    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(held_cores()),
        "gpu": gpu_name(),
        "os": platform.platform(terse=True),
    }
    if held := _held.get():
        found |= {"core_list": written(held[0]), "cores_are": held[1]}
    if has_gpu():
        with contextlib.suppress(pynvml.NVMLError):  # a GPU that shares its host's memory
            found["gpu_memory_gb"] = round((pretence() or pynvml.nvmlDeviceGetMemoryInfo(_seen())).total / 1e9, 1)
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    return found


def versions() -> dict[str, str]:
    names = ("torch", "torchvision", "triton", "numpy", "pillow", "pytorch-speed-course")
    found = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@lru_cache(maxsize=1)
def torch_is_for_the_cpu() -> bool:
    """Whether the installed torch can use no GPU, as far as its version says."""
    return versions().get("torch", "").endswith("+cpu")


def key(form: str, ranks: int = 1) -> str:
    """What a calibration holds for: the device that decides the gain, the cores of a grade on so many GPUs, and torch's release."""
    device = gpu_name() if form == "cuda" else cpu_name()
    torch = versions().get("torch")
    if torch is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    release = ".".join(torch.split("+")[0].split(".")[:2])
    return f"{device}, {cores(ranks * (form == 'cuda'))} cores, torch {release}"


@dataclass(frozen=True)
class GpuState:
    utilisation: int  # per cent of the last sampling period in which a kernel ran
    free_bytes: int
    total_bytes: int
    throttling: bool


def gpu_state(count: int = 1) -> GpuState | None:
    """Of CUDA's first `count` GPUs the worst of each figure; None without one. Raises RuntimeError where NVML does not tell."""
    states = [_state(gpu) for gpu in _first(count)]
    if not states:
        return None
    return GpuState(
        max(state.utilisation for state in states),
        min(state.free_bytes for state in states),
        min(state.total_bytes for state in states),
        any(state.throttling for state in states),
    )


def _state(gpu: Any) -> GpuState:
    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    except (pynvml.NVMLError, AttributeError):
        reasons = 0
    try:
        utilisation = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    except pynvml.NVMLError as error:
        raise RuntimeError(
            f"NVML cannot tell whether this GPU is in use ({error}), so nothing can be graded on it. A slice of a GPU (MIG) and "
            "some virtual GPUs are such. Use a whole GPU, or --device cpu."
        ) from None
    pretended = pretence()
    free = pretended.left(memory.free, memory.used) if pretended else memory.free
    return GpuState(utilisation, free, (pretended or memory).total, bool(reasons & _THROTTLING))


def gpu_memory_of(pids: set[int]) -> int | None:
    """Bytes of GPU memory that these processes hold, CUDA's own included. None without a GPU, unused, or with other process numbers."""
    gpu = _gpu()
    if gpu is None:
        return None
    try:
        found = [process for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) if process.pid in pids]
    except pynvml.NVMLError:
        return None
    held = [process.usedGpuMemory for process in found]
    return sum(held) if held and None not in held else None


def gpu_memory() -> int:
    """Bytes of GPU memory that all programs hold. 0 without a GPU."""
    gpu = _gpu()
    return pynvml.nvmlDeviceGetMemoryInfo(gpu).used if gpu is not None else 0


@contextlib.contextmanager
def watch_throttling(gpus: int = 1) -> Iterator[Callable[[], bool]]:
    """Gives a function: whether heat throttled one of CUDA's first `gpus` GPUs, in over one look of twenty."""
    if not has_gpu():
        yield lambda: False
        return
    looks: list[bool] = []

    def look() -> None:
        if state := gpu_state(gpus):
            looks.append(state.throttling)

    with _repeated(look, 0.2):
        yield lambda: sum(looks) > 0.05 * len(looks)


@contextlib.contextmanager
def watch_busy(gpus: int) -> Iterator[Callable[[], float]]:
    """Gives a function that says for how many seconds kernels ran, of `gpus` GPUs on the one where most did."""
    if not gpus:
        yield lambda: 0.0
        return
    busy, last = 0.0, time.monotonic()

    def look() -> None:
        nonlocal busy, last
        state, now = gpu_state(gpus), time.monotonic()
        busy += (now - last) * (state.utilisation / 100 if state else 0.0)
        last = now

    try:
        with _repeated(look, 0.05):
            yield lambda: busy
    finally:
        look()


@contextlib.contextmanager
def _repeated(look: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Call `look` now and then, in a thread of its own."""
    end = threading.Event()

    def watch() -> None:
        while not end.wait(interval_s):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def processor_time() -> tuple[float, float]:
    """Seconds that this process's processors have worked since boot, and that other virtual machines took; 0 where nobody tells."""
    ours, worked, stolen = usable(), 0.0, 0.0
    with contextlib.suppress(OSError), open("/proc/stat") as file:
        for line in file:
            name, *fields = line.split()
            if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in ours:
                user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
                worked += user + nice + system + irq + softirq
                stolen += steal
    ticks = os.sysconf("SC_CLK_TCK")
    return worked / ticks, stolen / ticks


def allowed_memory() -> int:
    """Bytes of main memory that this process and all it starts may have: the machine's, or what its container or job may."""
    most = psutil.virtual_memory().total
    for folder in _cgroups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
                most = min(most, int((folder / name).read_text()))
    return most


def free_memory() -> int:
    """Bytes of main memory that programs can still have: what files take counts as free."""
    free = psutil.virtual_memory().available
    for folder in _cgroups("memory"):
        for limit, used, of_files in (
            ("memory.max", "memory.current", ("active_file", "inactive_file")),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
        ):
            with contextlib.suppress(OSError, ValueError, KeyError):
                parts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                held = int((folder / used).read_text()) - sum(int(parts[name]) for name in of_files)
                free = min(free, int((folder / limit).read_text()) - held)
    return free


def _cgroups(what: str) -> Iterator[Path]:
    """The folders of the groups in which the kernel limits this process's "memory" or "cpu", from its own up."""
    # https://docs.kernel.org/admin-guide/cgroup-v2.html; in the first version each has a tree of its own
    with contextlib.suppress(OSError):
        for line in (PROCESS / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or what in controllers.split(","):
                root = CGROUPS / controllers
                own = root / path.lstrip("/")
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def wait_idle(limit_s: float = 3.0, gpus: int = 1) -> bool:
    """Wait until CUDA's first `gpus` GPUs are seen idle: two samples in a row. Returns False when they never are."""
    deadline = time.monotonic() + limit_s
    quiet = 0
    while quiet < 2:
        state = gpu_state(gpus)
        if state is None:
            return True
        quiet = quiet + 1 if state.utilisation < BUSY_PERCENT else 0
        if time.monotonic() > deadline:
            return False
        if quiet < 2:
            time.sleep(0.05)
    return True
