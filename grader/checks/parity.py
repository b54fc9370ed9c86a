"""Is it still the same training? A gate: without it there are no points for throughput or trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from grader.labs.lab import Parity
from grader.measure.calibration import Curve
from grader.result import FAIL, PASS, CheckResult

WINDOW = 10  # steps that are averaged where single losses are too noisy to compare
LAST = 20  # steps at the end whose batches are looked at again with the returned weights
MOST_ABOVE = (
    0.01  # seen on honest runs, on a CPU: weights just trained on these batches are 2% to 63% below what was yielded
)
# One of the two is enough. Seen on honest runs on a CPU from step 60 on: a correlation of 0.70 to 1 with the tiny network and a
# small GPT (2 seeds each). ResNet-18 at 48x48 learns a batch by heart in a few steps: -0.2 to 0.78 (2 seeds); where it was
# below 0.35, `fitted` was 0.35 and 0.46 (looked at with 1 seed). Losses that are drawn: a correlation of 0 +- 0.24 (by
# arithmetic, for 20 batches). Not calibrated on a GPU yet.
LEAST_CORRELATION, FITTED = 0.35, 0.12
LATE_NORM = 3  # times the tolerance of the first steps: what differs by rounding grows
SETTLED = 60  # steps before which a batch's loss says more of how far the training is than of the batch
NAME, TITLE = "parity", "Same training"


def early(parity: Parity, starter: Sequence[float], submission: Sequence[float], update: dict[str, Any]) -> CheckResult:
    """The first steps against the starter's own from the same seed. `update` is what the trusted arm's `compare` says of
    the submission's total update after those steps."""
    n = parity.steps
    loss = fmean(abs(a - b) / abs(b) for a, b in zip(submission[:n], starter[:n], strict=True))
    first = abs(submission[0] - starter[0]) / abs(starter[0])
    evidence: dict[str, Any] = {
        "steps": n,
        "loss_difference": loss,
        "loss_tolerance": parity.loss,
        "first_loss_difference": first,
        "update_norm_ratio": update.get("norm_ratio"),
        "norm_tolerance": parity.norm,
        "update_cosine": update.get("cosine"),
        "cosine_at_least": parity.cosine,
    }
    problems = []
    if update["missing"] or update["shapes"]:
        names = ", ".join(update["missing"] + update["shapes"])
        problems.append(
            f"the returned weights lack these of the job's under their names and shapes: {names} (set job.weights if the "
            "loop reshapes them)"
        )
        return _result(problems, evidence)
    if update["types"]:
        problems.append(f"weights must stay float32, these are not: {', '.join(update['types'])}")
        return _result(problems, evidence)
    if update["still"]:
        problems.append(f"these parameters were never updated: {', '.join(update['still'])}")
    if loss > parity.loss:
        problems.append(
            f"over the first {n} steps the losses are {loss:.2%} off on average (at most {parity.loss:.1%})"
        )
    ratio, cosine = update["norm_ratio"], update["cosine"]
    if ratio is None or abs(ratio - 1) > parity.norm:
        if ratio is None:
            problems.append("the returned weights are not finite")
        elif not ratio:
            problems.append("the returned weights did not move at all")
        else:
            problems.append(
                f"the weights moved {ratio:.3f} times as much as the starter's (at most {parity.norm:.1%} off)"
            )
    if cosine is None or cosine < parity.cosine:
        problems.append(
            f"the weights moved in another direction: cosine {cosine if cosine is None else round(cosine, 4)}, "
            f"at least {parity.cosine}"
        )
    return _result(problems, evidence)


