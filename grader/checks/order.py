"""Are these three changes that pay, each made when none of the others would have gained more?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grader.checks.prediction import DEVICES
from grader.labs.lab import Order
from grader.result import AGAIN, INCONCLUSIVE, CheckResult, scored


class Timed(NamedTuple):
    """The starter with some changes."""

    step_s: float
    spread: float  # the second fastest block over the fastest

    def beside(self, again: Timed) -> Timed:
        """Both together: the faster one, and how far they are apart."""
        first, second = sorted((self.step_s, again.step_s))
        return Timed(first, max(self.spread, again.spread, second / first))


def rule(check: Order) -> str:
    """What counts, as the lab's page and the report say it."""
    return (
        f"A change counts if it makes the loop at least {check.pays - 1:.0%} faster where it stands. And none of the later "
        f"changes may gain over {check.as_good - 1:.0%} more in its place."
    )


def chosen(check: Order, answers: Mapping[Any, Any], form: str) -> tuple[tuple[str, ...], str]:
    """The names that were given for "cuda" or "cpu", and what is wrong with them, "" for nothing."""
    named = answers.get(form, ())
    if not named:
        return (), f'No changes are named for {DEVICES[form]}. Write them as answers["{form}"].'
    known = [lever.name for lever in check.levers]
    texts = isinstance(named, list | tuple) and all(isinstance(name, str) for name in named)
    if not texts or len(named) != check.count or len(set(named)) != check.count:
        return (), f'answers["{form}"] must be a list of {check.count} different names, in quotes.'
    if unknown := [name for name in named if name not in known]:
        return (), f"{unknown[0][:40]!r} is none of: {', '.join(known)}."
    return tuple(named), ""


def rungs(names: Sequence[str]) -> list[frozenset[str]]:
    """All sets of changes whose speed is asked for: each rung, and each other one that could have come next."""
    sets = [frozenset(names[:n]) for n in range(len(names))]
    return list(dict.fromkeys([*sets, *(done | {name} for n, done in enumerate(sets) for name in names[n:])]))


def judge(check: Order, names: Sequence[str], timed: Mapping[frozenset[str], Timed]) -> CheckResult:
    """timed: the starter with each of `rungs`. Points that blocks which differ do not give may yet be earned."""
    words, right, gains = [], 0, {}
    for n, name in enumerate(names):
        done = frozenset(names[:n])
        at_once = {other: timed[done].step_s / timed[done | {other}].step_s for other in names[n:]}
        gain, best = at_once[name], max(at_once, key=lambda other: at_once[other])
        gains[name] = round(gain, 3)
        said = f"{name} gains {gain:.2f}x where it stands"
        if gain < check.pays:
            words.append(f"{said}, which is too little to count")
        elif at_once[best] > check.as_good * gain:
            words.append(f"{said}, and {best} would have gained {at_once[best]:.2f}x there")
        else:
            words.append(said)
            right += 1
    reason = f"Measured here, on top of those before: {'. Then '.join(words)}. {rule(check)}"
    spread = max(each.spread for each in timed.values())
    status = INCONCLUSIVE if right < check.count and spread > check.as_good else ""
    if status:
        reason += f" But two blocks of the same loop differ by {spread - 1:.0%}, so this is not certain. {AGAIN}"
    evidence = {
        "on_top": gains,
        "rungs_ms": {
            " + ".join(sorted(done)) or "starter": round(1e3 * each.step_s, 3) for done, each in timed.items()
        },
        "blocks_differ": round(spread - 1, 4),
    }
    return scored(check, check.points * right / check.count, reason, evidence, status)
