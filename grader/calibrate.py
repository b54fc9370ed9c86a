"""Calibration: what the reference solution gains on this machine, and how its training goes."""

from __future__ import annotations

import math
import secrets
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grader.errors import UserError
from grader.grade import Progress, arm, choose_form, grade, prepared
from grader.labs.lab import Lab
from grader.measure import calibration, machine
from grader.measure.blocks import Plan
from grader.result import PASS, write_json
from grader.submission import Submission, read_notebook

CAREFUL = Plan(min_pairs=8, max_pairs=8)
GRID = (20, 30, 40, 60, 80, 100, 130, 160, 200, 250, 320, 400, 500, 640, 800, 1000, 1300, 1600)  # steps of the curves


def solution(lab: Lab) -> Submission:
    """The reference solution. Raises UserError where it is not part of this copy of the course."""
    path = Path(__file__).resolve().parents[1] / "solutions" / lab.name / f"{lab.name}.ipynb"
    if not path.exists():
        raise UserError(f"The solution of {lab.name} is not here ({path}), and calibration measures it.")
    return read_notebook(path)


def calibrated(lab: Lab, form_name: str) -> bool:
    """Whether the lab's throughput is measured in this form, against what the solution gains."""
    return lab.measures(lab.throughput, form_name) and not lab.throughput.healthy


def measure_gain(lab: Lab, device: str, progress: Progress = lambda share, what: None) -> dict[str, Any]:
    """The reference solution's gain over the starter on this machine: {"gain", "interval", "noise", "date", ...}. Raises
    UserError where the lab has no form for this device or the solution cannot be measured."""
    if not calibrated(lab, choose_form(lab, device)):
        raise UserError(f"{lab.name} needs an NVIDIA GPU; there is nothing to calibrate here.")
    result = grade(solution(lab), lab, device=device, plan=CAREFUL, allow_unconfined=True, progress=progress)
    throughput = result.check("throughput")
    evidence = throughput.evidence
    failed = [c.reason for c in result.checks if c.name == "parity" and c.status != PASS]
    if failed or not evidence:
        reason = result.fatal or (failed or [throughput.reason])[0]
        raise UserError(f"The solution of {lab.name} could not be measured: {reason}")
    least = max(calibration.LEAST_GAIN, math.exp(8 * min(evidence["noise"], 1)))
    if evidence["gain_lower"] < calibration.LEAST_GAIN or evidence["gain"] < least:
        raise UserError(
            f"The solution of {lab.name} gains only {evidence['gain']:.2f}x here, and a pair of measurements scatters by "
            f"{evidence['noise']:.0%}: this machine cannot show this lab's fix. Nothing was kept."
        )
    return {
        "gain": round(evidence["gain"], 4),
        "interval": [round(evidence["gain_lower"], 4), round(evidence["gain_upper"], 4)],
        "noise": round(evidence["noise"], 4),
        "starter_ms": round(evidence["starter_ms"], 3),
        "solution_ms": round(evidence["submission_ms"], 3),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": machine.versions(),
    }


def measure_curves(
    lab: Lab, device: str, seeds: int = 4, steps: int = GRID[-1], progress: Progress = lambda share, what: None
) -> dict[str, Any]:
    """The reference solution's loss by step over several seeds: training loss (mean of the ten steps that end there) and
    held-out loss. Machine-independent, so it is part of the lab; maintainers make it once per change of the workload."""
    form_name = choose_form(lab, device)
    if form_name not in lab.forms:
        raise UserError(f"{lab.name} needs an NVIDIA GPU; there is nothing to calibrate here.")
    form = lab.forms[form_name]
    options, readable = prepared(form)
    options |= {"read_s": 0.0} if "read_s" in options else {}  # waiting for the storage trains nothing
    grid = [step for step in GRID if step <= steps]
    train: dict[int, list[float]] = {step: [] for step in grid}
    held_out: dict[int, list[float]] = {step: [] for step in grid}
    for seed in range(seeds):
        with arm(solution(lab).source, form, options, readable, form_name, None, allow_unconfined=True) as ours:
            ours.child.load()
            if form.prepare_s:
                ours.child.prepare(form.prepare_s)
            ours.child.start(secrets.randbelow(1 << 31))
            for i, step in enumerate(grid):
                progress((seed + i / len(grid)) / seeds, f"seed {seed + 1} of {seeds}, step {step}")
                ours.run(step - len(ours.losses))
                train[step].append(fmean(ours.losses[-10:]))
                held_out[step].append(ours.child.ask("evaluate")["loss"])
    rows = {
        name: [[step, round(fmean(values), 5), round(stdev(values), 5)] for step, values in table.items()]
        for name, table in (("train", train), ("held_out", held_out))
    }
    return {
        "curves": rows,
        "seeds": seeds,
        "machine": machine.facts(),
        "versions": machine.versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def store_curves(lab: Lab, form_name: str, curves: dict[str, Any]) -> Path:
    """Write the curves of one form into the lab's `reference.json`."""
    path = lab.folder / "reference.json"
    write_json(path, calibration.read_table(path) | {form_name: curves})
    return path
