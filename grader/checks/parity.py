"""Is it still the same training? A gate: without it there are no points for throughput or trace."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import fmean, median
from typing import Any

from grader.labs.lab import Parity
from grader.measure.calibration import Near, Spread
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult
from grader.trace.words import told_apart

WINDOW = 10  # steps that are averaged where single losses are too noisy to compare
# From an unstable seed an honest loop was 1.4 times as far from the starter as may be (3c_shapes, NVIDIA H200). Up to this many times
# the reference solution decides, which is compared step by step.
GROSS = 5.0

# A run may end this many times as far from the reference solution's as the worst honest one of the calibration did. Few
# seeds were calibrated, and how soon rounding grows differs from seed to seed. What the allowance never falls below is for
# the first hundred steps of a GPT on an NVIDIA H200 (learning rate 1e-4). There most honest runs are closer than 0.0003 by
# each measure; 0.0016 in norm, 0.0020 in distance and 0.0013 in loss were seen, each in one of 22. A loop that left half of
# each batch out of the backward pass after 25 steps was off by 0.0002 to 0.0017, 0.0003 to 0.0005 and 0.0016 to 0.0033: what
# gives it away are its losses, and the stretch since the step that was compared before, 0.0037 to 0.0054 against 0.0002.
SPREAD = 2.5
LEAST = Near(norm=0.004, distance=0.005, loss=0.001, held_out=0.02, stretch=0.0015)

# Rounding grows at once where a seed leads through an unstable stretch. A run that is too far away by no more than these factors
# (NEARLY) may be such a case. What honest runs from its seed do is then seen in twins: the reference solution once more, from
# weights that are rounded about as bfloat16 rounds. Where one of them is further away than a third (CALM) of what is always allowed,
# SPREAD holds for the furthest as it does for the calibration's, up to EXCUSED times what is always allowed: from some seeds
# trainings part within 40 steps, and three quarters of each batch look like rounding there (simulated with a small GPT).
NEARLY = {"norm": 10.0, "distance": 10.0, "loss": 30.0, "stretch": 60.0}
CALM = 1 / 3
EXCUSED = {"norm": 4.0, "distance": 4.0, "loss": 12.0, "stretch": 12.0}
# What is further away is not judged, as long as rounding may have led there: of four lengths along the direction that grows one is
# above 10 times the longest of the others in 1 of 1,000 cases (normal variables), and a loop of its own may round more coarsely
# (seen: 9 times, bf16 with 50,257 columns in 4d, which had a learning rate of 1e-4 then). Norm and loss are such lengths; distance
# and stretch go with the square of one.
ROUNDING = {"norm": 10.0, "distance": 100.0, "loss": 10.0, "stretch": 100.0}
# By how much weight decay may differ: AdamW's own is 0.01. After the first steps honest forms of 22 labs were certainly off by up to
# 0.0025 on a CPU (bf16, 2c), and loops without any by 0.0083 (4a) to 0.0100. On an NVIDIA H200 (torch 2.11, 2i, 2e, 3a and 4a, with rates
# from 1e-5 to 1e-4) honest forms were off by up to 0.0013 (an optimizer that is not fused, at 1e-5), loops without any by 0.0096 to 0.0103.
DECAY = 0.006
# Biases and norms are few weights, and what is measured of all weights hardly sees them: a loop could leave them alone. How far their
# update may turn away from the reference's, as 1 - cosine, or so many times as far as that of all. Honest forms: 0.021 in bf16
# beside fp32, where all weights were off by 0.0002 (3a, NVIDIA H200). Weights that are left alone, or get noise: 1.
VECTORS, VECTORS_SPREAD, MOST_OF_VECTORS = 0.5, 50.0, 0.9
# How far the change of running statistics may be from the reference's, of itself. On a CPU honest forms in bf16 and from rounded weights
# were off by up to 0.12 after 36 steps (4a; a ResNet-18 0.08). Statistics that stay: 1; with a tenth of the momentum 0.6 to 1.
STATISTICS, FROZEN = 0.7, 1.0
# How many steps a run may certainly be behind the reference's or ahead of it, by what is in its weights of the reference's last step.
# Asked where a run is as close as LEAST has it; there honest forms of 4f, at learning rates of 1e-4 and 1e-3 on a CPU, were by 0.11 at
# most, from rounded weights as well. With each gradient applied a step late: 0.5 to 1.2 after 48 to 144 steps, and nothing else told.
BEHIND = 0.4
NAME, TITLE = "parity", "Same training"
HINT = (
    "Every step must train on its whole batch of job.batches, with the same loss, optimizer, learning rate and weight decay, and update "
    "every parameter of job.model."
)
WEIGHTS_HINT = (
    "Set job.weights to a function that returns all weights under the job's names and in the job's shapes, for "
    "example without padding. Of several ranks, each must return all of them."
)
FORWARD_HINT = (
    "The very first loss differs, before any weight was updated. Look at the forward pass, not the optimizer. The first step must "
    "see the whole first batch of job.batches as it is, job.model with the weights it comes with, and the same loss."
)
UNREAD_HINT = (
    "Train on the samples that job.dataset reads. This lab is about the time that its files keep a reader waiting."
)


def early(parity: Parity, starter: Sequence[float], submission: Sequence[float], update: dict[str, Any]) -> CheckResult:
    """The first steps against the starter's from the same seed. update: what the trusted arm's `compare` says of the submission's."""
    n = parity.steps
    # a loss of exactly 0 has no relative difference
    off = [abs(a - b) / (abs(b) or 1.0) for a, b in zip(submission[:n], starter[:n], strict=True)]
    loss, first = fmean(off), off[0]
    evidence: dict[str, Any] = {
        "steps": n,
        "loss_difference": loss,
        "loss_tolerance": parity.loss,
        "first_loss_difference": first,
        "update_norm_ratio": update.get("norm_ratio"),
        "norm_tolerance": parity.norm,
        "update_cosine": update.get("cosine"),
        "cosine_at_least": parity.cosine,
        "decay_difference": update.get("decay"),
    }
    problems = []
    if update["missing"] or update["shapes"]:
        names = ", ".join(update["missing"] + update["shapes"])
        lacking = f"The returned weights lack these, or have them in another shape: {names}."
        return _result([f"{lacking} Set job.weights if the loop renames or reshapes them."], evidence, WEIGHTS_HINT)
    if update["types"]:
        return _result([f"Weights must stay float32. These are not: {', '.join(update['types'])}."], evidence)
    if update["still"]:
        problems.append(f"These parameters were never updated: {', '.join(update['still'])}.")
    problems += _ranks_apart(n, update)
    if first > parity.loss:
        problems.append(f"The very first loss is {first:.2%} off.")
    if loss > parity.loss:
        found, most = told_apart(loss, parity.loss, "%", 2 if parity.loss >= 1e-3 else 3)
        problems.append(f"Over the first {n} steps the losses are {found} off on average. At most {most} is allowed.")
    problems += _off_in_update(parity, update)
    problems = problems or _off_in_vectors(n, update.get("vectors_cosine"), VECTORS, "starter's")
    problems = problems or _off_in_statistics(n, update, True, "starter's")
    problems = problems or _other_decay(n, update, "starter's")  # what is far off elsewhere may look like it
    return _result(problems, evidence, FORWARD_HINT if first > parity.loss else HINT)


