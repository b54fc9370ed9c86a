"""A training job of one's own: a Python file with `make_job(seed, device)`, for `grader compare`."""

import contextlib
import ctypes
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from grader.errors import JobError
from grader.workloads.job import Job

# mallopt(3): parameters and values. Unless they are set, glibc's malloc raises both thresholds by itself, up to these, when
# a large piece is freed: so much of a freed piece's size stays with the process.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TRIM_THRESHOLD, MMAP_THRESHOLD = 64 << 20, 32 << 20  # bytes


def modules(*, file: str, folders: Sequence[str] = ()) -> Sequence[str]:
    """The folders that the job's and the loops' own modules are imported from."""
    return folders


def make_job(seed: int, device: torch.device, *, file: str, folders: Sequence[str] = ()) -> Job:
    """What the file's own make_job(seed, device) returns. Raises JobError, which names the file, where that is no Job."""
    _keep_memory()
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise JobError(f"{Path(file).name} is no Python file: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # what its data set is made of is found again by loader workers
    try:
        spec.loader.exec_module(module)
        make = getattr(module, "make_job", None)
        job = make(seed, device) if callable(make) else None
    except torch.OutOfMemoryError:
        raise  # for two loops share the GPU
    except (Exception, SystemExit) as error:
        raise JobError(_told(error, file)) from error
    if not callable(make):
        raise JobError(f"{Path(file).name} defines no function make_job(seed, device)")
    if not isinstance(job, Job):
        raise JobError(
            f"make_job(seed, device) in {Path(file).name} returned {type(job).__name__}; it returns a grader.workloads.job.Job"
        )
    return job


def _told(error: BaseException, file: str) -> str:
    """What went wrong, and in which of the file's lines."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{Path(file).name} is no Python: {error.msg} (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{Path(file).name} raised {type(error).__name__}{where}: {error}"


def _keep_memory() -> None:
    """Have glibc's malloc keep what is freed (of pieces up to 32 MB). By itself it gives it back and gets it again, or does not: of 18
    processes with the same small network 5 took 13 to 15 ms a step and 13 took 20 to 23 ms, each to its end; like this, all take 9 to
    10 ms (2 cores, AMD EPYC, torch 2.14, 2026-11-27). A process's luck would look like a gain."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
