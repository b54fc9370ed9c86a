"""A training job of one's own: a Python file with `make_job(seed, device)`, for `grader compare`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from grader.workloads.job import Job


def modules(*, file: str, folders: Sequence[str] = ()) -> Sequence[str]:
    """The folders that the job's and the loops' own modules are imported from."""
    return folders


def make_job(seed: int, device: torch.device, *, file: str, folders: Sequence[str] = ()) -> Job:
    """What the file's own make_job(seed, device) returns. Raises TypeError where that is no Job."""
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TypeError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # what its data set is made of is found again by loader workers
    spec.loader.exec_module(module)
    make = getattr(module, "make_job", None)
    if not callable(make):
        raise TypeError(f"{Path(file).name} defines no function make_job(seed, device)")
    job = make(seed, device)
    if not isinstance(job, Job):
        raise TypeError(
            f"make_job(seed, device) in {Path(file).name} returned {type(job).__name__}; it returns a grader.workloads.job.Job"
        )
    return job
