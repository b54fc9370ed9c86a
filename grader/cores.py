"""Sets of processor cores: how they are written, and how those of a host are shared among its GPUs."""

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

Unit = tuple[int, ...]  # the threads of one core, which are not parted


CAN_CHOOSE = hasattr(os, "sched_setaffinity")  # macOS has no such call


def usable() -> frozenset[int]:
    """The cores that this thread may use: all of them where nobody can choose."""
    return frozenset(os.sched_getaffinity(0) if CAN_CHOOSE else range(os.cpu_count() or 1))


def parse(text: str) -> set[int]:
    """Cores as the kernel and `taskset` write them: "0-3,8". Raises ValueError for anything else."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if not (span := re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())):
            raise ValueError(f"{text!r} is no list of cores")
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise ValueError(f"{part!r} ends before it begins")
        found.update(range(first, last + 1))
    return found


def written(cores: Iterable[int]) -> str:
    """As `parse` reads it."""
    spans: list[list[int]] = []
    for core in sorted(cores):
        if spans and spans[-1][1] == core - 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)


def shares(units: Sequence[Unit], near: Sequence[frozenset[int]]) -> list[list[Unit]]:
    """Equal shares of `units`, which lie in order, one for each entry of `near`: the cores close to a GPU, its own if possible."""
    # Graders that know nothing of each other come to the same shares. What cannot be shared equally is left out; where there
    # are fewer units than shares their threads are parted, and where even these are too few some shares have the same one
    found = _dealt(units, near) or _dealt([(core,) for unit in units for core in unit], near)
    return found or [[(flat(units)[n % len(flat(units))],)] for n in range(len(near))]


def _dealt(units: Sequence[Unit], near: Sequence[frozenset[int]]) -> list[list[Unit]] | None:
    """None where a share would have none."""
    found: list[list[Unit]] = [[] for _ in near]
    for _, alike in groupby(sorted(units, key=len, reverse=True), key=len):  # as many of each kind
        free, before = list(alike), len(found[0])
        wanted = before + len(free) // len(near)
        for anywhere in (False, True):
            for n in sorted(range(len(near)), key=lambda n: len(near[n])):  # whoever has the least choice first
                fitting = [unit for unit in free if anywhere or near[n].issuperset(unit)][: wanted - len(found[n])]
                found[n] += fitting
                free = [unit for unit in free if unit not in fitting]
    return found if found[0] else None


def flat(units: Iterable[Unit]) -> list[int]:
    return [core for unit in units for core in unit]


def cut(units: Sequence[Unit], most: float, where: float = 0.0) -> list[int]:
    """At most so many of these cores, at least one, threads of one together; begins at `where`, from 0 for the first to 1."""
    begin = int(where * len(units)) if most < len(flat(units)) else 0
    return flat([*units[begin:], *units[:begin]])[: max(1, int(min(most, len(flat(units)))))]


def ran_and_waited_s(thread: str) -> tuple[float, float]:
    """Seconds that a thread of /proc ran and waited for a core; 0 where untold: https://docs.kernel.org/scheduler/sched-stats.html"""
    with contextlib.suppress(OSError, ValueError):
        ran, waited, _ = Path("/proc", thread, "schedstat").read_text().split()
        return int(ran) / 1e9, int(waited) / 1e9
    return 0.0, 0.0


def waited_s(thread: str) -> float:
    """The second of `ran_and_waited_s`."""
    return ran_and_waited_s(thread)[1]
