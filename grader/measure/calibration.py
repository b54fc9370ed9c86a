"""What the reference solution gains on this machine, and how its training goes: the yardsticks of a grade.

Gains depend on the machine: they are measured once per machine and software version (`grader calibrate`) and kept in the
user's cache; `data/measured/calibration.json` ships those of machines already measured. How far honest trainings of the
same work end from each other does not depend on the machine: it is part of the lab (`reference.json` beside its
declaration)."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


def starter_s(lab: Lab, form: str) -> float | None:
    """Seconds per step of the starter when this very machine was calibrated; None where it never was."""
    try:
        return float(read_table(own_file())[f"{lab.name} {form}"][machine.key(form)]["starter_ms"]) / 1e3
    except (KeyError, TypeError, ValueError):
        return None


def store_gain(lab: Lab, form: str, entry: dict[str, Any], path: Path | None = None) -> Path:
    """Keep a measured gain: `entry` has at least "gain" and "date"."""
    path = path or own_file()
    table = read_table(path)
    table.setdefault(f"{lab.name} {form}", {})[machine.key(form)] = entry
    write_json(path, table)
    return path


class Near(NamedTuple):
    """How far one training is from another after as many steps from the same seed.

    norm: relative difference of the norms of the total update. distance: 1 - cosine of the total updates. loss: root mean
    square of the relative differences of the losses, step by step. held_out: relative difference of the held-out losses."""

    norm: float
    distance: float
    loss: float
    held_out: float


@dataclass(frozen=True)
class Spread:
    """How far honest trainings end from the reference solution's, by step: the worst over forms and seeds."""

    rows: tuple[tuple[int, Near], ...] = ()

    def at(self, step: int) -> Near:
        """The worst seen up to the first calibrated step that is not before `step`: after how many steps rounding shows
        differs from seed to seed. Beyond the last in proportion to the steps; zeros where nothing was calibrated."""
        steps = [s for s, _ in self.rows]
        rows = [near for _, near in self.rows[: bisect_left(steps, step) + 1]]
        worst = Near(*map(max, *rows)) if len(rows) > 1 else Near(*rows[0]) if rows else Near(0.0, 0.0, 0.0, 0.0)
        beyond = max(1.0, step / steps[-1]) if steps else 1.0
        return Near(*(beyond * value for value in worst))


def honest_spread(lab: Lab, form: str) -> Spread:
    """The calibrated spread of the lab's form, without rows where it has none."""
    rows = read_table(lab.folder / "reference.json").get(form, {}).get("spread", [])
    return Spread(tuple((int(row["step"]), Near(*(float(row[name]) for name in Near._fields))) for row in rows))
