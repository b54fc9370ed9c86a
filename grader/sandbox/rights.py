"""What a child may know, touch and have: its environment, files, devices and memory."""

import contextlib
import functools
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from grader import machine
from grader.data.cache import cache_dir
from grader.devices import NO_MULTICAST
from grader.paths import DATA, PACKAGE, REPOSITORY, SHIPPED, installed, with_this_package
from grader.sandbox import confine

# what ranks talk by; a cluster's own settings may name a network that a child cannot reach
ON_ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
_FOR_COMPILERS = ("CC", "CXX", "CPATH", "LIBRARY_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH")
# Of /etc only what programs look up: a child that was root's may read files whatever their mode, /etc/shadow too.
_SETTINGS = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "passwd", "group", "nsswitch.conf", "hosts", "host.conf",
    "localtime", "timezone", "locale.alias", "os-release", "mime.types", "alternatives", "fonts", "ssl/certs", "ssl/openssl.cnf",
    "nvidia", "OpenCL", "vulkan", "nccl.conf", "python3", "magic",
)  # fmt: skip
_DEVICES = ("null", "zero", "full", "random", "urandom", "dxg")  # the last is the GPU in WSL2


# ---------------------------------------------------------------- the environment


def environment() -> dict[str, str]:
    """What children may know of our environment: where programs and libraries are, the language. No tokens."""
    keep = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ", *_FOR_COMPILERS, *NO_MULTICAST)
    prefixes = ("CUDA_", "NVIDIA_", "NCCL_")
    # CUDA's own order puts the fastest GPU first; NVML, which is asked whether it is in use, counts by bus
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    kept = order | {k: v for k, v in os.environ.items() if k in keep or k.startswith(prefixes)}
    path = [str(REPOSITORY), *python_path()]
    # what os.cpu_count() says from Python 3.13 on; before, only os.sched_getaffinity(0) tells
    cores = {"PYTHON_CPU_COUNT": str(len(machine.held_cores()))}
    return kept | cores | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def private_environment(home: Path, device: str) -> dict[str, str]:
    cache, temporary = home / "cache", str(home / "tmp")
    return {
        "HOME": str(home),
        "USER": "learner",  # getpass has no entry for the child's user id, and Inductor asks
        "LOGNAME": "learner",
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": str(cache),
        "GRADER_CACHE": str(cache_dir()),  # the course's data; HOME is not the user's here
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        **({"TRITON_CACHE_MANAGER": "grader.sandbox.flat_cache:FlatCache"} if confine.landlock_abi() == 1 else {}),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "TORCH_EXTENSIONS_DIR": str(cache / "extensions"),
        "PYTHONPATH": os.pathsep.join([str(home / "lib"), *python_path(), str(home)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        # without a GPU all that the profiler's log would tell the learner is an error: that there is none
        **({"KINETO_LOG_LEVEL": "6"} if device == "cpu" else {}),
    }


def python_path() -> list[str]:
    """The user's PYTHONPATH without folders that hold the checkout: children may read what is on the path."""
    entries = [os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if site.ENABLE_USER_SITE:  # what `pip install --user` wrote; HOME is another one in a child
        entries.append(os.path.realpath(site.getusersitepackages()))
    return [path for path in entries if _may_be_read(path)]


@functools.lru_cache(maxsize=1)
def _path_at_start() -> list[str]:
    """What .pth files put on the path, as in layered environments. Asked in its own process: a notebook can change this one's path."""
    asked = [sys.executable, "-I", "-c", "import sys; print(*sys.path, sep='\\n')"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout
    return [path for path in map(os.path.realpath, said.splitlines()) if _may_be_read(path)]


def _may_be_read(folder: str | Path) -> bool:
    """Not one in which the checkout, the user's cache or home lies: a right holds for all that is below."""
    kept = [cache_dir().resolve(), Path(os.path.expanduser("~")), *([] if installed() else [REPOSITORY])]
    return not any(path.is_relative_to(folder) for path in kept)


def _compilers() -> list[str]:
    """Where compilers lie that are not the system's: modules of a cluster, conda."""
    found = [shutil.which(os.environ.get(name) or usual) for name, usual in (("CC", "cc"), ("CXX", "c++"))]
    prefixes = [Path(path).resolve().parents[1] for path in found if path]
    return [str(prefix) for prefix in prefixes if len(prefix.parts) > 2 and _may_be_read(prefix)]


# ---------------------------------------------------------------- files and devices


def file_rights(home: Path, readable: Iterable[str | Path], device: str, ranks: int = 1) -> list[tuple[str, int]]:
    """What a child may touch: its own folder, shared memory and its GPU in full; Python, system libraries, this package and the lab's
    data read-only, but for `kept_from_children` (solutions, calibration, results, the gradebook). Several ranks may open all GPUs:
    NCCL asks NVML about theirs, and NVML does not start where one cannot be opened."""
    python = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
    python |= {*python_path(), *_path_at_start(), *_compilers()}
    code = [PACKAGE, *sorted(DATA.glob("*.py"))]
    system = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/sys"]
    # the driver's daemons; the second knows how the GPUs of a virtual machine are linked: NCCL asks it
    daemons = ["/run/nvidia-persistenced", "/run/nvidia-topologyd"]
    system += [f"/etc/{name}" for name in _SETTINGS]
    rights = [(str(home), confine.WRITE), ("/dev/shm", confine.WRITE)]
    # CUDA writes and truncates files in /proc/self and fails (error 304) where it cannot. Without root little outside
    # the child's own processes can be written there: of the same user's, how soon they are killed when memory runs out
    rights.append(("/proc", confine.WRITE if device == "cuda" else confine.READ))
    rights += [(str(path), confine.READ) for path in (*sorted(python), *code, *system, *readable)]
    rights += [(path, confine.READ | confine.CONNECT) for path in daemons]
    # not the repository itself: the names of a class's submissions are in it, and a right holds for all that is below
    rights += [(str(path), confine.LIST) for path in (DATA, "/dev")]
    gpus = {str(path) for path in Path("/dev").glob("nvidia*")}
    if device != "cuda" or ranks == 1:
        gpus -= machine.other_gpu_files()
    writable = [f"/dev/{name}" for name in _DEVICES] + sorted(gpus)
    return rights + [(path, confine.WRITE) for path in writable]


def kept_from_children() -> list[str]:
    """What a wheel puts inside the package, where Python is: solutions, calibration, recorded traces."""
    return [str(path) for path in (SHIPPED, DATA / "measured", DATA / "traces")] if installed() else []


def make_uvm() -> None:
    """CUDA's first start makes this device file, with a program that belongs to root: a confined process cannot."""
    if Path("/dev/nvidiactl").exists() and not Path("/dev/nvidia-uvm").exists():
        with contextlib.suppress(OSError):
            subprocess.run(["nvidia-modprobe", "-c0", "-u"], stderr=subprocess.DEVNULL, check=False)


@functools.lru_cache(maxsize=1)
def no_own_loopback() -> str:
    """Why a process of this user cannot have a loopback of its own, '' where it can."""
    program = "from grader.sandbox import confine; confine.own_loopback()"
    command = [sys.executable, "-c", program]
    env = with_this_package()
    tried = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    return (tried.stderr.strip().splitlines() or ["no reason given"])[-1] if tried.returncode else ""


# ---------------------------------------------------------------- memory

SMALL_SHARED = 2 << 30  # bytes of /dev/shm that eight loader workers with batches of 64 pictures stay far below
NO_SHARED_MEMORY = (
    "This machine has no /dev/shm, where loader workers hand over their batches. Mount one of "
    f"{SMALL_SHARED >> 30} GB or more."
)


def memory_limit() -> int:
    """Bytes of private data that one process of a submission may have. Raises RuntimeError where the system does not tell."""
    try:
        return machine.allowed_memory() * 3 // 4
    except FileNotFoundError as error:
        raise RuntimeError(
            f"This system has no {error.filename}, so no loop can be measured here. Mount /proc, and without subset=pid."
        ) from None


def shared_limit() -> int:
    """Bytes of shared memory that the processes of a submission may have together."""
    return machine.allowed_memory() // 4


def shared_memory() -> int:
    """Bytes of /dev/shm; 0 where there is none."""
    with contextlib.suppress(FileNotFoundError):
        there = os.statvfs("/dev/shm")
        return there.f_blocks * there.f_frsize
    return 0


def too_little_shared_memory() -> str:
    """What a loop with loader workers lacks here, in words; "" for nothing."""
    size = shared_memory()
    if not size:
        return NO_SHARED_MEMORY
    if size >= SMALL_SHARED or has_own_shared_memory(False):
        return ""
    return (
        f"{size / 1e9:.2g} GB, too little for loader workers with large batches. In Docker, start the container with "
        f"`--shm-size={SMALL_SHARED >> 30}g`."
    )


def needs_the_machines_shared_memory(files: Iterable[tuple[str, int]]) -> bool:
    """Whether some of what a child may touch lies there: temporary folders do, on some machines, and data."""
    return any(os.path.realpath(path).startswith("/dev/shm/") for path, _ in files)


@functools.lru_cache(maxsize=2)
def has_own_shared_memory(own_user: bool) -> bool:
    """Whether a child, with a user of its own or not, can have a /dev/shm of its own."""
    program = f"from grader.sandbox import confine; confine.own_shared_memory(4096); {own_user} and confine.give_up_root(30_000)"
    command = [sys.executable, "-c", program]
    tried = subprocess.run(command, env=with_this_package(), cwd=REPOSITORY, stderr=subprocess.DEVNULL, check=False)
    return tried.returncode == 0
