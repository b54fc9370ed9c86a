"""What one run of a job came to, as numbers (run.json), and whether it was slower than an earlier one."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, quantiles, variance
from typing import Any

from grader.errors import UserError
from grader.measure import decision
from grader.own.running import Seen
from grader.result import read_file

VERSION = 1
SETTLED = 0.25  # of the first steps, which no median counts: compilation and caches
BLOCKS = 8  # a run's step times are compared by the means of so many blocks
# relative sd between runs of one job: each is fast or slow from its start to its end
NOISE = {"cpu": 0.02, "gpu": 0.01}
WORTH = 8  # of so many runs; what the earlier ones show is laid on top
T95 = 1.86  # Student's t for them, so that the interval is one of 90%
ALIKE = 1.1  # as fast, if it is not known to be another speed and surely differs by less
MOST_HELD_UP = 0.95  # share of a block
MOVED = 0.05  # of a step: a part that changed by less is not named


def record(seen: Seen, command: Sequence[str]) -> dict[str, Any]:
    """Times in seconds, memory in bytes, shares from 0 to 1."""
    ranks = [_rank(process) for process in seen.processes]
    return {
        "version": VERSION,
        "command": list(command),
        "status": seen.status,
        "seconds": seen.seconds,
        "lost_to_others": seen.lost,
        "gpu_utilisation_as_shown": fmean(seen.gpu_busy) if seen.gpu_busy else None,
        "ranks": ranks,
    }


def _rank(process: dict[str, Any]) -> dict[str, Any]:
    times, means = (process[name][_settled(process) :] for name in ("times", "means"))
    samples = sum(_whole(count / max(1, process["batches_of"])) * size for size, count in process["batches"])
    timed = [second for look in process["looks"] for window in look["step_s"] for second in window]
    step_s = fmean(timed or means) if timed or means else None
    share = _shares(process)
    deciles = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9 if times else [None] * 9
    return {
        "rank": process["rank"],
        "device": process["device"],
        "torch": process["torch"],
        "steps": process["steps"],
        "steps_are": process["by"],
        "steps_before": process["earlier"],
        "step_s": step_s,
        "step_s_mean": fmean(means) if means else None,
        "step_s_median": median(times) if times else None,
        "step_s_p10": deciles[0],
        "step_s_p90": deciles[8],
        "samples_a_step": round(samples) or None,
        "parts_s": _parts(process, step_s, share["data_wait"]) if step_s else {},
        "share": share,
        "counts": process["counts"],
        "memory": (process["looks"][-1]["memory"] if process["looks"] else {}) | process["memory"],
        "windows_s": [fmean(window) for look in process["looks"] for window in look["step_s"] if window],
        "blocks_s": _blocks(means),
        "blocks_alone_s": _alone(process),
        "over": process["over"],
    }


def _shares(process: dict[str, Any]) -> dict[str, float]:
    """Evaluation and checkpoints of the time since the first step, waiting for data of that of the steps alone."""
    total, stepping = process["total_s"], process["stepping_s"] or 1.0
    apart = {name: min(1.0, total[name] / stepping) for name in ("evaluation", "checkpoints")}
    alone = stepping - total["evaluation"] - total["checkpoints"] - total["recording"]
    return {"data_wait": min(1.0, total["data_wait"] / alone) if alone > 0 else 0.0, **apart}


def _parts(process: dict[str, Any], step_s: float, waiting: float) -> dict[str, float]:
    """Seconds of a step, in the mean, so that they add up. waiting: for data, as a share of all steps, or of those that were timed."""
    parts = {name: seconds for name, seconds in process["parts"].items() if name != "step"}
    if not parts:
        return {"data_wait": waiting * step_s}
    parts.setdefault("data_wait", 0.0)
    length = max(process["parts"].get("step", 0.0), sum(parts.values()))
    parts = {name: seconds * step_s / length for name, seconds in parts.items()} if length else parts
    if "backward" in parts:
        parts["rest"] = max(0.0, step_s - sum(parts.values()))  # forward, copies, and what the script does besides
    return parts


def _whole(batches: float) -> float:
    """Of a step. Some are read in advance."""
    return round(batches) if abs(batches - round(batches)) < 0.1 * batches else batches


def _blocks(means: list[float]) -> list[float]:
    n = len(means) // BLOCKS
    return [fmean(means[i * n : (i + 1) * n]) for i in range(BLOCKS)] if n else means


def _settled(process: dict[str, Any]) -> int:
    """The first step time that counts."""
    first = int(SETTLED * len(process["means"]))
    return first if first < len(process["means"]) else 0


def _alone(process: dict[str, Any]) -> list[float]:
    """As `_blocks`, without the time in which other programs had the processor."""
    means, held_up = (process[name][_settled(process) :] for name in ("means", "held_up"))
    blocks = _blocks(means)
    n = len(means) // len(blocks) if blocks else 0
    steps = process["steps"] / max(1, len(process["means"]))  # for each mean that was told
    alone = []
    for i, block_s in enumerate(blocks):
        lost_s = held_up[(i + 1) * n - 1] - held_up[max(0, i * n - 1)]
        alone.append(block_s * (1 - min(MOST_HELD_UP, lost_s / max(block_s * n * steps, 1e-9))))
    return alone


def read_record(path: str | Path) -> dict[str, Any]:
    """Raises UserError for what no run wrote."""
    try:
        found = json.loads(read_file(Path(path)))
        if (
            found["version"] != VERSION
            or len(found["ranks"][0]["blocks_s"]) < 2
            or not all(map(_usable, found["ranks"]))
        ):
            raise ValueError
        return found
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{path} is no run.json of a job that made steps.") from None


def _usable(rank: dict[str, Any]) -> bool:
    """Whether all that a comparison reads is there. It comes after the job, which may have run for days."""
    numbers = [
        rank["step_s_median"] or 0.0,
        *rank["blocks_s"],
        *rank.get("blocks_alone_s", ()),
        *rank["parts_s"].values(),
    ]
    return isinstance(rank["device"], str) and all(map(math.isfinite, numbers))


def against(earlier: Sequence[dict[str, Any]], now: dict[str, Any]) -> tuple[str, decision.Gain, float]:
    """Faster, as fast, slower or cannot tell; how many times as fast; and the larger share of a run in which other programs had its
    processor. The slowest rank counts. Raises UserError where a run has too few steps. What other programs took is told of one thread,
    so a change counts if it is there with that time and without."""
    runs = [_slowest(run) for run in earlier]
    last = _slowest(now) if now["ranks"] else {"blocks_s": []}
    if min(len(run["blocks_s"]) for run in [*runs, last]) < 2:
        raise UserError("Too few steps were made for a comparison with the earlier run.")
    noise = NOISE["cpu" if last["device"] == "cpu" else "gpu"]
    kinds = ("blocks_s", "blocks_alone_s")
    found, alone = (_gain([_logs(run, kind) for run in runs], _logs(last, kind), noise) for kind in kinds)
    found = replace(found, lower=min(found.lower, alone.lower), upper=max(found.upper, alone.upper))
    said = decision.direction(found)
    if said == decision.UNKNOWN and found.lower > 1 / ALIKE and found.upper < ALIKE:
        said = decision.EQUAL
    return (
        said,
        found,
        max(1 - math.exp(fmean(_logs(run, kinds[1])) - fmean(_logs(run, kinds[0]))) for run in [*runs, last]),
    )


def _logs(rank: dict[str, Any], kind: str) -> list[float]:
    return [math.log(max(second, 1e-9)) for second in rank.get(kind) or rank["blocks_s"]]


def _gain(before: Sequence[Sequence[float]], now: Sequence[float], noise: float) -> decision.Gain:
    """Of logs of times, some from each run. The variance between runs, and that of each run's mean."""
    means, n = [fmean(run) for run in before], len(before)
    shown = (n - 1) * variance(means) if n > 1 else 0.0
    between = (WORTH * noise**2 + shown) / (WORTH + n - 1)
    within = variance(now) / len(now) + fmean(variance(run) / len(run) for run in before) / n
    mean = fmean(means) - fmean(now)
    half = T95 * math.sqrt(between * (1 + 1 / n) + within)
    return decision.Gain(math.exp(mean), math.exp(mean - half), math.exp(mean + half), math.sqrt(between), n)


def moved(earlier: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, float, float]]:
    """The parts of a step that changed by a visible share of it: name, seconds before and now; the largest change first."""
    before, after = _slowest(earlier), _slowest(now)
    rows = [
        (name, before["parts_s"][name], after["parts_s"][name])
        for name in before["parts_s"]
        if name in after["parts_s"]
    ]
    worth = MOVED * before["step_s_median"]
    return sorted((row for row in rows if abs(row[2] - row[1]) > worth), key=lambda row: -abs(row[2] - row[1]))


def _slowest(run: dict[str, Any]) -> dict[str, Any]:
    return max(run["ranks"], key=lambda rank: rank["step_s_median"] or 0.0)