def _ranks_apart(step: int, update: dict[str, Any]) -> list[str]:
    if not update.get("apart"):
        return []
    names = ", ".join(update["apart"])
    return [
        f"After {step} steps the ranks hold different weights: {names}. Each must make its step with the mean of all ranks' gradients."
    ]


def _off_in_update(parity: Parity, update: dict[str, Any]) -> list[str]:
    problems = []
    ratio, cosine = update["norm_ratio"], update["cosine"]
    if ratio is None:
        problems.append("The returned weights are not finite.")
    elif not ratio:
        problems.append("The returned weights did not move at all.")
    elif abs(ratio - 1) > parity.norm:
        found, most = told_apart(abs(ratio - 1), parity.norm, "%", 1)
        problems.append(
            f"The weights moved {ratio:.3f} times as far as the starter's. That is {found} off. They may be at most {most} off."
        )
    if ratio and cosine is None:  # what did not move has no direction
        problems.append("The weights moved in a direction that nobody can tell.")
    elif ratio and cosine < parity.cosine:
        found, least = told_apart(cosine, parity.cosine, "g", 4)
        problems.append(
            f"The weights moved in a different direction. The cosine is {found}, and must be at least {least}."
        )
    return problems


def unread(read: int, needed: int) -> CheckResult:
    """It asked the drive for `read` files, and trained on `needed` samples of the data set that lies on it."""
    problem = f"The loop asked the drive for {read:,} files, but it trained on {needed:,} samples. The rest came from elsewhere."
    return _result([problem], {"files_read": read, "files_needed": needed}, UNREAD_HINT)