def late(
    parity: Parity,
    starter: Sequence[float],
    submission: Sequence[float],
    held_out: float | None,
    curves: dict[str, Curve],
    again: Sequence[float | None] = (),
    update: dict[str, Any] | None = None,
) -> CheckResult:
    """The rest of the same run, whose blocks were timed: windows of losses against the starter's at the same steps, and
    beyond those against the reference solution's; the held-out loss of the returned weights against the reference's;
    `again`, the losses that the returned weights have on the batches of the last steps and of the LAST ones that would come
    next, against those that were yielded; `update`, of a run too short for that, what `compare` says of its weights."""
    problems = []
    steps = len(submission)
    worst = 0.0
    floor = 0.1 * abs(starter[0])  # a loss near zero has no relative difference worth the name
    together = min(len(starter), steps)
    for i in range(0, together - WINDOW + 1, WINDOW):
        ours, theirs = fmean(submission[i : i + WINDOW]), fmean(starter[i : i + WINDOW])
        worst = max(worst, abs(ours - theirs) / max(abs(theirs), floor))
    evidence: dict[str, Any] = {"steps_in_all": steps, "worst_window": worst, "window_tolerance": parity.drift}
    if worst > parity.drift:
        problems.append(
            f"ten losses in a row are {worst:.1%} off the starter's at the same steps (at most {parity.drift:.0%})"
        )
    if "train" in curves:
        outside = []
        for end in range(together // WINDOW * WINDOW + WINDOW, steps + 1, WINDOW):
            mean, sd = curves["train"].at(end)
            ours = fmean(submission[end - WINDOW : end])
            if abs(ours - mean) > parity.drift * max(mean, floor) + 6 * sd:
                outside.append((end, ours, mean))
        evidence["windows_off_the_reference"] = len(outside)
        if len(outside) > 0.05 * steps / WINDOW + 1:
            end, ours, mean = outside[0]
            problems.append(f"around step {end} the loss is {ours:.3f} where the reference's is {mean:.3f}")
    if held_out is None or not math.isfinite(held_out):
        problems.append(f"on held-out data the weights after {steps} steps have no finite loss")
    elif "held_out" in curves:
        mean, sd = curves["held_out"].at(steps)
        allowed = parity.held_out * max(mean, floor) + 6 * sd
        evidence |= {"held_out_loss": held_out, "reference_held_out_loss": mean, "held_out_tolerance": allowed}
        if abs(held_out - mean) > allowed:
            problems.append(
                f"on held-out data the weights after {steps} steps have the loss {held_out:.3f}, the reference's "
                f"{mean:.3f} +- {allowed:.3f}"
            )
    if update:
        ratio = evidence["last_norm_ratio"] = update.get("norm_ratio")
        if ratio is None or abs(ratio - 1) > LATE_NORM * parity.norm:
            problems.append(f"after {steps} steps the weights moved {ratio or 0:.3f} times as much as the starter's")
    if again:
        problems += _made_up(submission, again, floor, evidence)
    return _result(problems, evidence)


def _made_up(
    submission: Sequence[float], again: Sequence[float | None], floor: float, evidence: dict[str, Any]
) -> list[str]:
    """What speaks against the last losses having come from their batches and the weights that were returned.

    A loss curve can be foretold, and once it is flat old weights are on it. But weights that were trained on a batch have a
    lower loss there than was yielded; and either, with small steps, the batches that were harder before are so after, or,
    with large ones, the last batches have a lower loss than those that come next."""
    computed = [math.nan if loss is None else loss for loss in again]
    computed, coming = computed[:-LAST], computed[-LAST:]
    yielded = submission[-len(computed) :]
    level = max(fmean(yielded), floor)
    above = (fmean(computed) - fmean(yielded)) / level
    fitted = (fmean(coming) - fmean(computed)) / max(fmean(coming), floor)
    related = _correlation(yielded, computed)
    for name, value in (("above", above), ("fitted", fitted), ("correlation", related)):
        evidence[f"last_batches_{name}"] = value if math.isfinite(value) else None
    problems = []
    if not above <= MOST_ABOVE:
        problems.append(
            f"on the batches of the last {len(computed)} steps the returned weights have a loss {above:.1%} above the one "
            "that was yielded, and weights that were trained on them are below it"
        )
    if len(submission) >= SETTLED and not (related >= LEAST_CORRELATION or fitted >= FITTED):
        problems.append(
            f"the last {len(computed)} losses are not those of their batches (correlation {related:.2f}, at least "
            f"{LEAST_CORRELATION})"
        )
    return problems


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's, of what is left when each has its linear trend taken out; 0 where one is constant."""
    x, y = _without_trend(a), _without_trend(b)
    scale = math.sqrt(math.fsum(v * v for v in x) * math.fsum(v * v for v in y))
    return math.fsum(v * w for v, w in zip(x, y, strict=True)) / scale if scale else 0.0


def _without_trend(values: Sequence[float]) -> list[float]:
    middle, mean = (len(values) - 1) / 2, fmean(values)
    slope = sum((i - middle) * v for i, v in enumerate(values)) / sum((i - middle) ** 2 for i in range(len(values)))
    return [v - mean - slope * (i - middle) for i, v in enumerate(values)]


def _result(problems: list[str], evidence: dict[str, Any]) -> CheckResult:
    if not problems:
        return CheckResult(NAME, TITLE, PASS, 0, 0, "The loop trains the same model as the starter.", "", evidence)
    hint = (
        "Every step must train on its whole batch of job.batches, with the same loss, optimizer and learning rate, and "
        "update every parameter of job.model."
    )
    reason = "This is not the same training: " + "; ".join(problems) + "."
    return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, hint, evidence)
