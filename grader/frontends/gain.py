"""What a grade says of a loop's speed: the throughput check's evidence in numbers, sentences and a line of characters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from grader.checks.throughput import interval_counts
from grader.result import INCONCLUSIVE, NOT_MEASURED, CheckResult, Result
from grader.safe_text import clean, plausible, rounded, times

MOST_PAIRS = 200  # that are shown


@dataclass(frozen=True)
class Gain:
    """The throughput check's evidence, with everything that is no usable number taken out. Factors are speed-ups."""

    check: CheckResult
    gain: float
    lower: float | None  # of the 90% interval
    upper: float | None
    target: float | None  # for all points
    reference: float | None  # what the reference solution gains on this machine
    certain: float | None  # what the points are for
    ratios: tuple[float, ...]  # of each pair of timed blocks

    @classmethod
    def of(cls, check: CheckResult) -> Self | None:
        """None where nothing was timed."""
        get = check.evidence.get
        gain = plausible(get("gain"))
        if gain is None or check.status == NOT_MEASURED:
            return None
        lower, upper = interval(check.evidence)
        target = plausible(get("target"))
        pairs = get("pairs")
        ratios = [_ratio(pair) for pair in pairs[:MOST_PAIRS]] if isinstance(pairs, list) else []
        return cls(
            check,
            gain,
            lower,
            upper,
            target if target and target > 1 else None,
            plausible(get("reference_gain")),
            plausible(get("gain_certain")) or lower,
            tuple(ratio for ratio in ratios if ratio is not None),
        )

    @classmethod
    def in_result(cls, result: Result) -> Self | None:
        """Of the grade's throughput check; None where nothing was timed."""
        gains = (cls.of(check) for check in result.checks if check.name == "throughput")
        return next((gain for gain in gains if gain), None)

    def span(self) -> tuple[float, float]:
        """The ends of a log axis that shows every mark, and the pairs as far as they do not squeeze the rest."""
        marks = [
            math.log(v) for v in (1, self.gain, self.lower, self.upper, self.certain, self.target, self.reference) if v
        ]
        low, high = min(marks), max(marks)
        size = max(high - low, math.log(1.2))
        inside = [math.log(ratio) for ratio in self.ratios]
        low = max(min([low, *inside]), low - 0.4 * size)
        high = min(max([high, *inside]), high + 0.4 * size)
        pad = 0.07 * max(high - low, math.log(1.2))
        return math.exp(low - pad), math.exp(high + pad)


def interval(evidence: Mapping[str, Any]) -> tuple[float, float] | tuple[None, None]:
    """The ends of the gain's 90% interval, where it is what the points are for."""
    lower, upper, certain = (plausible(evidence.get(name)) for name in ("gain_lower", "gain_upper", "gain_certain"))
    if lower is None or upper is None or lower > upper or (certain and not interval_counts(lower, certain)):
        return None, None
    return lower, upper


def _ratio(pair: Any) -> float | None:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    starter, submission = plausible(pair[0]), plausible(pair[1])
    return starter / submission if starter and submission else None


def headline(gain: Gain) -> str:
    """How much faster the loop became, in one sentence or two."""
    evidence = gain.check.evidence
    said = f"{times(gain.gain)} the starter's speed"
    if gain.lower and gain.upper:
        said += f" (90% interval {times(gain.lower)} to {times(gain.upper)})"
    if evidence.get("untouched"):
        said += ", because this is the starter itself"
    elif gain.upper and gain.upper < 1:
        said += ", slower than the starter" if gain.check.status != INCONCLUSIVE else ", which is undecided"
    elif gain.certain and gain.certain <= 1:
        said += ", but no gain is certain"
    before, after = plausible(evidence.get("starter_ms")), plausible(evidence.get("submission_ms"))
    if before and after:
        said += f". A step took {rounded(before, 3)} ms and now takes {rounded(after, 3)} ms"
    return said + "."


def notes(gain: Gain, letters: bool = False) -> str:
    """What the points, the target and the scatter mean; `letters` ties the sentences to the marks of `bar`."""
    lines = []
    if gain.target:
        lines.append(_target(gain, letters))
    if gain.reference:
        the = "R: the" if letters else "The"
        lines.append(f"{the} reference solution reached {times(gain.reference)} there.")
    if gain.ratios:
        noise = plausible(gain.check.evidence.get("noise"))
        pairs = "1 pair" if len(gain.ratios) == 1 else f"{len(gain.ratios)} pairs"
        scatter = f" Single pairs scatter by {rounded(100 * noise, 2)}%." if noise else ""
        lines.append(f"We timed {pairs} of blocks, starter against submission.{scatter}")
    return " ".join([*lines, *_compiling(gain)])


def _target(gain: Gain, letters: bool) -> str:
    assert gain.target
    source = gain.check.evidence.get("target_source")
    whence = f" ({clean(source)})" if isinstance(source, str) and source else ""
    said = f"{'T: full' if letters else 'Full'} points need {times(gain.target)}{whence}."
    if gain.lower:
        said += f" The lower end of the interval, {times(gain.lower)}, counts."
    elif gain.certain:
        said += f" {times(gain.certain)} is certain, and counts." if gain.certain > 1 else " No speed-up is certain."
    if gain.certain and gain.certain >= gain.target and gain.check.points < gain.check.max_points:
        said += " The speed alone would earn all points. The checks say why it doesn't."
    return said


def _compiling(gain: Gain) -> list[str]:
    compile_s, before, after = (
        plausible(gain.check.evidence.get(name)) or 0.0 for name in ("compile_s", "starter_ms", "submission_ms")
    )
    if not compile_s:
        return []
    said = f"Compiling took {rounded(compile_s, 2)} s, which these times don't include."
    if before > after:
        said += f" It pays for itself after {math.ceil(1e3 * compile_s / (before - after)):,} steps."
    return [said]


def bar(gain: Gain, width: int) -> list[str]:
    """The interval on a log axis, and below it where the starter (1x), the target (T) and the reference (R) lie."""
    low, high = gain.span()

    def column(factor: float) -> int:
        return round((width - 1) * math.log(factor / low) / math.log(high / low))

    line = ["─"] * width
    if gain.lower and gain.upper:
        middle = min(max(column(gain.gain), 1), width - 2)
        left, right = min(column(gain.lower), middle - 1), max(column(gain.upper), middle + 1)
        line[left : right + 1] = "━" * (right - left + 1)
        line[left], line[right] = "┣", "┫"
    line[column(gain.gain)] = "●"
    marks = [" "] * width
    start = min(column(1), width - 2)
    marks[start : start + 2] = "1x"
    for letter, factor in (("T", gain.target), ("R", gain.reference)):
        if factor:  # where the place is taken, the nearest free one beside it
            wanted = column(factor)
            marks[min((i for i in range(width) if marks[i] == " "), key=lambda i: abs(i - wanted))] = letter
    return ["".join(line), "".join(marks)]
