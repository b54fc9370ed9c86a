"""Calibration: what the reference solution gains on this machine, how its training goes, and where it leads."""

import contextlib
import hashlib
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from grader import machine
from grader.checks import outcome as outcome_check
from grader.checks.parity import distances
from grader.checks.throughput import MUCH_LOST
from grader.errors import UserError
from grader.grade import grade
from grader.grading.arms import WEIGHTS, max_weights_bytes, reference_arm, set_up
from grader.grading.forms import choose_form
from grader.grading.half import in_fp16, lacks_on
from grader.labs.lab import Lab
from grader.measure import calibration
from grader.measure.blocks import Arm, Plan
from grader.measure.calibration import Near
from grader.paths import temporary
from grader.result import PASS, Progress, read_json, silent, write_json
from grader.sandbox.child_error import ChildError
from grader.submission import solution

CAREFUL = Plan(min_pairs=8, max_pairs=8)
GRID = (40, 60, 90, 130, 200, 300)  # steps at which trainings are compared
LOOK_S = 1.0  # for which the machine is looked at before a calibration
AFFORDABLE_S = 300.0  # what a training of a slow form, or a long run of the starter, may take
MOST_STEPS = 1_000_000
STARTER = "starter, seed 1"  # the name of its long run


class Busy(UserError):
    """Others use this machine: no lab can be calibrated now."""


def quiet_here() -> None:
    """Raises Busy where other programs use the cores that this process may use."""
    cores = os.sched_getaffinity(0)
    each = psutil.cpu_percent(LOOK_S, percpu=True)
    used = sum(each[core] for core in cores if core < len(each)) / (100 * len(cores))
    if used <= MUCH_LOST:
        return
    theirs = [
        (_percent(process), process) for process in psutil.process_iter(["name", "pid"]) if process.pid != os.getpid()
    ]
    time.sleep(LOOK_S)
    shares = sorted(((_percent(process), process) for _, process in theirs), key=lambda each: -each[0])
    who = ", ".join(f"{p.info['name']} ({p.pid}): {share:.0f}% of a core" for share, p in shares[:3] if share > 5)
    raise Busy(
        f"Other programs use {used:.0%} of the cores that are measured on{f' ({who})' if who else ''}. A gain that is measured now "
        "would be wrong for the whole class. Calibrate when nothing else runs here. Nothing was measured."
    )


