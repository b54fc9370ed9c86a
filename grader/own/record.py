"""What one run of a job came to, as numbers (run.json), and whether it was slower than an earlier one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from grader.errors import UserError
from grader.measure import decision
from grader.own.running import Seen

VERSION = 1
SETTLED = 0.25  # of the first steps, which no median counts: compilation and caches
BLOCKS = 8  # a run's step times are compared by the means of so many blocks
NOISE = (
    0.02  # least relative sd between runs to believe: two processes of one job differ, each from its start to its end
)
MOVED = 0.05  # of a step: a part that changed by less is not named


def record(seen: Seen, command: Sequence[str]) -> dict[str, Any]:
    """Times in seconds, memory in bytes, shares from 0 to 1."""
    ranks = [_rank(process) for process in seen.processes]
    return {
        "version": VERSION,
        "command": list(command),
        "status": seen.status,
        "seconds": seen.seconds,
        "gpu_utilisation_as_shown": fmean(seen.gpu_busy) if seen.gpu_busy else None,
        "ranks": ranks,
    }


def _rank(process: dict[str, Any]) -> dict[str, Any]:
    times = process["times"][int(SETTLED * len(process["times"])) :] or process["times"]
    samples = sum(_whole(count / max(1, process["steps"])) * size for size, count in process["batches"])
    timed = [second for look in process["looks"] for window in look["step_s"] for second in window]
    step_s = fmean(timed or times) if timed or times else None
    share = _shares(process)
    deciles = quantiles(times, n=10) if len(times) > 1 else [times[0]] * 9 if times else [None] * 9
    return {
        "rank": process["rank"],
        "device": process["device"],
        "torch": process["torch"],
        "steps": process["steps"],
        "steps_are": process["by"],
        "step_s": step_s,
        "step_s_mean": fmean(times) if times else None,
        "step_s_median": median(times) if times else None,
        "step_s_p10": deciles[0],
        "step_s_p90": deciles[8],
        "samples_a_step": round(samples) or None,
        "parts_s": _parts(process, step_s, share["data_wait"]) if step_s else {},
        "share": share,
        "counts": process["counts"],
        "memory": (process["looks"][-1]["memory"] if process["looks"] else {}) | process["memory"],
        "windows_s": [fmean(window) for look in process["looks"] for window in look["step_s"] if window],
        "blocks_s": _blocks(times),
        "over": process["over"],
    }


def _shares(process: dict[str, Any]) -> dict[str, float]:
    """Evaluation and checkpoints of the time since the first step, waiting for data of that of the steps alone."""
    total, stepping = process["total_s"], process["stepping_s"] or 1.0
    apart = {name: min(1.0, total[name] / stepping) for name in ("evaluation", "checkpoints")}
    alone = stepping - total["evaluation"] - total["checkpoints"] - total["recording"]
    return {"data_wait": min(1.0, total["data_wait"] / alone) if alone > 0 else 0.0, **apart}


def _parts(process: dict[str, Any], step_s: float, waiting: float) -> dict[str, float]:
    """Seconds of a step, in the mean like the step itself, so that they add up. waiting: for data, as a share of all steps; where
    steps were timed, of those."""
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
    """Of a step. Some are read in advance, or before the first step."""
    return round(batches) if abs(batches - round(batches)) < 0.1 * batches else batches


def _blocks(times: list[float]) -> list[float]:
    n = len(times) // BLOCKS
    return [fmean(times[i * n : (i + 1) * n]) for i in range(BLOCKS)] if n else times


def read_record(path: str | Path) -> dict[str, Any]:
    """Raises UserError for what no run wrote."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if found["version"] != VERSION or not found["ranks"][0]["blocks_s"]:
            raise ValueError
        return found
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{path} is no run.json of a job that made steps.") from None


def against(earlier: Sequence[dict[str, Any]], now: dict[str, Any]) -> tuple[str, decision.Gain]:
    """Faster, as fast, slower or cannot tell, and how many times as fast. The slowest rank counts. Of several earlier runs one
    time each, so that what differs from run to run is known; of one its blocks. Raises UserError where this run has too few steps."""
    blocks = [_slowest(run)["blocks_s"] for run in earlier]
    before = [median(each) for each in blocks] if len(blocks) > 1 else blocks[0]
    times = _slowest(now)["blocks_s"] if now["ranks"] else []
    if len(before) < 2 or not times:
        raise UserError("Too few steps were made for a comparison with the earlier run.")
    found = decision.change(before, times, NOISE)
    return decision.direction(found), found


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
