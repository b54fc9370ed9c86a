"""Two traces of the same loop, before and after a change: what became of every metric, part of the step and family of kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from grader.trace import kernels
from grader.trace.analysis import Analysis
from grader.trace.catalogue import STEP_PARTS, Metrics
from grader.trace.columns import Trace
from grader.trace.steps import Steps
from grader.trace.words import milliseconds

NOTEWORTHY = 0.02  # of the step time; smaller changes are within what one trace differs from the next
NO_PARTS = (
    "Which part of it changed is not known: one of the traces, or both, shows no GPU work. What can be compared are the "
    "waiting for data and the operators called on the host."
)


@dataclass(frozen=True)
class Change:
    name: str
    before: float | None  # None: that trace cannot tell
    after: float | None
    difference: float | None  # after - before


@dataclass(frozen=True)
class Comparison:
    step: Change  # length of a step, ns: without the profiler if both were measured so, else under it
    unprofiled: bool  # which of the two
    metrics: list[Change]  # numbers of `Metrics` by name, those within a table as "copies.DtoH.bytes"
    parts: list[Change]  # of the step time, ns per step, the largest change first
    families: list[Change]  # of kernels and copies (see `kernels.family`), ns per step, the largest change first
    text: str  # two sentences


def compare(before: Analysis, after: Analysis) -> Comparison:
    """Never raises for what `analyse` returned; what one of the two traces cannot tell is None in the comparison."""
    unprofiled = bool(before.step_ns and after.step_ns)
    step = _change("step_ns", before.step_ns, after.step_ns)
    if not unprofiled:
        step = _change("step_ns_traced", before.metrics.step_ns_traced, after.metrics.step_ns_traced)
    metrics = _changes(numbers(before.metrics), numbers(after.metrics))
    parts = _by_size(_changes(before.breakdown or None, after.breakdown or None))
    old, new = (family_times(a.trace, a.left_out, a.metrics.steps) for a in (before, after))
    families = _by_size(_changes(old, new, absent=0.0))  # a family that a trace does not have took no time
    return Comparison(step, unprofiled, metrics, parts, families, _text(step, unprofiled, parts, families))


def numbers(metrics: Metrics) -> dict[str, float | None]:
    """Every number of the metrics by name, those in tables too; without those of single steps, names and events."""
    found: dict[str, float | None] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}.{key}", inner)
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            found[name] = value

    for field in fields(metrics):
        if field.name not in ("per_step", "events"):
            add(field.name, getattr(metrics, field.name))
    return found


def family_times(trace: Trace, left_out: int, counted: int) -> dict[str, float] | None:
    """Time of kernels, copies and memsets by family, ns per step, overlapping ones added; None without steps or GPU work in them."""
    steps = Steps(trace, left_out, counted)
    if not counted or not len(steps.gpu):
        return None
    names, of_name = np.unique(trace.name[steps.gpu], return_inverse=True)
    time = np.zeros(len(names), np.int64)
    np.add.at(time, of_name, trace.duration[steps.gpu])
    totals: dict[str, int] = {}
    for name, ns in zip(names.tolist(), time.tolist(), strict=True):
        family = kernels.family(trace.names[name])
        totals[family] = totals.get(family, 0) + ns
    return {family: ns / len(steps) for family, ns in totals.items()}


def _change(name: str, before: float | None, after: float | None) -> Change:
    return Change(name, before, after, None if before is None or after is None else after - before)


Table = Mapping[str, float | None] | None  # None: nothing of it is known


def _changes(before: Table, after: Table, absent: float | None = None) -> list[Change]:
    """One for each name of either, in order of appearance. absent: the value of a name that one of them lacks."""

    def value(table: Table, name: str) -> float | None:
        return None if table is None else table.get(name, absent)

    return [_change(name, value(before, name), value(after, name)) for name in {**(before or {}), **(after or {})}]


def _by_size(changes: list[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: -abs(change.difference or 0))


def _text(step: Change, unprofiled: bool, parts: list[Change], families: list[Change]) -> str:
    if not step.before or not step.after:
        return "The two traces cannot be compared: one of them has no steps. Record both with profiler.step()."
    faster = step.before / step.after
    speed = f"{faster:.2f} times as fast" if faster >= 1 else f"{1 / faster:.2f} times as slow"
    if abs(step.after - step.before) < NOTEWORTHY * step.before:
        speed = "about the same"
    under = "" if unprofiled else " under the profiler"
    first = f"A step takes {milliseconds(step.after)}{under} instead of {milliseconds(step.before)}: {speed}."

    if all(change.difference is None for change in (*parts, *families)):
        return f"{first} {NO_PARTS}"
    largest: list[str] = []
    others = [family for family in families if not family.name.startswith("gemm")]  # the parts speak of matmuls
    for changes, limit in ((parts, 2), (others, 1)):
        moved = [_moved(change) for change in changes if abs(change.difference or 0) >= NOTEWORTHY * step.before]
        largest += moved[:limit]
    if not largest:
        return f"{first} No part of the step changed by more than {NOTEWORTHY:.0%} of it."
    return f"{first} {largest[0][0].upper()}{', '.join(largest)[1:]}."


def _moved(change: Change) -> str:
    words = STEP_PARTS[change.name].changed if change.name in STEP_PARTS else change.name
    before, after = change.before or 0.0, change.after or 0.0
    return (
        f"{words} {'fell' if after < before else 'grew'} from {milliseconds(before)} to {milliseconds(after)} per step"
    )
