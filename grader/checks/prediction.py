"""Was the prediction, made before the first profile, right?"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from grader.labs.lab import CAUSES, Prediction
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult

# The rule, as the labs' pages and the report say it.
RULE = (
    "The gain that you predict is right if it lies within a factor of {factor:g} of the reference solution's gain. We measure that "
    "gain on the machine that grades. Once your own loop earns all throughput points, a prediction within the same factor of your loop's gain is right, too."
)
# Where both kinds of device are graded.
MADE_FOR = (
    'You predict a gain for a GPU unless you add `device="cpu"`. A grade on a GPU judges only a gain for a GPU, and a '
    "grade on a CPU only one for a CPU."
)
DEVICES = {"cuda": "a GPU", "cpu": "a CPU"}
MISSED = "A first prediction is rarely right. Write in your explanation what it missed."
REFERENCE, OWN = "the reference solution", "your own loop"  # whose gain is known


def judge(
    check: Prediction,
    causes: tuple[str, ...],
    gains: Mapping[str, float],
    prediction: tuple[tuple[str, Any], ...] | None,
    graded_on: str = "",
    undecided: bool = False,
) -> CheckResult:
    """Half the points for one of the causes, half for a gain as `RULE` says. gains: of full fixes on this machine, by whose they are.
    graded_on: "cuda" or "cpu" where the lab is graded on both, else "". undecided: the learner's own loop may yet be a full fix."""
    said = dict(prediction or ())
    evidence = {
        "predicted": said,
        "gains": {whose: round(gain, 3) for whose, gain in gains.items()},
        "within_factor": check.factor,
    }

    def result(status: str, points: float, reason: str, hint: str = "", unmeasured: float = 0.0) -> CheckResult:
        return CheckResult(
            check.name, check.title, status, points, check.points, reason, hint, evidence, unmeasured=unmeasured
        )

    if not said:
        return result(
            FAIL, 0, "No prediction was made.", "Fill in lab.predict(cause=..., gain=...) before you profile."
        )
    right_cause = said.get("cause") in causes
    words = f"Cause {said.get('cause')!r} is {'right' if right_cause else 'not what holds this loop back'}."
    if said.get("cause") not in CAUSES:
        words = f"Cause {said.get('cause')!r} is none of: {', '.join(CAUSES)}."
    number, made_for = said.get("gain"), said.get("device", "cuda")
    if graded_on and made_for != graded_on:
        predicted = "No gain was predicted" if number is None else f"Your gain of {number}x was not measured"
        words += f" {predicted}. Your prediction is for {DEVICES[made_for]}, and this grade was made on {DEVICES[graded_on]}. {MADE_FOR}"
        status, half = PASS if right_cause else FAIL, check.points / 2
        return result(status, half * right_cause, words, unmeasured=half)
    right_gain = _is_near(number, gains.values(), check.factor)
    known = " and ".join(f"{whose} gains {gain:.1f}x" for whose, gain in gains.items())
    verdict = ("right" if right_gain else "off") if gains else "not judged yet"
    words += " No gain was predicted." if number is None else f" Gain {number}x is {verdict}."
    words += f" {RULE.format(factor=check.factor)} "
    words += f"Here {known or 'neither is known yet'}."
    missed = not right_cause or (gains and not right_gain)
    hint = MISSED if missed else ""
    status = PASS if right_cause and right_gain else INCONCLUSIVE if right_cause and not gains and undecided else FAIL
    return result(status, check.points * (right_cause + right_gain) / 2, words, hint)


def _is_near(number: Any, gains: Iterable[float], factor: float) -> bool:
    if not isinstance(number, int | float) or not math.isfinite(number) or number <= 0:
        return False
    return any(gain / factor <= number <= gain * factor for gain in gains)
