"""All nights, one line of JSON each, in a file that is only ever appended to; and what is slower than before.

A line is {"night", "date", "status", "quick", "device", "host", "code", "packages", "parts": {name: {"status", "seconds",
"machine", "values", "noise"}}}, or {"accept": part, "date"}: what that part measured before is no yardstick any more."""

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from grader.measure import decision
from grader.nightly import parts
from grader.nightly.parts import Outcome

LAST = 20  # nights that are compared with
LEAST = 5  # of which there must be so many
FIRST = 10  # nights that are compared with as well, once there are more than LAST: what creeps is as slow as the last nights
SURE = 3  # half intervals that a change must be away from none; see `judge`
WATCHED = {"step_ms": 1, "gain": -1}  # what may not get slower; -1: more is faster


class History:
    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        """All lines, oldest first. One that a kill cut short is left out."""
        found = []
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        for line in text.split("\n"):  # no other separator: a message may hold them
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found

    def nights(self) -> list[dict[str, Any]]:
        return [entry for entry in self.lines() if "night" in entry]

    def append(self, entry: dict[str, Any]) -> None:
        """Add a line, whole or cut short and then not read; a night that is there is not added again."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if "night" in entry and any(entry["night"] == known["night"] for known in self.nights()):
                return
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            torn = end > 0 and file.read(1) != b"\n"
            text = json.dumps(entry, ensure_ascii=False, allow_nan=False)
            file.write(b"\n" * torn + text.encode("utf-8", "backslashreplace") + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def accept(self, part: str) -> None:
        """From the next night on, compare a part with nights from now on only."""
        self.append({"accept": part, "date": datetime.now(UTC).isoformat(timespec="seconds")})

    def before(self, name: str, machine: str, quick: bool, night: str = "") -> list[dict[str, Any]]:
        """What the nights before `night` measured of a part on the same kind of machine and release of torch, since it was
        accepted last, oldest first. Those on which it was slower are left out: they are no yardstick."""
        found: list[dict[str, Any]] = []
        for entry in self.lines():
            if entry.get("accept") == name:
                found = []
            if entry.get("night") == night and night:
                break
            part = entry.get("parts", {}).get(name)
            if part and entry.get("quick") == quick and part.get("machine") == machine:
                found.append(part)
        # a night that was disturbed has points alone
        measured = [part for part in found if any(part.get("values", {}).get(series) for series in WATCHED)]
        return [part for part in measured if part["status"] in (parts.OK, parts.UNDECIDED)]

    def last_green(self, device: str, quick: bool, night: str = "") -> dict[str, Any] | None:
        """The newest night before `night` that found nothing."""
        found = None
        for entry in self.nights():
            if entry["night"] == night:
                break
            if entry["status"] == parts.OK and entry["device"] == device and entry["quick"] == quick:
                found = entry
        return found


@dataclass(frozen=True)
class Change:
    """How many times as fast a part was as in other nights, with the 90% interval of a night like them; `suspicious`:
    its last run alone lies beyond it on the slow side; `slower`: it surely does. nights: which ones, in words."""

    series: str
    nights: str
    found: decision.Gain
    suspicious: bool
    slower: bool
    runs: int

    def says(self) -> str:
        f = self.found
        return (
            f"{NAMES[self.series]} {f.factor:.3f}x the {self.nights} (90% interval {f.lower:.3f} to {f.upper:.3f}; "
            f"{self.runs} run{'s' * (self.runs > 1)})"
        )


NAMES = {"step_ms": "the solution's steps per second:", "gain": "its gain over the starter:"}


def judge(outcome: Outcome, before: list[dict[str, Any]]) -> list[Change]:
    """Compare a part's watched figures with those of the last nights before; where there are more, also with those of the first ones.

    One of fifty series lies beyond a 90% interval every night. So it is measured again, and called slower when every run of three is
    beyond it, and their mean by SURE half intervals. How often that is wrong: data/measured/nights.md."""
    first = before[:FIRST] if len(before) > LAST else []
    return [
        *_changes(outcome, before[-LAST:], "{} nights' before"),
        *(each for each in _changes(outcome, first, "first {} nights'") if each.suspicious),
    ]


def _changes(outcome: Outcome, nights: list[dict[str, Any]], which: str) -> list[Change]:
    changes = []
    for series, sign in WATCHED.items():
        with_it = [part for part in nights if part["values"].get(series)]
        now = [values[series] for values in outcome.repeats if values.get(series)]
        if len(with_it) < LEAST or not now:
            continue
        # a few nights can agree by luck: no less noise than a run's own blocks show
        noises = [outcome.noise, *(part.get("noise", {}) for part in with_it)]
        floor = median(noise.get(series, 0.0) for noise in noises)
        slowness = [part["values"][series] ** sign for part in with_it]
        each = [decision.change(slowness, [value**sign], floor) for value in now]
        found = decision.change(slowness, [value**sign for value in now], floor)
        beyond = [one.upper < 1 for one in each]
        sure = found.factor * (found.upper / found.factor) ** SURE < 1
        slower = len(now) >= parts.TRIES and all(beyond) and sure
        changes.append(Change(series, which.format(found.pairs), found, all(beyond), slower, len(now)))
    return changes
