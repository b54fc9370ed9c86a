"""What the reference solution gains on this machine, and how its training goes: the yardsticks of a grade.

Gains are measured once per machine and software version (`grader calibrate`) and kept in the user's cache. How far honest
trainings end from each other (`reference.json`) and how well long ones do on held-out data (`outcome.json`) is part of a lab."""

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from grader import machine
from grader.data.cache import cache_dir
from grader.errors import DAMAGED
from grader.labs.lab import Form, Lab
from grader.paths import DATA
from grader.result import read_json, write_json

LEAST_GAIN = 1.2  # a machine on which the solution gains less cannot show what the lab is about
SHIPPED = DATA / "measured" / "calibration.json"


def _key(lab: Lab, form: str) -> str:
    return machine.key(form, lab.ranks(form))


def _form(lab: Lab, form: str) -> str:
    return f"{lab.name} {lab.form_key(form)}"


def own_file() -> Path:
    return cache_dir() / "calibration.json"


def reference_gain(lab: Lab, form: str) -> tuple[float | None, str]:
    """(speed-up of the reference solution, where that figure comes from); (None, …) for a machine never measured."""
    key = _key(lab, form)
    for path, source in ((own_file(), "calibrated on this machine"), (SHIPPED, "measured on a machine of this kind")):
        try:
            entry = read_json(path)[_form(lab, form)][key]
            gain, date = float(entry["gain"]), str(entry["date"])
        except DAMAGED:
            continue  # never measured, or damaged by hand
        if LEAST_GAIN <= gain < math.inf:
            return gain, f"{source}, {date}"
    return None, "this lab's minimum, until `grader calibrate` measures what this machine can gain"


def starter_s(lab: Lab, form: str) -> float | None:
    """Seconds per step of the starter when this very machine was calibrated; None where it never was."""
    try:
        return float(read_json(own_file())[_form(lab, form)][_key(lab, form)]["starter_ms"]) / 1e3
    except DAMAGED:
        return None


def store_gain(lab: Lab, form: str, entry: dict[str, Any], path: Path | None = None) -> Path:
    """Keep a measured gain: `entry` has at least "gain" and "date"."""
    path = path or own_file()
    table = read_json(path)
    of_form = table.get(_form(lab, form))
    table[_form(lab, form)] = (of_form if isinstance(of_form, dict) else {}) | {_key(lab, form): entry}
    write_json(path, table)
    return path


class Near(NamedTuple):
    """How far one training is from another after as many steps from the same seed."""

    norm: float  # relative difference of the norms of the total update
    distance: float  # 1 - cosine of the total updates
    loss: float  # root mean square of the relative differences of the losses, step by step
    held_out: float  # relative difference of the held-out losses
    stretch: float = 0.0  # 1 - cosine of the updates since the step that was compared before


@dataclass(frozen=True)
class Spread:
    """How far honest trainings end from the reference solution's, by step: the worst over forms, the median over seeds."""

    rows: tuple[tuple[int, Near], ...] = ()

    def at(self, step: int) -> Near:
        """The worst seen up to the first calibrated step that is not before `step`: after how many steps rounding shows
        differs from seed to seed. Beyond the last in proportion to the steps; zeros where nothing was calibrated."""
        steps = [s for s, _ in self.rows]
        rows = [near for _, near in self.rows[: bisect_left(steps, step) + 1]]
        worst = Near(*map(max, *rows)) if len(rows) > 1 else rows[0] if rows else Near(0.0, 0.0, 0.0, 0.0)
        beyond = max(1.0, step / steps[-1]) if steps else 1.0
        return Near(*(beyond * value for value in worst))


# The widest that a lab of the course had within 300 steps, on an NVIDIA H200 or H100 (torch 2.11) and on an AMD EPYC (torch
# 2.14 and 2.15). It holds where a lab's own was not calibrated: too wide to tell finer tricks, but a loop that trains no longer is far
# outside.
WIDEST = {
    "cuda": Spread(((300, Near(norm=0.0076, distance=0.027, loss=0.0072, held_out=0.0043, stretch=0.094)),)),
    "cpu": Spread(((300, Near(norm=0.026, distance=0.092, loss=0.0082, held_out=0.0093, stretch=0.167)),)),
}


def honest_spread(lab: Lab, form: str) -> Spread:
    """The calibrated spread of the lab's form, or else WIDEST."""
    rows = read_json(lab.folder / "reference.json").get(lab.form_key(form), {}).get("spread", [])
    steps = tuple((int(row["step"]), Near(*(float(row[name]) for name in Near._fields))) for row in rows)
    return Spread(steps) if rows else WIDEST[form]