@dataclass(frozen=True)
class Replay:
    """What the reference solution's training from the same seed says of the submission's."""

    losses: Sequence[float]  # the reference's, by step
    # by step, what `compare` says of the submission's weights beside the reference's; empty where that could not follow
    updates: dict[int, dict[str, Any]]
    held_out: float | None  # the submission's loss on held-out data after the last of those steps
    reference_held_out: float
    # by step, how far the reference's training is from itself if its weights were rounded; from a `doubtful` step on
    twins: Mapping[int, Near] = field(default_factory=dict)
    logs: Sequence[dict[str, Any]] = ()  # the reference's, by step, in labs that have logs


def late(
    parity: Parity,
    starter: Sequence[float],
    submission: Sequence[float],
    spread: Spread,
    replay: Replay | None = None,
) -> CheckResult:
    """The rest of the same run, whose blocks were timed: windows of losses against the starter's, and losses and weights against those
    of the reference solution where it was trained as long from the same seed.

    A loss curve can be foretold and weights can be scaled, but only the training itself leads to both. INCONCLUSIVE where the losses
    are off by less than GROSS times what may be, and there is no replay to tell."""
    problems = []
    worst = 0.0
    floor = _floor(starter)
    together = min(len(starter), len(submission))
    for i in range(0, together - WINDOW + 1, WINDOW):
        ours, theirs = fmean(submission[i : i + WINDOW]), fmean(starter[i : i + WINDOW])
        worst = max(worst, abs(ours - theirs) / max(abs(theirs), floor))
    evidence: dict[str, Any] = {
        "steps_in_all": len(submission),
        "worst_window": worst,
        "window_tolerance": parity.drift,
    }
    gross, off = worst > GROSS * parity.drift, worst > parity.drift and not replay
    if gross or off:
        problems.append(
            f"Ten losses in a row are {worst:.1%} off the starter's at the same steps. At most {parity.drift:.0%} is allowed."
        )
    if replay:
        problems += _off_the_reference(parity, submission, replay, spread, floor, evidence)
    if off and not gross:
        evidence["untold"] = True
        return replace(_result(problems, evidence), status=INCONCLUSIVE, hint="")
    return _result(problems, evidence)


def _off_the_reference(
    parity: Parity,
    submission: Sequence[float],
    replay: Replay,
    spread: Spread,
    floor: float,
    evidence: dict[str, Any],
) -> list[str]:
    if not replay.updates:
        return [
            (
                f"The loop claims {len(submission)} steps. The reference solution could not follow even to the "
                "end of the first timed block."
            )
        ]
    problems: list[str] = []
    evidence["replayed"] = {}
    told = False  # what no rounding explains
    for step, update in sorted(replay.updates.items()):
        allowed, rounding, twin = _allowed(step, replay, spread)
        found = distances(submission, replay.losses, update, parity.steps, step, floor)
        distance = {
            "found": found._asdict(),
            "allowed": allowed._asdict(),
            "decay_difference": update.get("decay"),
            "ahead": update.get("ahead"),
        }
        evidence["replayed"][str(step)] = ({"twin": twin._asdict()} if twin else {}) | distance
        told |= bool(update.get("still") or update.get("apart") or _other_decay(step, update))
        told |= not all(getattr(found, name) <= rounding[name] for name in NEARLY)
        # where all weights are off, these are no farther
        if all(getattr(found, name) <= getattr(allowed, name) for name in ("norm", "distance", "stretch")):
            told |= bool(_apart_in_detail(step, update, found, allowed))
        problems = problems or _too_far(step, update, found, allowed)  # the first step where it shows says it all
    held_out = _off_on_held_out(parity, replay, spread, floor, evidence)
    evidence["untold"] = bool(problems) and not (told or held_out)
    return problems + held_out


