"""Does the trained model do as well as long trainings of the reference did, on held-out data? A gate like parity."""

import math
from typing import Any

from grader.labs.lab import Outcome
from grader.measure.calibration import Band
from grader.result import FAIL, NOT_MEASURED, PASS, CheckResult

NAME, TITLE = "outcome", "Same outcome"
HINT = (
    "Every step must train on all of its batch, as the starter does, up to the last one. A model that does better than the "
    "reference's has seen different data, more data, or a different loss."
)


def not_measured(reason: str, evidence: dict[str, Any] | None = None) -> CheckResult:
    return CheckResult(NAME, TITLE, NOT_MEASURED, 0, 0, reason, "", evidence or {})


def judge(check: Outcome, band: Band, step: int, held_out: dict[str, Any]) -> CheckResult:
    """held_out: what the workload's `evaluate` says of the submission's weights after `step` steps; None for what is not finite."""
    first, last = band.steps
    evidence: dict[str, Any] = {"steps": step, "band_from": first, "band_to": last, "band_seeds": band.seeds}
    evidence["band_made_on"] = band.made_on
    if not first <= step <= last:
        end = "begin" if step < first else "end"
        reason = (
            f"The timed run has {step} steps, but the long runs of the reference {end} at step "
            f"{first if step < first else last}. So they were not compared."
        )
        return not_measured(reason, evidence)
    problems = []
    for name, usual in band.at(step).items():
        half, found = max(_least(check, name, usual.mean), band.half_width(usual.sd)), held_out.get(name)
        evidence |= {name: found, f"{name}_of_the_band": usual.mean, f"{name}_half_width": half}
        problems += _problem(name, found, usual.mean, half, "in any of the reference's runs")
    if problems:
        return _fail(step, problems, evidence)
    reason = (
        f"After {step} steps the model does as well on held-out data as the reference's did over {band.seeds} seeds."
    )
    return CheckResult(NAME, TITLE, PASS, 0, 0, reason, "", evidence)


def beside(check: Outcome, first: CheckResult, of_this_seed: dict[str, Any]) -> CheckResult:
    """The second look at what is outside of the band: beside the reference solution's figures from the same seed, after as many steps.
    Trainings from one seed end closer to each other than from two, so only the least width of a band is allowed. first: of `judge`."""
    evidence, problems = dict(first.evidence), []
    for name in [key.removesuffix("_of_the_band") for key in first.evidence if key.endswith("_of_the_band")]:
        usual = of_this_seed.get(name)
        if usual is None:  # nothing to be compared with
            return first
        evidence[f"{name}_of_this_seed"] = usual
        half = _least(check, name, usual)
        problems += _problem(name, evidence[name], usual, half, "the reference's from this grade's seed")
    step = evidence["steps"]
    if problems:
        return _fail(step, problems, evidence)
    reason = (
        f"After {step} steps the model does as well on held-out data as the reference does from this grade's seed. "
        f"From {evidence['band_seeds']} other seeds the reference did differently."
    )
    return CheckResult(NAME, TITLE, PASS, 0, 0, reason, "", evidence)


def _least(check: Outcome, name: str, usual: float) -> float:
    return check.loss * abs(usual) if name == "loss" else check.accuracy


def _problem(name: str, found: float | None, usual: float, half: float, whose: str) -> list[str]:
    if found is None or not math.isfinite(found):
        return [f"the {name} is not finite"]
    if abs(found - usual) <= half:
        return []
    better = (found < usual) == (name == "loss")
    return [f"the {name} is {found:.4g}, {'better' if better else 'worse'} than {whose} ({usual:.4g} ± {half:.2g})"]


def _fail(step: int, problems: list[str], evidence: dict[str, Any]) -> CheckResult:
    reason = (
        f"After {step} steps the model isn't where this training leads. On held-out data {', and '.join(problems)}."
    )
    return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, HINT, evidence)
