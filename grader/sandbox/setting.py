"""What a child is given, beside its workspace."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Limits:
    """Of time in seconds."""

    load: float = 60.0  # the submission's import
    first_step: float = 240.0  # which may compile
    step: float = 60.0  # any other request for steps, or 20 times what it is expected to take where that is longer
    # all requests together, of one that is not the course's own: each may take a multiple of the last one. The longest grade seen took 4 min
    whole: float = 1200.0
    disk_bytes: int = 6 << 30  # in a child's folder, compiler caches and a trace included


# A quick look waits less long for a loop that hangs; compiling for a GPU took 100 s and more where other work was going on.
QUICK_LIMITS = Limits(first_step=180.0)


def limits_of(quick: bool) -> Limits:
    return QUICK_LIMITS if quick else Limits()


@dataclass(frozen=True)
class Setting:
    """The lab's form as far as a child knows it, and what is allowed to it."""

    workload: str  # module with make_job
    options: dict[str, Any]  # make_job's keyword arguments
    device: str  # "cpu" or "cuda"
    readable: Sequence[str | Path] = ()  # the lab's data
    threads: int | None = None  # of torch
    environment: dict[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    trusted: bool = False  # it runs our own starter, so its errors are not a learner's
    allow_unconfined: bool = False  # where the kernel has no Landlock
    ranks: int = 1  # processes that train together, see `ranks`
    # see `Form`
    budget: int | None = None
    exact_memory: bool = False
    serves: bool = False
    counted: bool = False  # its memory will be asked for, so there is nowhere to put bytes that are not seen


def of_rank(file: str, rank: int) -> str:
    """The name under which a rank writes what the first one writes to `file`."""
    return f"{rank}-{file}" if rank else file