def _percent(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return process.cpu_percent()
    return 0.0


def calibrated(lab: Lab, form_name: str) -> bool:
    """Whether the lab's throughput is measured in this form, against what the solution gains."""
    return lab.measures(lab.throughput, form_name) and not lab.throughput.healthy


def measure_gain(lab: Lab, device: str, progress: Progress = silent) -> dict[str, Any]:
    """The reference solution's gain here: {"gain", "interval", "noise", "date", ...}. Raises UserError where it cannot be measured."""
    form_name = choose_form(lab, device)
    if not calibrated(lab, form_name):
        raise UserError(f"{lab.name} needs an NVIDIA GPU, and this machine has none. There is nothing to calibrate.")
    quiet_here()
    fix = solution(lab)
    if "bf16" in lacks_on(form_name):
        fix = replace(fix, source=in_fp16(fix.source))
    result = grade(fix, lab, device=device, plan=CAREFUL, allow_unconfined=True, progress=progress)
    throughput = result.check("throughput")
    evidence = throughput.evidence
    failed = [c.reason for c in result.checks if c.name == "parity" and c.status != PASS]
    if failed or not evidence:
        reason = result.fatal or (failed or [throughput.reason])[0]
        raise UserError(f"The solution of {lab.name} could not be measured: {reason}")
    if evidence["lost_to_others"] > MUCH_LOST:
        raise UserError(
            f"Other programs took up to {evidence['lost_to_others']:.0%} of a loop's time while {lab.name} was measured. "
            "Calibrate when this machine is quiet. Nothing was kept."
        )
    least = max(calibration.LEAST_GAIN, math.exp(8 * min(evidence["noise"], 1)))
    if evidence["gain_lower"] < calibration.LEAST_GAIN or evidence["gain"] < least:
        raise UserError(
            f"The solution of {lab.name} gains only {evidence['gain']:.2f}x here, while one pair of measurements differs "
            f"from the next by {evidence['noise']:.0%}. This machine can't show what the lab's fix gains. Nothing was kept."
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


# Forms of a loop that train the same model, whatever the loop: put before (imports, switches) and around its train(job)
FORMS = {
    "TF32": ('torch.set_float32_matmul_precision("high")', ""),
    # for the whole step, so that it reaches a forward pass that is the loop's own; casts of weights must not be kept then
    "bf16": (
        "",
        "    torch.set_autocast_cache_enabled(False)\n"
        "    torch.set_autocast_dtype(job.device.type, torch.bfloat16)\n"
        "    torch.set_autocast_enabled(job.device.type, True)\n",
    ),
    "compiled": ("", "    job.model.compile()\n"),
}


def honest_form(source: str, name: str) -> str:
    """The loop in one of FORMS."""
    before, inside = FORMS[name]
    steps = source.replace("def train(job):", "def steps(job):")
    return f"import torch\n\n{before}\n\n{steps}\n\ndef train(job):\n{inside}    yield from steps(job)\n"


def measure_spread(
    lab: Lab, device: str, seeds: int = 3, steps: int = GRID[-1], progress: Progress = silent
) -> dict[str, Any]:
    """How far honest forms of the loop end from the reference solution after as many steps from the same seed.

    The worst over forms, and over all steps so far, as slow forms are not trained to the end; the median over seeds, as trainings from
    some part early. It holds for all machines. Raises UserError where the lab has no such form or trains nothing, and for no seeds."""
    form_name = _form_here(lab, device)
    if seeds < 1:
        raise UserError(f"--seeds {seeds} is too few. Give 1 or more.")
    if lab.serves:
        raise UserError(
            f"{lab.name} trains nothing, so it has no spread to measure. Its answers are compared one by one."
        )
    grid = [step for step in GRID if step <= steps]
    worst: list[dict[int, Near]] = []  # by seed
    measured: dict[str, str] = {}  # by form: why it could not be, '' where it was
    for n in range(seeds):
        of_seed, why = _spread_of_seed(lab, form_name, grid, _part_of(progress, n, seeds, f"seed {n + 1} of {seeds}: "))
        worst.append(of_seed)
        measured |= why
    if all(measured.values()):
        raise UserError(f"No other form of {lab.name} could be trained, so nothing is known: {measured}")
    return {
        "spread": [
            {"step": step} | {k: round(v, 6) for k, v in near._asdict().items()}
            for step, near in zip(grid, over_seeds(worst), strict=True)
        ],
        "seeds": seeds,
        "forms": [name for name, why in measured.items() if not why],
        "left_out": {name: why for name, why in measured.items() if why},
        "machine": machine.facts(),
        "versions": machine.versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _form_here(lab: Lab, device: str) -> str:
    """The form to calibrate. Raises UserError where the lab has none for this device."""
    form_name = choose_form(lab, device)
    if form_name not in lab.forms:
        raise UserError(f"{lab.name} needs an NVIDIA GPU, and this machine has none. There is nothing to calibrate.")
    return form_name


def _spread_of_seed(
    lab: Lab, form_name: str, grid: list[int], progress: Progress
) -> tuple[dict[int, Near], dict[str, str]]:
    """From a new seed: by step, how far the furthest form is from the reference solution; by form, why it could not be measured."""
    source, seed, first_steps = solution(lab).source, secrets.randbelow(1 << 31), lab.forms[form_name].parity.steps
    worst, measured = dict.fromkeys(grid, Near(0.0, 0.0, 0.0, 0.0)), {}
    forms = {name: honest_form(source, name) for name in FORMS}
    # half a fix rounds otherwise than a whole one: a matmul whose sizes are not padded takes another kernel
    forms |= {f"starter, {name}": honest_form(lab.starter, name) for name in ("TF32", "bf16")}
    progress(0.0, "the reference")
    with tempfile.TemporaryDirectory(dir=temporary()) as folder:
        held_out = {}
        for arm, step in _trained(source, lab, form_name, seed, grid):
            arm.child.weights(WEIGHTS)
            (Path(folder) / str(step)).write_bytes(arm.child.fetch(WEIGHTS, max_weights_bytes(arm.child, WEIGHTS)))
            held_out[step] = arm.child.ask("evaluate")["loss"]
            reference = arm.losses
        floor = 0.1 * abs(reference[0])
        for i, (name, text) in enumerate(forms.items(), 1):
            progress(i / (1 + len(forms)), name)
            try:
                for arm, step in _trained(text, lab, form_name, seed, grid):
                    arm.child.give(WEIGHTS, (Path(folder) / str(step)).read_bytes())
                    update = arm.child.ask("compare", file=WEIGHTS, stretch=True)
                    off = abs(arm.child.ask("evaluate")["loss"] / held_out[step] - 1)
                    near = distances(arm.losses, reference, update, first_steps, step, floor, held_out=off)
                    worst[step] = Near(*map(max, worst[step], near))
                    measured[name] = ""
                    following = next((later for later in grid if later > step), step)
                    if arm.reaching_s(following) > AFFORDABLE_S:
                        break
            except ChildError as error:  # not every loop can be put into every form
                measured[name] = error.message.splitlines()[0]
    return worst, measured


def over_seeds(worst: list[dict[int, Near]]) -> list[Near]:
    """Of what was worst from each seed, by step: the median at each step, and no less than at any step before."""
    usual = (
        Near(*map(median, zip(*nears, strict=True))) for nears in zip(*(each.values() for each in worst), strict=True)
    )
    return [*accumulate(usual, lambda before, now: Near(*map(max, before, now)))]


def _trained(
    source: str, lab: Lab, form_name: str, seed: int, grid: list[int], longest_s: float = math.inf
) -> Iterator[tuple[Arm, int]]:
    """Train from a seed and stop at each step of `grid`; not at all where a step takes longer than `longest_s`."""
    setup = set_up(lab.forms[form_name], form_name, allow_unconfined=True).untimed
    with reference_arm(source, setup, seed, compiles=True) as arm:
        for step in grid if arm.step_s <= longest_s else ():
            if step > len(arm.losses):
                arm.run(step - len(arm.losses))
            yield arm, step


def store_spread(lab: Lab, form_name: str, spread: dict[str, Any]) -> Path:
    path = lab.folder / "reference.json"
    write_json(path, read_json(path) | {lab.form_key(form_name): spread})
    return path


def outcome_grid(first: int, last: int) -> list[int]:
    """Steps at which a long run is evaluated: from `first` to `last`, each about 1.4 times the one before."""
    count = max(1, round(2 * math.log2(last / first)))
    return sorted({round(first * (last / first) ** (i / count)) for i in range(count + 1)})


def measure_outcome(
    lab: Lab, device: str, steps: int, seeds: int = calibration.LEAST_SEEDS, progress: Progress = silent
) -> list[str]:
    """Train the reference solution from each of `seeds` seeds, and the starter from one where that is affordable.

    What they reach on held-out data goes into the lab's `outcome.json`, each finished run at once. Returns what is to be said of the
    band, line by line. Raises UserError where the lab has no band or no such form, or `steps` is too small or too large."""
    form_name = _form_here(lab, device)
    if not lab.outcome:
        raise UserError(f"{lab.name} doesn't compare held-out data with long runs, so it needs no --outcome.")
    form = lab.forms[form_name]
    if not calibration.LEAST_SEEDS <= seeds <= 10:
        raise UserError(f"--seeds must be from {calibration.LEAST_SEEDS} to 10, not {seeds}.")
    if not 2 * form.parity.steps <= steps <= MOST_STEPS:
        raise UserError(f"--outcome must be from {2 * form.parity.steps} to {MOST_STEPS} steps, not {steps}.")
    source, path = solution(lab).source, lab.folder / calibration.BANDS
    grid = outcome_grid(form.parity.steps, steps)
    manifest = {
        "work": calibration.work_of(form),
        "solution": hashlib.sha256(source.encode()).hexdigest()[:16],
        "torch": machine.versions()["torch"],
        "device": machine.key(form_name),
        "steps": grid,
    }
    entry = read_json(path).get(lab.form_key(form_name), {})
    if any(entry.get(name) != value for name, value in manifest.items()):
        entry = {}  # what is there was made of something else, or for other steps
    runs = calibration.outcome_runs(entry)
    wanted = [(f"solution, seed {n}", source, n, math.inf) for n in range(1, seeds + 1)]
    wanted.append((STARTER, lab.starter, 1, AFFORDABLE_S))
    lines = []
    for n, (name, text, seed, longest_s) in enumerate(wanted):
        if name in runs:
            continue
        run = _long_run(text, lab, form_name, seed, grid, _part_of(progress, n, len(wanted), f"{name}, "), longest_s)
        if run:
            runs[name] = run
            _store_outcome(path, lab.form_key(form_name), manifest, runs)
        else:
            lines.append(f"The starter was left out. {steps} steps would take it more than {AFFORDABLE_S:.0f} s.")
    progress(1.0, "done")
    return [*lines, *_said_of_band(lab, form_name, (grid[0], steps), runs), f"Kept in {path}."]


def _part_of(progress: Progress, n: int, parts: int, name: str) -> Progress:
    """The progress of part `n`, from 0, of so many that take as long."""
    return lambda share, what: progress((n + share) / parts, f"{name}{what}")


def _said_of_band(
    lab: Lab, form_name: str, steps: tuple[int, int], runs: dict[str, dict[int, dict[str, float]]]
) -> Iterator[str]:
    """The stored band at the first and the last step, and the starter's place in it. Raises UserError where there is none."""
    band, missing = calibration.outcome_band(lab, form_name)
    if band is None:
        raise UserError(missing)
    for step in steps:
        figures = band.at(step).items()
        usual = ", ".join(f"{name} {each.mean:.4g} +- {band.half_width(each.sd):.2g}" for name, each in figures)
        yield f"step {step}: {usual}"
    if STARTER in runs and lab.outcome:
        verdict = outcome_check.judge(lab.outcome, band, steps[-1], runs[STARTER][steps[-1]])
        yield f"The starter: {verdict.status}. {verdict.reason}"


def _store_outcome(path: Path, form_key: str, manifest: dict[str, Any], runs: dict[str, Any]) -> None:
    """Write what is finished: the runs themselves, and for whoever reads the file mean and sd of the solution's."""
    made = [run for name, run in runs.items() if name.startswith("solution")]
    rows = []
    if len(made) > 1:
        for step, usual in calibration.band(made).rows:
            row = {
                f"{name}_{what}": round(value, 6)
                for name, each in usual.items()
                for what, value in each._asdict().items()
            }
            rows.append({"step": step} | row)
    entry = manifest | {
        "made_on": f"{manifest['device']}, {datetime.now(UTC):%Y-%m-%d}",
        "versions": machine.versions(),
        "band": rows,
        "runs": {name: {str(step): held_out for step, held_out in run.items()} for name, run in runs.items()},
    }
    write_json(path, read_json(path) | {form_key: entry})


def _long_run(
    source: str, lab: Lab, form_name: str, seed: int, grid: list[int], progress: Progress, longest_s: float = math.inf
) -> dict[int, dict[str, float]]:
    """Loss and accuracy on held-out data at each step of `grid`; nothing where the run would take longer than `longest_s`."""
    held_out: dict[int, dict[str, float]] = {}
    progress(0.0, "starting")
    for arm, step in _trained(source, lab, form_name, seed, grid, longest_s=longest_s / grid[-1]):
        figures = arm.child.ask("evaluate")
        bad = [name for name, value in figures.items() if value is None]
        if bad:
            raise UserError(
                f"After {step} steps from seed {seed} the held-out {bad[0]} is not finite. Nothing of this run was kept."
            )
        held_out[step] = {name: round(value, 6) for name, value in figures.items()}
        progress(step / grid[-1], f"step {step} of {grid[-1]}")
    return held_out
