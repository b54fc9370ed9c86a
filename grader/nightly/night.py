"""One night in its folder: measured on a pool, in one go or in pieces, and closed.

FOLDER/night.json        what the night consists of, on what it began
FOLDER/parts/            the record of each run, a file each, kept when it is there: a stopped night goes on where it was
FOLDER/notebooks/        the executed notebooks
FOLDER/index.html, junit.xml, summary.md"""

import contextlib
import importlib.metadata
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader import machine
from grader.classroom.coordinator import TRIES
from grader.classroom.store import FAILED as NOT_MADE
from grader.classroom.store import Store
from grader.classroom.submissions import Call, Task
from grader.errors import UserError
from grader.nightly import parts
from grader.nightly.history import History
from grader.nightly.parts import Part
from grader.paths import REPOSITORY, installed
from grader.result import read_json, write_json, write_text
from grader.version import version

ALIKE = ("device", "quick", "select", "grader", "torch")  # what two pieces of one night have in common
# times that a part was lost, by the pool of one command and by that of the next, which may be another host's
TRIED = 2 * TRIES


class Records(Store):
    """The records of one night. Whatever came of a part stands. A record without timelines is a tenth as large."""

    writer, option = "`grader nightly`", "--night"

    def __init__(self, night: Path) -> None:
        super().__init__(night / "parts")
        self.night = night

    def put(self, job: Task, record: dict[str, Any]) -> dict[str, Any]:
        result = record.get("result", {})
        if "notebook" in result:
            assert isinstance(job, Call)  # nothing else makes a notebook
            path = Path("notebooks", job.lab, *Path(job.arguments["path"]).parts[-2:])
            write_text(self.night / path, result.pop("notebook").rstrip("\n") + "\n")
            result["file"] = str(path)
        for graded in (result, result.get("grade", {})):
            for what, shown in graded.get("timelines", {}).items():
                graded["timelines"][what] = {name: shown[name] for name in ("kernels", "gpu_idle") if name in shown}
            if "output" in graded:
                graded["output"] = graded["output"][-500:]
        before = self.failed(job) if NOT_MADE in record else None
        return super().put(job, record | ({"tries": record.get("tries", 1) + before.get("tries", 1)} if before else {}))

    def read(self, path: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return record if record["date"] and (NOT_MADE in record or record["result"]) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # damaged by hand: it is made again

    def final(self, job: Task, machines: Iterable[str] | None = None, form: str | None = None) -> dict[str, Any] | None:
        """The record that counts: of several the one that measured something, then the newest. machines: those that could make
        another one. It is made where no machine could so far, and where only others, that measured nothing, did."""
        found = self.all_of(job)
        if machines is not None:
            here = set(machines)
            lost = [record for record in found if NOT_MADE in record and record.get("tries", 1) >= TRIED]
            found = lost + [r for r in found if NOT_MADE not in r and (parts.was_measured(r) or r["machine"] in here)]
        return max(found, key=lambda r: (parts.was_measured(r), NOT_MADE not in r, r["date"]), default=None)


@dataclass
class Night:
    folder: Path
    manifest: dict[str, Any]  # night.json
    parts: list[Part]
    history: History

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def records(self) -> Records:
        return Records(self.folder)

    def runs(self, part: Part) -> list[dict[str, Any]]:
        """The records of a part, one a run, as far as they are there without a gap."""
        found: list[dict[str, Any]] = []
        while part.task and len(found) < parts.MOST_TRIES and (record := self.records.final(part.again(len(found)))):
            found.append(record)
        return found


def open_night(folder: Path, manifest: dict[str, Any], made: list[Part], history: History) -> Night:
    """The night in `folder`, begun or gone on with. Raises UserError where one of other parts, or of another state of the
    course, lies there, and for a name that the history knows from a folder that is gone."""
    path = folder / "night.json"
    if path.exists():
        there = _readable(folder)
        for name in ALIKE:
            if there.get(name) != manifest[name]:
                raise UserError(
                    f"The night in {folder} has {name} {there.get(name)!r}, and this one has "
                    f"{manifest[name]!r}. Give this one another name with --night."
                )
        commits = [there["commit"], *there.get("later_commits", [])]
        if manifest["commit"] not in commits:
            there["later_commits"] = [*commits[1:], manifest["commit"]]
            write_json(path, there)
        return Night(folder, there, made, history)
    if any(entry["night"] == folder.name for entry in history.nights()):
        raise UserError(
            f"The history has a night {folder.name!r}, but {folder} holds none. Give this one another name with --night."
        )
    write_json(path, manifest)
    return Night(folder, manifest, made, history)


def read(folder: Path) -> dict[str, Any]:
    """The manifest of the night in `folder`. Raises UserError where none is there, or one of another grader."""
    if not (folder / "night.json").exists():
        raise UserError(f"There is no night in {folder}, because it has no night.json.")
    manifest = _readable(folder)
    if manifest["grader"] != version():
        commit = manifest["commit"].replace("+", ", with changes") or "unknown"
        raise UserError(
            f"The night in {folder} was graded by grader {manifest['grader']}, and this is {version()}. Make its report with "
            f"that state of the course, commit {commit}."
        )
    return manifest


def _readable(folder: Path) -> dict[str, Any]:
    """The manifest. Raises UserError where it is damaged, or does not say all that `describe` does."""
    manifest = read_json(folder / "night.json")
    if {"date", "commit", *ALIKE} <= manifest.keys():
        return manifest
    raise UserError(
        f"{folder / 'night.json'} is damaged, so nobody knows what that night consists of. Begin another "
        "night with --night NAME, or restore the file from a copy."
    )


def unfinished(out: Path, manifest: dict[str, Any], history: History) -> Path | None:
    """The folder of the newest night like this one, as far as its manifest says, that was stopped before it was closed."""
    closed = {entry["night"] for entry in history.nights()}
    like_it = []
    for folder in {path.parent for path in out.glob("*/night.json") if path.parent.name not in closed}:
        with contextlib.suppress(UserError):
            there = _readable(folder)
            if all(there[name] == manifest[name] for name in ALIKE if name in manifest):
                like_it.append((there["date"], folder))
    return max(like_it)[1] if like_it else None


def describe(device: str, quick: bool, select: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a night that begins now."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "quick": quick,
        "select": select,
        "grader": version(),
        "torch": importlib.metadata.version("torch"),
        "commit": _commit(),
        "lacks": parts.lacking(select["labs"]),
        "host": machine.facts(),
        "packages": {d.name.lower(): d.version for d in importlib.metadata.distributions() if d.name},
    }


def _commit() -> str:
    """The course's commit, "+" behind it where files differ from it; "" where git does not tell."""
    if installed():  # around it may lie somebody else's repository
        return ""
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), "describe", "--always", "--exclude=*"]
    try:
        done = subprocess.run([*command, "--abbrev=12", "--dirty=+"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