def _allowed(step: int, replay: Replay, spread: Spread) -> tuple[Near, dict[str, float], Near | None]:
    """How far a run may be from the reference's after `step` steps, how far rounding may have led it, and the twin that says so."""
    allowed = Near(*(max(least, SPREAD * each) for least, each in zip(LEAST, spread.at(step), strict=True)))
    rounding = allowed._asdict()
    until = [at for at in replay.twins if at <= step]
    if not until:
        return allowed, rounding, None
    twin = replay.twins[max(until)]  # what rounding has grown to stays
    if any(getattr(twin, name) > CALM * rounding[name] for name in NEARLY):
        for name in NEARLY:
            always, beside = getattr(allowed, name), getattr(twin, name)
            allowed = allowed._replace(**{name: max(always, min(SPREAD * beside, EXCUSED[name] * always))})
            rounding[name] = max(always, min(ROUNDING[name] * beside, NEARLY[name] * always))
    return allowed, rounding, twin


def _too_far(step: int, update: dict[str, Any], found: Near, allowed: Near) -> list[str]:
    problems = []
    if update.get("still"):
        problems.append(f"These parameters were never updated: {', '.join(update['still'])}.")
    problems += _ranks_apart(step, update)
    if not found.loss <= allowed.loss:
        off, most = told_apart(found.loss, allowed.loss, "%", 2)
        problems.append(
            f"Up to step {step} the losses are {off} off the reference solution's on the same batches. At most {most} is allowed."
        )
    if update.get("norm_ratio") is None:
        return [*problems, f"After {step} steps the returned weights are not finite."]
    if not found.norm <= allowed.norm:
        off, most = told_apart(found.norm, allowed.norm, "%", 1)
        problems.append(
            f"After {step} steps the weights have moved {update['norm_ratio']:.3f} times as far as "
            f"the reference solution's. That is {off} off. They may be at most {most} off."
        )
    elsewhere = "the weights have moved in a different direction than the reference solution's."
    if not found.distance <= allowed.distance:
        least = _cosines(found.distance, allowed.distance)
        problems.append(f"After {step} steps {elsewhere} {least}")
    elif not found.stretch <= allowed.stretch:
        least = _cosines(found.stretch, allowed.stretch)
        problems.append(f"In the last part of the {step} steps {elsewhere} {least}")
    return problems or _apart_in_detail(step, update, found, allowed) or _other_decay(step, update)


def _apart_in_detail(step: int, update: dict[str, Any], found: Near, allowed: Near) -> list[str]:
    """What the length and direction of the whole update don't show."""
    most = min(MOST_OF_VECTORS, max(VECTORS, VECTORS_SPREAD * allowed.stretch))
    return (
        _off_in_vectors(step, update.get("vectors_stretch"), most, "reference solution's")
        or _off_in_statistics(step, update, _close(found))
        or _behind(step, update, found)
    )


def _cosines(found: float, allowed: float) -> str:
    if not math.isfinite(found):
        return "The cosine is unknown."
    cosine, least = told_apart(1 - found, 1 - allowed, "f", 4)
    return f"The cosine is {cosine}, and must be at least {least}."


def _off_in_vectors(step: int, cosine: float | None, most: float, whose: str) -> list[str]:
    if cosine is None or 1 - cosine <= most:
        return []
    return [
        f"After {step} steps biases and norms have moved in a different direction than the {whose}. The cosine is {cosine:.2f}, and must "
        f"be at least {1 - most:.2f}."
    ]


def _off_in_statistics(
    step: int, update: dict[str, Any], close: bool, whose: str = "reference solution's"
) -> list[str]:
    """close: the two trainings are. Others have statistics of their own, but none that stay as they are."""
    off = update.get("statistics") or 0.0
    if off <= STATISTICS or not (close or off == FROZEN):
        return []
    return [
        f"After {step} steps BatchNorm's running statistics are not the {whose}: their last changes are {off:.0%} off, and "
        f"{STATISTICS:.0%} is allowed. Leave the model in training mode."
    ]


def _close(found: Near) -> bool:
    return found.distance <= LEAST.distance and found.stretch <= LEAST.stretch


def _behind(step: int, update: dict[str, Any], found: Near) -> list[str]:
    ahead = update.get("ahead") or 0.0
    if abs(ahead) <= BEHIND or not _close(found):  # where two trainings part, they do so along their steps
        return []
    way = "ahead of" if ahead > 0 else "behind"
    return [
        f"After {step} steps the weights are {abs(ahead):.1f} steps {way} the reference solution's. Each step must apply the gradients of its "
        "own batch."
    ]


