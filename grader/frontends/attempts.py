"""Every grade of a lab as a line in a file beside its notebook, and the last report in full."""

import contextlib
import fcntl
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, cast, get_type_hints

from grader import labs
from grader.errors import UserError
from grader.frontends import report
from grader.frontends.gain import Gain, interval
from grader.labs.lab import AnyLab, Form
from grader.result import FAIL, INCONCLUSIVE, Result, write_json
from grader.safe_text import clean, cores_text, plausible, times

MOST = 1000  # attempts that are kept of a lab
SHOWN = 24  # in a ladder: the last ones
NOTE = 1_000  # characters of a note that are kept
DID_NOT_RUN = "did not run"
# why a gain does not count, by the check that failed
OTHER_WORK = {
    "parity": "not the same training",
    "outcome": "not the same outcome",
    "logs": "other logs",
    "checkpoints": "other checkpoints",
    "budget": "too much memory",
}


class Attempt(TypedDict):
    """One grade in one line of a file, and of `grader board --csv`. A number is None where nothing was timed."""

    lab: str
    when: str  # UTC, ISO 8601
    machine: str
    torch: str
    form: str
    points: float | None
    max_points: float | None
    measured_points: float | None  # those that the machine could measure
    gain: float | None
    gain_lower: float | None
    gain_upper: float | None
    gain_certain: float | None
    target: float | None
    rate: float | None  # units a second, of the submission
    unit: str
    counts: bool  # whether the gain counts
    said: str  # why it does not
    quick: bool
    note: str


COLUMNS = get_type_hints(Attempt)  # each one's type


def from_result(lab: AnyLab, result: Result) -> Attempt:
    """A grade of `lab` in one line."""
    evidence = next((check.evidence for check in result.checks if check.name == "throughput"), {})
    why_not = _why_not_counted(result)
    rate, unit = None, ""
    form = lab.sized(result.size).forms.get(result.form)
    if isinstance(form, Form) and evidence.get("submission_ms"):
        work, unit = form.work
        rate, unit = work / evidence["submission_ms"] * 1e3, f"{unit}/s"
    device = result.machine.get("gpu" if result.form == "cuda" else "cpu")
    return Attempt(
        lab=result.lab,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{device}, {cores_text(result.machine.get('cores'))}",
        torch=result.versions.get("torch", ""),
        form=f"{result.form} {result.size}".rstrip(),
        points=result.score,
        max_points=result.max_score,
        measured_points=result.measured_max,
        gain=evidence.get("gain"),
        gain_lower=evidence.get("gain_lower"),
        gain_upper=evidence.get("gain_upper"),
        gain_certain=evidence.get("gain_certain"),
        target=evidence.get("target"),
        rate=rate,
        unit=unit,
        counts=not why_not,
        said=why_not,
        quick=result.quick,
        note="",
    )


def _why_not_counted(result: Result) -> str:
    """Why a grade's gain does not count, in a few words; '' where it does."""
    if result.fatal:
        return DID_NOT_RUN
    if result.disturbed:
        return "not measured"
    failed = [check.name for check in result.checks if check.status == FAIL]
    other = next((OTHER_WORK[name] for name in failed if name in OTHER_WORK), "")
    speed = next((check for check in result.checks if check.name == "throughput" and not check.points), None)
    if other or not speed:
        return other
    if speed.evidence.get("impossible"):
        return "faster than this GPU can be"
    return "undecided" if speed.status == INCONCLUSIVE else ""


def counted_gain(attempt: Attempt) -> float:
    """0 for a gain that does not count."""
    return attempt["gain"] if attempt["counts"] and attempt["gain"] else 0.0


# ---------------------------------------------------------------- on disk


def file_of(folder: Path, lab: str) -> Path:
    return folder / f"attempts-{lab}.json"


def read(path: Path) -> list[Attempt]:
    """The attempts in a file, oldest first; what is damaged is left out."""
    try:
        return _rows(path)
    except (OSError, ValueError, RecursionError):
        return []


def _rows(path: Path) -> list[Attempt]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds no list")
    return [usable(row) for row in rows if isinstance(row, dict) and row.get("lab") in labs.NAMES]


def usable(row: dict[str, Any]) -> Attempt:
    """All columns of what a file says, with a usable value or none."""

    def words(name: str) -> str:
        return clean(row[name]) if isinstance(row.get(name), str) else ""

    def number(name: str) -> float | None:
        value = row.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
        return float(value) if good else None  # type: ignore[arg-type]  # `good` says that it is a number

    gain, certain = plausible(number("gain")), plausible(number("gain_certain"))
    lower, upper = interval({name: number(name) for name in ("gain_lower", "gain_upper", "gain_certain")})
    if not (gain and (lower or certain)):
        gain = lower = upper = None
    readers = {str: words, float | None: number, bool: lambda name: row.get(name) is True}
    machine = re.sub(r", 1 cores$", ", 1 core", words("machine"))  # as it was written once
    made = {name: readers[kind](name) for name, kind in COLUMNS.items()} | {"machine": machine}
    made |= {"gain": gain, "gain_lower": lower, "gain_upper": upper, "gain_certain": certain}
    return cast(Attempt, made | {"target": plausible(number("target"))})


