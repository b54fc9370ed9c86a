"""What the reference solution gains on this machine, and how its training goes: the yardsticks of a grade.

Gains depend on the machine: they are measured once per machine and software version (`grader calibrate`) and kept in the
user's cache; `data/measured/calibration.json` ships those of machines already measured. Loss curves do not depend on the
machine: they are part of the lab (`reference.json` beside its declaration)."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from grader.data.cache import cache_dir
from grader.labs.lab import Lab
from grader.measure import machine
from grader.result import write_json

LEAST_GAIN = 1.2  # a machine on which the solution gains less cannot show what the lab is about
SHIPPED = Path(__file__).resolve().parents[2] / "data" / "measured" / "calibration.json"


def own_file() -> Path:
    return cache_dir() / "calibration.json"


def read_table(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def reference_gain(lab: Lab, form: str) -> tuple[float | None, str]:
    """(speed-up of the reference solution, where that figure comes from); (None, …) for a machine never measured."""
    key = machine.key(form)
    for path, source in ((own_file(), "calibrated on this machine"), (SHIPPED, "measured on a machine of this kind")):
        try:
            entry = read_table(path)[f"{lab.name} {form}"][key]
            gain, date = float(entry["gain"]), str(entry["date"])
        except (KeyError, TypeError, ValueError):
            continue  # never measured, or damaged by hand
        if LEAST_GAIN <= gain < math.inf:
            return gain, f"{source} ({date})"
    return None, "this lab's minimum; `grader calibrate` measures what this machine can gain"


def store_gain(lab: Lab, form: str, entry: dict[str, Any], path: Path | None = None) -> Path:
    """Keep a measured gain: `entry` has at least "gain" and "date"."""
    path = path or own_file()
    table = read_table(path)
    table.setdefault(f"{lab.name} {form}", {})[machine.key(form)] = entry
    write_json(path, table)
    return path


@dataclass(frozen=True)
class Curve:
    """A quantity of the reference's training by step: mean and standard deviation over seeds."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]

    def at(self, step: int) -> tuple[float, float]:
        """(mean, sd) at `step`. The mean is interpolated linearly in log(step); the ends hold beyond themselves. The sd is
        pooled over all steps within a factor of two, and at least the two around `step`: a handful of seeds says little
        of the spread at any one step, where they can agree by luck."""
        step = min(max(step, self.steps[0]), self.steps[-1])
        high = bisect_left(self.steps, step)
        low = max(high - 1, 0)
        mean = self.mean[high]
        if step != self.steps[high]:
            share = math.log(step / self.steps[low]) / math.log(self.steps[high] / self.steps[low])
            mean = self.mean[low] + share * (mean - self.mean[low])
        near = [i for i, s in enumerate(self.steps) if low <= i <= high or step / 2 <= s <= 2 * step]
        return mean, math.sqrt(fmean(self.sd[i] ** 2 for i in near))


def reference_curves(lab: Lab, form: str) -> dict[str, Curve]:
    """ "train": mean loss of the ten steps that end at a step; "held_out": loss of the weights at a step. Empty when the
    lab has none for this form."""
    curves = read_table(lab.folder / "reference.json").get(form, {}).get("curves", {})
    return {name: Curve(*(tuple(column) for column in zip(*rows, strict=True))) for name, rows in curves.items()}