def _other_decay(step: int, update: dict[str, Any], whose: str = "reference solution's") -> list[str]:
    decay = update.get("decay") or 0.0
    if abs(decay) <= DECAY:
        return []
    more = "more" if decay > 0 else "less"
    return [
        f"After {step} steps the weights have shrunk as by a weight decay that is {abs(decay):.3f} {more} than the {whose}."
    ]


def _off_on_held_out(
    parity: Parity, replay: Replay, spread: Spread, floor: float, evidence: dict[str, Any]
) -> list[str]:
    if replay.held_out is None or not math.isfinite(replay.held_out):
        return ["On held-out data the returned weights have no finite loss."]
    near = spread.at(max(replay.updates))
    tolerance = max(parity.held_out, SPREAD * near.held_out) * max(abs(replay.reference_held_out), floor)
    evidence |= {
        "held_out_loss": replay.held_out,
        "reference_held_out_loss": replay.reference_held_out,
        "held_out_tolerance": tolerance,
    }
    if abs(replay.held_out - replay.reference_held_out) <= tolerance:
        return []
    return [
        (
            f"On held-out data the returned weights have a loss of {replay.held_out:.3f}. The reference "
            f"solution's is {replay.reference_held_out:.3f} ± {tolerance:.3f}."
        )
    ]


def twin_distance(
    losses: Sequence[float], reference: Sequence[float], update: dict[str, Any], first: int, step: int
) -> Near:
    """How far a trusted training is from the reference's after `step` steps, as a submission's would be."""
    return distances(losses, reference, update, first, step, _floor(reference))


def loss_gaps(starter: Sequence[float], submission: Sequence[float], first: int) -> list[float]:
    """By what share two trainings' losses have parted: the largest median of WINDOW steps until each step; 0 in the `first` steps."""
    off = [abs(a - b) / max(abs(a), _floor(starter)) for a, b in zip(starter, submission, strict=False)]
    medians = [median(off[max(0, n + 1 - WINDOW) : n + 1]) if n >= first else 0.0 for n in range(len(off))]
    return list(accumulate(medians, max))


def _floor(losses: Sequence[float]) -> float:
    """What losses are compared with at least, 1 where they begin at 0: one near zero has no relative difference worth the name."""
    return 0.1 * abs(losses[0]) or 1.0


def doubtful(check: CheckResult) -> int | None:
    """The first step at which a training was too far from the reference's, if by so little that its seed may explain it; else None."""
    for step, replayed in check.evidence.get("replayed", {}).items():
        found, allowed = replayed["found"], replayed["allowed"]
        if any(not found[name] <= allowed[name] for name in NEARLY):
            near = all(found[name] <= factor * allowed[name] for name, factor in NEARLY.items())
            return int(step) if near else None
    return None


def rounding_may_explain(check: CheckResult) -> bool:
    """Whether a training was too far from the reference's, from a seed from which rounding alone may lead there: another one tells."""
    return bool(check.evidence.get("untold"))


def distances(
    losses: Sequence[float],
    reference: Sequence[float],
    update: dict[str, Any],
    first: int,
    step: int,
    floor: float,
    held_out: float = 0.0,
) -> Near:
    """How far one training is from another after `step` steps, by `compare`'s answer and by the losses after the `first`
    steps. What cannot be said (weights that are missing or not finite) is infinitely far."""
    ratio, cosine, stretch = (update.get(name) for name in ("norm_ratio", "cosine", "stretch_cosine"))
    relative = [(a - b) / max(abs(b), floor) for a, b in zip(losses[first:step], reference[first:step], strict=True)]
    return Near(
        norm=math.inf if ratio is None else abs(ratio - 1),
        distance=math.inf if cosine is None else 1 - cosine,
        loss=math.sqrt(fmean(d * d for d in relative)) if relative else 0.0,
        held_out=held_out,
        stretch=math.inf if stretch is None else 1 - stretch,
    )


def _result(problems: list[str], evidence: dict[str, Any], hint: str = HINT) -> CheckResult:
    if not problems:
        return CheckResult(NAME, TITLE, PASS, 0, 0, "The loop trains the same model as the starter.", "", evidence)
    reason = " ".join(["This is not the same training.", *problems])
    return CheckResult(NAME, TITLE, FAIL, 0, 0, reason, hint, evidence)