# 99.5% quantile of Student's t by degrees of freedom 1 to 9: a new run lies within t * sd * sqrt(1 + 1/n) of the mean of n
# others 99 times in 100. Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
_T995 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250)
LEAST_SEEDS = 3
BANDS = "outcome.json"  # beside the lab's declaration


class Usual(NamedTuple):
    """What a held-out figure of the reference was, over seeds."""

    mean: float
    sd: float


@dataclass(frozen=True)
class Band:
    """How well the reference does on held-out data, by step."""

    rows: tuple[tuple[int, dict[str, Usual]], ...]  # (step, {"loss": Usual, "accuracy": Usual}), steps rising
    seeds: int
    made_on: str = ""  # device, version of torch and date

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step that it says something about."""
        return self.rows[0][0], self.rows[-1][0]

    def at(self, step: int) -> dict[str, Usual]:
        """Mean and sd at a step, between stored ones in the log of the steps; of the sds the larger. ValueError outside of `steps`."""
        first, last = self.steps
        if not first <= step <= last:
            raise ValueError(f"step {step} lies outside of the band, which goes from {first} to {last}")
        after = bisect_left(self.rows, step, key=lambda row: row[0])
        (high, there) = self.rows[after]
        if high == step:
            return there
        (low, here) = self.rows[after - 1]
        share = math.log(step / low) / math.log(high / low)
        return {
            name: Usual(here[name].mean * (1 - share) + there[name].mean * share, max(here[name].sd, there[name].sd))
            for name in here
            if name in there
        }

    def half_width(self, sd: float) -> float:
        """How far one more honest run lies from the mean at most, 99 times in 100."""
        return _T995[min(self.seeds - 1, len(_T995)) - 1] * sd * math.sqrt(1 + 1 / self.seeds)


def band(runs: Sequence[dict[int, dict[str, float]]], made_on: str = "") -> Band:
    """The band of trainings of the reference: each {step: {"loss": ..., "accuracy": ...}}. Steps and figures that not all of
    them have are left out. Raises ValueError for fewer than two runs, or runs with no step in common."""
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    if len(runs) < 2 or not steps:
        raise ValueError("a band needs two or more runs that were looked at after the same steps")
    rows = []
    for step in steps:
        names = [name for name in runs[0][step] if all(name in run[step] for run in runs)]
        found = {name: [run[step][name] for run in runs] for name in names}
        rows.append((step, {name: Usual(fmean(values), stdev(values)) for name, values in found.items()}))
    return Band(tuple(rows), len(runs), made_on)


def outcome_runs(entry: Any) -> dict[str, dict[int, dict[str, float]]]:
    """The finished long runs of one form of `outcome.json`, by name; none where it is damaged."""
    try:
        return {
            str(name): {
                int(step): {str(figure): float(value) for figure, value in held_out.items()}
                for step, held_out in run.items()
            }
            for name, run in entry["runs"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def work_of(form: Form) -> dict[str, Any]:
    """What a band holds for: the workload and its options, as JSON has them. Waiting for the storage trains nothing."""
    options = {name: value for name, value in form.options.items() if name != "read_s"}
    return json.loads(json.dumps({"workload": form.workload, "options": options}))


def outcome_band(lab: Lab, form: str) -> tuple[Band | None, str]:
    """(the band that is stored for the lab's form, '') or (None, why there is none to compare with)."""
    bands = read_json(lab.folder / BANDS)
    entry, key = bands.get(lab.form_key(form)), lab.form_key(form)
    make = f"`grader calibrate {lab.name} --outcome STEPS` makes them."
    if entry is None and form == "cpu" and "cuda" in bands:  # as the lab is meant
        return None, "Long runs are compared on a GPU only. You don't have to do anything."
    if not isinstance(entry, dict):
        return None, f"No long runs are stored for {key}. {make}"
    if entry.get("work") != work_of(lab.forms[form]):
        return None, f"The stored long runs for {key} are of a different model or have different options. {make}"
    runs = [run for name, run in outcome_runs(entry).items() if name.startswith("solution")]
    if len(runs) < LEAST_SEEDS:
        return None, f"Only {len(runs)} of {LEAST_SEEDS} long runs are stored. {make}"
    try:
        return band(runs, str(entry.get("made_on", ""))), ""
    except ValueError as error:
        return None, f"The stored long runs can't be used: {error}. {make}"
