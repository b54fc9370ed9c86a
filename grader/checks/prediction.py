"""Was the prediction, made before the first profile, right?"""

from __future__ import annotations

import math
from typing import Any

from grader.labs.lab import CAUSES, Prediction
from grader.result import FAIL, PASS, CheckResult

# What says how much can be gained on this machine, in words before the number.
REFERENCE = "the reference solution gains"
OWN = "the gain measured for this loop is"  # which earned full throughput, on a machine that was never calibrated
HEALTHY = "there is nothing to gain:"


def judge(
    check: Prediction,
    cause: str,
    gain: float | None,
    known_from: str,
    prediction: tuple[tuple[str, Any], ...] | None,
    least: float | None = None,
) -> CheckResult:
    """Half the points for the cause, half for a gain within a factor `check.factor` of `gain`, the full fix's on this
    machine, which `known_from` names; None where that is not known. least: where `gain` is the learner's own, the gain that
    earns full throughput. All between the two is right as well, or a slower loop would earn more for the same prediction."""
    said = dict(prediction or ())
    evidence = {"predicted": said, "gain": gain and round(gain, 3), "within_factor": check.factor}
    if least:
        evidence["least"] = round(least, 3)

    def result(status: str, points: float, reason: str, hint: str = "") -> CheckResult:
        return CheckResult(check.name, check.title, status, points, check.points, reason, hint, evidence)

    if not said:
        return result(
            FAIL, 0, "No prediction was made.", "Fill in lab.predict(cause=..., gain=...) before you profile."
        )
    right_cause = said.get("cause") == cause
    number = said.get("gain")
    is_number = isinstance(number, (int, float)) and math.isfinite(number) and number > 0
    right_gain = bool(is_number and gain and (least or gain) / check.factor <= number <= gain * check.factor)
    parts = [f"cause {said.get('cause')!r}: {'right' if right_cause else 'not what holds this loop back'}"]
    if said.get("cause") not in CAUSES:
        parts[0] = f"cause {said.get('cause')!r} is none of: {', '.join(CAUSES)}"
    if gain:
        parts.append(f"gain {number}x: {'right' if right_gain else 'off'}; {known_from} {gain:.1f}x")
        if least:
            parts[-1] += f", and full throughput begins at {least:.1f}x"
    else:
        parts.append(
            f"gain {number}x: not judged, as what the full fix gains on this machine is not known; its half of the points "
            "counts once your loop earns full throughput"
        )
    missed = not right_cause or bool(gain and not right_gain)
    status = PASS if right_cause and right_gain else FAIL
    hint = (
        "A first prediction is rarely right; what it missed is worth a sentence in your explanation." if missed else ""
    )
    return result(
        status,
        check.points * (right_cause + right_gain) / 2,
        ". ".join(part[0].upper() + part[1:] for part in parts) + ".",
        hint,
    )
