"""The result of a grade: what was measured, what it was compared with, and the points it gives."""

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from grader.data.cache import whole_file
from grader.errors import UserError

PASS = "PASS"
FAIL = "FAIL"
INCONCLUSIVE = "INCONCLUSIVE"  # measured, but the noise does not allow a verdict
NOT_MEASURED = "NOT MEASURED"  # this machine cannot measure it; never scored
# what to do about INCONCLUSIVE; that machine is the learner's, or that of a class
AGAIN = "Measure again when nothing else runs on the machine that measures, not even a notebook's kernel."


Progress = Callable[[float, str], None]  # share done (0 to 1), what is being done


def silent(share: float, what: str) -> None:
    """Progress that nobody is told."""


@dataclass
class CheckResult:
    """One check's verdict."""

    name: str
    title: str
    status: str
    points: float
    max_points: float
    reason: str  # one or two sentences; of what could not be decided also what to do about the measurement
    hint: str = ""  # what to try next, where the loop is at fault: only a FAIL has one
    evidence: dict[str, Any] = field(default_factory=dict)  # the numbers and thresholds behind it, JSON values only
    more_hints: list[str] = field(default_factory=list)  # the hint again, each more plainly than the one before
    unmeasured: float = 0.0  # so many of `max_points` could not be measured on this machine, where others could

    def __post_init__(self) -> None:
        if self.status != FAIL:
            self.hint, self.more_hints = "", []


def scored(
    check: Any, points: float, reason: str, evidence: dict[str, Any] | None = None, status: str = ""
) -> CheckResult:
    """PASS with all points of a check that has hints, else FAIL with them; another status has neither."""
    status = status or (PASS if points >= check.points else FAIL)
    hint, *deeper = check.hints  # which only a FAIL keeps
    points = round(points, 2)
    return CheckResult(check.name, check.title, status, points, check.points, reason, hint, evidence or {}, deeper)


def unscored(check: Any, status: str, reason: str, evidence: dict[str, Any] | None = None) -> CheckResult:
    """No points for a check (anything with name, title and points), and why."""
    return CheckResult(check.name, check.title, status, 0, check.points, reason, "", evidence or {})


@dataclass
class Result:
    """Everything one grade found out. All of it is JSON; pictures are drawn from `timelines` when they are shown."""

    lab: str
    title: str
    form: str  # "cuda" or "cpu"; which of the lab's GPU forms, see `size`
    checks: list[CheckResult]
    machine: dict[str, Any]
    versions: dict[str, str]
    warnings: list[str] = field(default_factory=list)
    fatal: str = ""  # why the grade ended early: the learner's code failed
    disturbed: str = ""  # or the machine was not fit to measure on
    quick: bool = False
    seed: int | None = None
    seconds: float = 0.0
    date: str = ""
    # "before" (the starter), "after": see `grader.trace.timeline`
    timelines: dict[str, Any] = field(default_factory=dict)
    output: str = ""  # what the submission printed (its end, capped)
    size: str = ""  # of the lab's GPU form, "small"; "" for the largest
    size_why: str = ""  # why it was not the largest
    # what held, see `grader.sandbox.probe`; empty where nothing ran
    confinement: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return round(sum(c.points for c in self.checks), 2)

    @property
    def max_score(self) -> float:
        return sum(c.max_points for c in self.checks)

    @property
    def measured_max(self) -> float:
        """Points that could be measured on this machine."""
        return sum(c.max_points - c.unmeasured for c in self.checks if c.status != NOT_MEASURED)

    def check(self, name: str) -> CheckResult:
        return next(c for c in self.checks if c.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, see `json_value`."""
        own = asdict(self)
        return json_value(
            {
                "lab": own.pop("lab"),
                "score": self.score,
                "max_score": self.max_score,
                "measured_max": self.measured_max,
                **own,
            }
        )

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        d = {k: v for k, v in d.items() if k not in ("score", "max_score", "measured_max")}
        return cls(**{**d, "checks": [CheckResult(**c) for c in d["checks"]]})


def json_value(value: Any) -> Any:
    """Plain JSON: numpy's numbers as Python's, tuples as lists, what is not finite as null."""
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


NO_PLAIN_FILE = "It isn't a plain file"  # but a device, a pipe or a broken link
A_BLOCK = 4096  # bytes: a full disk may still have a name for an empty file


def check_writable(target: str) -> None:
    """Raises UserError for a file that cannot be written: better before than after a minute of work."""
    path = Path(target)
    try:
        if not target or path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.lexists(path) and not path.is_file():  # root could put a file in the place of /dev/null
            raise OSError(errno.EINVAL, NO_PLAIN_FILE)
        _try_out(path.parent)
    except OSError as error:
        what = "a file in a folder that exists, is yours to write to and has room"
        raise UserError(f"{target!r} cannot be written: {error.strerror}. Name {what}.") from None


def made_writable(folder: Path) -> None:
    """Make a folder where it is missing. Raises UserError where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _try_out(folder)
    except OSError as error:
        what = "a folder that is yours to write to and has room"
        raise UserError(f"{str(folder)!r} cannot be written: {error.strerror}. Name {what}.") from None


def _try_out(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(A_BLOCK))
        file.flush()


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of UTF-8. A learner's text may hold surrogates, which no encoding has."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all. An OSError names the file, also one that is there and no plain file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and not (path.is_symlink() or path.is_file()):
        raise OSError(errno.EINVAL, NO_PLAIN_FILE, str(path))
    try:
        with whole_file(path) as part:
            part.write_bytes(content)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def read_file(path: Path) -> bytes:
    """What a file holds, or a pipe that something writes to. Raises OSError, also for a named pipe that nothing writes to."""
    # Opened as usual, such a pipe waits for ever.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        os.set_blocking(file.fileno(), True)
        data = file.read()
        if not data and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "nothing writes to this named pipe", str(path))
        return data


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` of indented JSON. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