def save(folder: Path, lab: AnyLab, result: Result) -> str:
    """Keep a grade's report and a line of the attempts in the learner's own folder, where the map and the board look. Returns what was
    done, in a sentence: a folder that cannot be written costs the file, not the answer."""
    if result.disturbed:
        return "Not saved, because nothing was measured. An earlier report stays as it is."
    data, page = (folder / f"report-{lab.name}.{kind}" for kind in ("json", "html"))
    try:
        write_json(data, result.to_dict())
        report.write_html(result, page)
        keep(folder, lab, result)
    except (OSError, ValueError) as error:
        return f"The report is shown here only, because {unwritten(error)}"
    with contextlib.suppress(FileNotFoundError):  # the current folder was removed
        page, data = Path(os.path.relpath(page)), Path(os.path.relpath(data))
    return f"Saved as {page} and {data}."


def last_report(folder: Path, lab: str) -> Result | None:
    """The report that was saved last; None where there is none that can be read."""
    try:
        found = Result.from_dict(json.loads((folder / f"report-{lab}.json").read_text(encoding="utf-8")))
        return found if found.lab == lab and all(math.isfinite(check.points) for check in found.checks) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def changes(before: Result, now: Result) -> str:
    """What is other than at the last check, in a line; "" where the two cannot be compared."""
    if now.disturbed or (before.form, before.size, before.quick) != (now.form, now.size, now.quick):
        return ""
    said, old = [], {check.name: check for check in before.checks}
    for check in now.checks:
        was = old.get(check.name)
        if was and abs(check.points - was.points) >= 0.5:
            said.append(f"{check.title} {was.points:.3g} → {check.points:.3g} points")
        elif was and was.status != check.status:
            said.append(f"{check.title} {was.status} → {check.status}")
    earlier, latest = Gain.in_result(before), Gain.in_result(now)
    if earlier and latest:
        said.insert(0, f"{times(earlier.gain)} → {times(latest.gain)} as fast as the starter")
    return f"Since the last check: {', '.join(said)}." if said else "Since the last check nothing changed."


def rung(tried: list[Attempt]) -> str:
    """Where on one's own ladder the last attempt stands; "" where it has no gain, or is the first that has one."""
    alike = [
        (number, each) for number, each in enumerate(tried, 1) if _same_way(each, tried[-1]) and counted_gain(each)
    ]
    if len(alike) < 2 or alike[-1][1] is not tried[-1]:
        return ""
    best, fastest = max(alike, key=lambda one: counted_gain(one[1]))
    if fastest is tried[-1]:
        return f"This is check {len(tried)}, and your fastest loop so far."
    return f"This is check {len(tried)}. Your fastest loop so far was check {best}, {times(counted_gain(fastest))} as fast as the starter."


def _same_way(one: Attempt, other: Attempt) -> bool:
    """Measured so that their gains can be compared."""
    return all(one[name] == other[name] for name in ("machine", "form", "quick"))  # type: ignore[literal-required]


def unwritten(error: Exception) -> str:
    """Why nothing could be written, as the end of a sentence."""
    why = getattr(error, "strerror", None) or str(error)
    return f"nothing could be written into this folder ({why})."


def keep(folder: Path, lab: AnyLab, result: Result) -> None:
    """Add a grade to those of its lab in `folder`; a file that is damaged is put aside. Raises OSError."""
    path = file_of(folder, lab.name)
    with _alone(folder):
        write_json(path, [*_kept(path), from_result(lab, result)][-MOST:])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two notebooks may keep a grade in one folder at the same time."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # network file systems lock no folder, or nothing at all
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _kept(path: Path) -> list[Attempt]:
    try:
        return _rows(path)
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError):
        path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))
        return []


def note(folder: Path, lab: str, words: str) -> None:
    """Put a note to the last attempt. Raises UserError where there is none, OSError."""
    path = file_of(folder, lab)
    with _alone(folder):
        attempts = read(path)
        if not attempts:
            raise UserError("There is nothing to note yet. Run lab.check() first.")
        attempts[-1]["note"] = clean(words, NOTE)
        write_json(path, attempts)


def collect(folder: Path, lab: str | None = None) -> list[Attempt]:
    """All attempts in `folder` and the folders in it, of one lab or of all. Raises UserError where there are none."""
    pattern = f"attempts-{lab or '*'}.json"
    paths = sorted({*folder.glob(pattern), *folder.glob(f"*/{pattern}")})
    attempts = [attempt for path in paths for attempt in read(path) if lab in (None, attempt["lab"])]
    if not attempts:
        of = f" of {lab}" if lab else ""
        raise UserError(f"There are no results{of} in {folder}. lab.check() in a lab's notebook makes the first one.")
    return attempts
