"""When the steps of a job are warm, and which of them are then timed and recorded. Standard library only; times in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

WARM_STEPS, WARM_S = 12, 3.0  # before that no step counts: compilation, autotuning, caches
NEVER_WARM_S, LONG_STEPS = 60.0, 3  # then it is measured as it is, and said; of long steps so many are enough
WINDOW_S, LEAST_S, FEWEST = 4.0, 1.5, 10  # of the timed steps: at most, at least, and how many at least
FEWER = ((2.0, 4), (10.0, 2))  # where a step takes longer than so many seconds
PRECISION = 0.01  # of a window's mean, as its standard error: a window is no longer than this takes
RECORDED_S, FEWEST_RECORDED, MOST_RECORDED = 20.0, 8, 40  # at most so long; steps
MOST = 2000  # timed steps
LONGEST_QUEUE = 200  # steps until a loader's queue is used up, at most
UNEQUAL = 0.1  # steps that differ by such a share of their length, in the mean, may come in rounds
STATIONARY = 0.03  # two thirds of the warm-up are as fast as each other when they differ by less
NOISY = 0.1  # or by less than their noise lets them, up to this


def rounds(times: Sequence[float], whole: int) -> list[float]:
    """Seconds of a step, in the mean of each round of `whole` steps; the last step ends the last round."""
    count = len(times) // whole
    last = list(times[len(times) - count * whole :])
    return [fmean(last[n * whole : (n + 1) * whole]) for n in range(count)]


def trend(times: Sequence[float], whole: int = 1) -> tuple[float, float, float] | None:
    """The last third of the steps and the one before it, each its median round, and by how much they may differ where nothing changes.
    None for too few steps. Rounds, for three of four steps are fast where four workers' batches come at once."""
    n = _third(times, whole)
    if len(times) < 2 * n * whole:
        return None
    each = rounds(times[-2 * n * whole :], whole)
    before, now = each[:n], each[n:]
    noise = 2 * 1.25 * math.hypot(_spread(before), _spread(now)) / math.sqrt(n)  # of the difference of two medians
    usual = median(before)
    return usual, median(now), max(STATIONARY * usual, min(NOISY * usual, noise))


def _third(times: Sequence[float], whole: int) -> int:
    """In rounds."""
    return min(max(5, len(times) // whole // 3), MOST)


def _spread(values: Sequence[float]) -> float:
    """A standard deviation that single long steps do not change."""
    middle = median(values)
    return 1.4826 * median([abs(value - middle) for value in values])


def alike(first: Sequence[float], second: Sequence[float], whole: int) -> bool:
    """Whether two windows are as fast as each other. One that was cut off says nothing."""
    if len(first) < whole or len(second) < whole:
        return True
    before, now = median(rounds(first, whole)), median(rounds(second, whole))
    return abs(now - before) <= NOISY * before


def warming(times: Sequence[float], passed_s: float, compiled_s: float, loader: dict) -> str:
    """What the warm-up waits for; nothing when it is over. passed_s: since the first step; compiled_s: since then, or since the
    last compilation. loader: its number of workers, and the batches that each prefetches."""
    needed = WARM_STEPS if passed_s <= NEVER_WARM_S else LONG_STEPS
    whole, least = max(1, loader["workers"]), max(needed, min(2 * queue(loader), LONGEST_QUEUE))
    if len(times) < least:
        return f"{least} steps after the first, of which {len(times)} were made"
    if passed_s > NEVER_WARM_S:
        return ""
    if compiled_s < WARM_S:
        since = " since the last compilation" if compiled_s < passed_s else ""
        return f"{WARM_S:g} s of steps{since}, of which {compiled_s:.1f} s had passed"
    found = trend(times, whole)
    if found is None:
        return f"10 rounds of the loader's {whole} workers, of which there were {len(times) // whole}"
    before, now, most = found
    if abs(now - before) <= most:
        return ""
    n = _third(times, whole) * whole
    return f"step times that stay as they are: {_ms(before)}, then {_ms(now)} in the last {n:,} steps"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def queue(loader: dict) -> int:
    """Batches that wait in it when the job is slower than it."""
    return loader["workers"] * loader["prefetch"]


def period(times: Sequence[float]) -> int:
    """After so many steps they come again as they were; 1 for steps that are all alike."""
    last = list(times[-100:])

    def spread(period: int) -> float:
        phases = [last[phase::period] for phase in range(period)]
        return sum(abs(second - median(phase)) for phase in phases for second in phase)

    alike = spread(1)
    if alike < UNEQUAL * sum(last):
        return 1
    return next((n for n in range(2, len(last) // 4 + 1) if spread(n) < alike / 4), 1)


def fewest(step_s: float) -> int:
    """Timed steps, at least."""
    return next((steps for longer, steps in reversed(FEWER) if step_s > longer), FEWEST)


def planned(times: Sequence[float], loader: dict, most_s: float, record: bool = True, turns: bool = True) -> dict:
    """How many steps are timed, twice, and recorded. times: of the last steps; turns: they are in a row."""
    turn = period(times) if turns else 1
    together = math.lcm(max(1, loader["workers"]), turn)
    whole = together if together <= MOST_RECORDED else turn  # rounds of the workers, and of unequal steps
    each = rounds(times[-100:], whole) or [fmean(times) if times else 0.1]
    # without the longest: a pause that nothing explains
    step_s = max(1e-5, fmean(sorted(each)[: max(1, len(each) - 1)]))
    active = -(-max(FEWEST_RECORDED, min(MOST_RECORDED, math.ceil(0.3 / step_s))) // whole) * whole
    # by the noise of whole rounds: where it is small, a short window is as sure as a long one
    needed = (stdev(each) / fmean(each) / PRECISION) ** 2 * whole if len(each) > 2 else math.inf
    timed = min(max(needed, LEAST_S / step_s), most_s / step_s)
    timed = min(MOST, max(fewest(step_s), math.ceil(timed)))
    return {
        "timed": -(-timed // whole) * whole,
        # while the profiler starts, the workers fill their queue: it is used up first
        "warm": max(2, min(queue(loader) + 2, LONGEST_QUEUE if step_s < 1 else 4)),
        "active": max(2, min(active, math.ceil(RECORDED_S / step_s))) if record else 0,
        "step_s": step_s,
        "whole": whole,
    }
