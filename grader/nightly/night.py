"""One night in its folder: measured on a pool, in one go or in pieces, and closed.

FOLDER/night.json        what the night consists of, on what it began
FOLDER/parts/            the record of each run, a file each, kept when it is there: a stopped night goes on where it was
FOLDER/notebooks/        the executed notebooks
FOLDER/index.html, junit.xml, summary.md"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from grader import labs, machine
from grader.classroom.coordinator import TRIES, Task, grade_all
from grader.classroom.store import FAILED as NOT_MADE
from grader.classroom.store import Store
from grader.errors import UserError
from grader.nightly import parts
from grader.nightly.history import Change, History, judge
from grader.nightly.parts import Outcome, Part
from grader.result import write_json, write_text
from grader.version import version

REPOSITORY = Path(__file__).resolve().parents[2]
ALIKE = ("device", "quick", "select", "grader", "torch")  # what two pieces of one night have in common
LIMIT_S = {True: 600.0, False: 1800.0}  # of one part, by quick; a lesson in full is the longest
# times that a part was lost, by the pool of one command and by that of the next, which may be another host's
TRIED = 2 * TRIES


class Records(Store):
    """The records of one night. Whatever came of a part stands, whoever made it; a record without timelines is a tenth as
    large."""

    writer, option = "`grader nightly`", "--night"

    def __init__(self, night: Path) -> None:
        super().__init__(night / "parts")
        self.night = night

    def put(self, job: Task, record: dict[str, Any]) -> dict[str, Any]:
        result = record.get("result", {})
        if "notebook" in result:
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
    told: dict[str, Any]  # night.json
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
        found = []
        for repeat in range(parts.MOST_TRIES if part.task else 0):
            record = self.records.final(part.again(repeat))
            if record is None:
                break
            found.append(record)
        return found


def open_night(folder: Path, told: dict[str, Any], made: list[Part], history: History) -> Night:
    """The night in `folder`, begun or gone on with. Raises UserError where one of other parts, or of another state of the
    course, lies there, and for a name that the history knows from a folder that is gone."""
    path = folder / "night.json"
    if path.exists():
        there = _readable(folder)
        for name in ALIKE:
            if there.get(name) != told[name]:
                raise UserError(
                    f"The night in {folder} has {name} {there.get(name)!r}, this one {told[name]!r}. Give it another name: --night."
                )
        if told["commit"] not in (there["commit"], *there.get("later_commits", [])):
            there["later_commits"] = [*there.get("later_commits", []), told["commit"]]
            write_json(path, there)
        told = there
    elif any(entry["night"] == folder.name for entry in history.nights()):
        raise UserError(
            f"The history has a night {folder.name!r}, but {folder} holds none. Give this one another name: --night."
        )
    else:
        write_json(path, told)
    return Night(folder, told, made, history)


def read(folder: Path) -> dict[str, Any]:
    """What the night in `folder` consists of. Raises UserError where none is there, or one of another grader."""
    if not (folder / "night.json").exists():
        raise UserError(f"There is no night in {folder}: it has no night.json.")
    told = _readable(folder)
    if told["grader"] != version():
        commit = told["commit"].replace("+", ", with changes") or "unknown"
        raise UserError(
            f"The night in {folder} was graded by grader {told['grader']}, and this is {version()}. Make its report with "
            f"that state of the course, commit {commit}."
        )
    return told


def _told(folder: Path) -> dict[str, Any] | None:
    """What night.json says; None where it is damaged, or does not say all that `describe` does."""
    try:
        told = json.loads((folder / "night.json").read_text(encoding="utf-8"))
        return told if {"date", "commit", *ALIKE} <= told.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _readable(folder: Path) -> dict[str, Any]:
    told = _told(folder)
    if told is None:
        raise UserError(
            f"{folder / 'night.json'} is damaged, so nobody knows what that night consists of. Begin another one with --night NAME, "
            "or put the file back from a copy."
        )
    return told


def unfinished(out: Path, told: dict[str, Any], history: History) -> Path | None:
    """The folder of the newest night like this one, as far as it is told, that was stopped before it was closed."""
    closed = {entry["night"] for entry in history.nights()}
    there = ((path.parent, _told(path.parent)) for path in out.glob("*/night.json"))
    like_it = [
        (found["date"], folder)
        for folder, found in there
        if found and folder.name not in closed and all(found[name] == told[name] for name in ALIKE if name in told)
    ]
    return max(like_it)[1] if like_it else None


def describe(device: str, quick: bool, select: dict[str, Any]) -> dict[str, Any]:
    """What night.json says."""
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
    git = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=20)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + "+" * bool(changed.stdout.strip()) if head.returncode == 0 else ""


# ---------------------------------------------------------------- measuring


def measure(
    night: Night,
    pool: Any,
    shard: tuple[int, int] = (1, 1),
    until: float = float("inf"),
    kinds: Container[str] = parts.KINDS,
    subjects: Container[str] = (),
) -> None:
    """Make what is missing, and again what is not as expected. shard: (i, n) for the i-th of n shares; kinds, subjects: see
    `chosen`; nothing is begun that, as far as is known, would not be done at `until` (`time.monotonic()`)."""
    mine = [part for part in chosen(share(night.parts, *shard), kinds, subjects) if not part.lacks]
    grade_all_of(night, pool, [(part, 0) for part in mine], until)
    for _ in range(1, parts.MOST_TRIES):
        found = assess(night)
        wanted = [(part, run) for part, run in again(night, found) if part in mine]
        if not wanted:
            break
        grade_all_of(night, pool, wanted, until)


def chosen(made: list[Part], kinds: Container[str], subjects: Container[str]) -> list[Part]:
    """The parts of these kinds, of these labs and lessons; of all, where none is named."""
    return [part for part in made if part.kind in kinds and (not subjects or part.subject in subjects)]


def share(made: list[Part], number: int, count: int) -> list[Part]:
    """Every `count`-th part, those that take long spread evenly; parts that are made together stay together, and so do a lab's
    adversaries and what they are compared with. Shares of one night add up to it."""
    tasks = [
        f"adversary {part.subject}" if part.kind == "adversary" else part.task.digest if part.task else ""
        for part in made
    ]
    places = {digest: place for place, digest in enumerate(dict.fromkeys(tasks))}
    return [part for part, digest in zip(made, tasks, strict=True) if places[digest] % count == number - 1]


def grade_all_of(night: Night, pool: Any, wanted: list[tuple[Part, int]], until: float) -> None:
    tasks: dict[str, tuple[Task, list[Part]]] = {}
    for part, run in wanted:
        task = part.again(run)
        tasks.setdefault(task.digest, (task, []))[1].append(part)
    progress = Progress(night, pool, [part for part, _ in wanted])
    made = list(tasks.values())
    if progress.workers > 1:
        made = longest_first(made, progress.known)
    try:
        grade_all(
            [task for task, _ in made],
            pool,
            night.records,
            limit_s=LIMIT_S[night.told["quick"]],
            until=until,
            takes_s=lambda task: takes_s(tasks[task.digest][1], progress.guess),
            begun=progress.begin,
            done=lambda task, record: progress.done(tasks[task.digest][1][-1], record),
            keep=True,
        )
    finally:
        progress.close()


def longest_first(tasks: list[tuple[Task, list[Part]]], known: dict[str, float]) -> list[tuple[Task, list[Part]]]:
    """Tasks, each with the parts that it makes, in an order that leaves no worker busy long after the others. known: seconds of
    parts in an earlier night, by name; one that is not there takes as long as the others do on average."""
    usual = fmean(known.values()) if known else 1.0
    return sorted(tasks, key=lambda each: -takes_s(each[1], lambda part: known.get(part.name, usual)))


def takes_s(made: list[Part], each: Callable[[Part], float]) -> float:
    """Seconds of the task that makes these parts, of which each takes so long. A solution's grade is made by its notebook."""
    return sum(each(part) for part in made if part.kind == "solution") or sum(map(each, made))


class Progress:
    """A line a part on standard error, or a bar on a terminal, with the time left: from the last night's times, else from
    those of this night's parts of the kind."""

    def __init__(self, night: Night, pool: Any, wanted: list[Part]) -> None:
        self.waiting = {part.name: part for part in wanted}
        self.workers = max(1, pool.size())
        self.took: dict[str, list[float]] = {}  # seconds of parts, by kind
        for found in (parts.outcome(part, night.runs(part)) for part in night.parts):
            if found.runs:
                self.took.setdefault(found.part.kind, []).append(found.seconds)
        last = next((entry for entry in reversed(night.history.nights()) if _alike(entry, night.told)), {"parts": {}})
        self.known = {name: part["seconds"] for name, part in last["parts"].items()}
        self.bar: Any = None
        self.count = self.made = 0

    def begin(self, count: int) -> None:
        from tqdm import tqdm

        self.count = count
        if count:
            kinds = ", ".join(dict.fromkeys(part.kind for part in self.waiting.values()))
            print(
                f"{count} task{'s' * (count > 1)} ({kinds}); parts that are made together are one task",
                file=sys.stderr,
                flush=True,
            )
        form = "{desc} {bar} {n_fmt}/{total_fmt} {postfix}"
        self.bar = tqdm(total=count, desc="night", bar_format=form, leave=False, disable=None)

    def guess(self, part: Part) -> float:
        """Seconds that a part takes; 0 where nothing is known of any."""
        if known := self.known.get(part.name):
            return known
        every = [seconds for times in self.took.values() for seconds in times]
        return fmean(self.took.get(part.kind) or every or [0.0])

    def left_s(self) -> float:
        missing = sorted(map(self.guess, self.waiting.values()), reverse=True)
        return sum(missing[: self.count - self.made]) / self.workers

    def done(self, part: Part, record: dict[str, Any]) -> None:
        self.made += 1
        self.waiting.pop(part.name, None)
        self.took.setdefault(part.kind, []).append(record["seconds"])
        problem = record.get(NOT_MADE) or record["result"].get("why") or record["result"].get("fatal") or ""
        left = f"about {self.left_s() / 60:.0f} min left of these tasks"
        if self.bar is None or self.bar.disable:
            said = f"{self.made}/{self.count} {part.name}: {record['seconds']:.0f} s{', ' * bool(problem)}{problem}; {left}"
            print(said, file=sys.stderr, flush=True)
        else:
            self.bar.set_postfix_str(f"({part.name}; {left})")
            self.bar.update()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _alike(entry: dict[str, Any], told: dict[str, Any]) -> bool:
    return entry["device"] == told["device"] and entry["quick"] == told["quick"]


# ---------------------------------------------------------------- judging


@dataclass
class Assessed:
    outcomes: list[Outcome]
    changes: dict[str, list[Change]]  # by the part's name
    tables: list[str]  # Markdown: adversaries, a lab each
    compared: set[str]  # parts that had nights to be compared with

    def worst(self) -> str:
        """The night's status: failed, slower, missing, or ok."""
        found = {each.status for each in self.outcomes}
        return next((status for status in (parts.FAILED, parts.SLOWER, parts.MISSING) if status in found), parts.OK)


def assess(night: Night) -> Assessed:
    """What the records say by now."""
    outcomes = [parts.outcome(part, night.runs(part)) for part in night.parts]
    tables = _compare_adversaries(night, outcomes)
    changes, compared = {}, set()
    for found in outcomes:
        if found.part.kind != "grade" or found.part.what != "solution" or not found.repeats:
            continue
        before = night.history.before(found.part.name, found.machine, night.told["quick"], night.name)
        made = judge(found, before)
        if made:
            compared.add(found.part.name)
            changes[found.part.name] = made
        if any(change.slower for change in made) and found.status != parts.FAILED:
            found.status = parts.SLOWER
            found.why = "; ".join(change.says() for change in made if change.slower)
    return Assessed(outcomes, changes, tables, compared)


def again(night: Night, found: Assessed) -> list[tuple[Part, int]]:
    """What is to be measured again, with the number of the run: a grade or an adversary that is not as expected, with the
    adversary's control, and a part that looks slower."""
    wanted: dict[str, tuple[Part, int]] = {}
    by_name = {each.part.name: each for each in found.outcomes}

    def want(each: Outcome) -> None:
        lost = each.runs - len(each.repeats) if each.repeats else 0  # runs that measured nothing
        if 0 < each.runs < min(parts.TRIES + lost, parts.MOST_TRIES) and not each.part.lacks:
            wanted[each.part.name] = (each.part, each.runs)

    for each in found.outcomes:
        name = each.part.name
        if each.part.kind == "grade":
            unclear = each.status == parts.FAILED or (each.status == parts.UNDECIDED and not night.told["quick"])
            # a solution whose notebook came to no grade is graded without it
            gradable = each.points is not None or each.part.retry
            if gradable and (unclear or any(c.suspicious for c in found.changes.get(name, []))):
                want(each)
        elif each.part.kind == "adversary" and each.status in (parts.FAILED, parts.UNDECIDED):
            control = by_name.get(f"adversary {each.part.subject} {_control(each.part)}")
            lost = control is not None and not control.repeats  # it says nothing of an adversary
            if control is each or (each.repeats and not lost):
                want(each)
                if control:
                    want(control)
    return list(wanted.values())


def _control(part: Part) -> str:
    adversaries, _ = parts.corpus()
    return {each.name: each.control for each in adversaries.corpus()}.get(part.what, part.what)


def _compare_adversaries(night: Night, outcomes: list[Outcome]) -> list[str]:
    """Set the status of each adversary and control, and keep what is compared as `python -m tests.adversaries` does; the
    tables. Of several runs the least of an adversary's points count, against the most of its control's."""
    mine = [each for each in outcomes if each.part.kind == "adversary"]
    if not mine:
        return []
    adversaries, run = parts.corpus()
    corpus = {each.name: each for each in adversaries.corpus()}
    tables = []
    for lab in dict.fromkeys(each.part.subject for each in mine):
        folder = night.folder / "adversaries" / night.told["device"] / lab
        here = {each.part.what: each for each in mine if each.part.subject == lab}
        for name, each in here.items():
            path = run.path_of(folder, name)
            if not each.repeats:  # what an earlier record said counts no more
                path.unlink(missing_ok=True)
                continue
            best = max if name == "solution" else min  # what speaks for the grader
            kept = dict(best(each.repeats, key=lambda made: made["points"])) | {"tries": each.runs}
            control = here.get(corpus[name].control) if name in corpus else None
            if control and control.repeats:
                kept["control"] = run.most(*control.repeats)
            each.points = kept["points"]
            each.values = {"points": each.points}
            write_json(path, kept)
        some = [corpus[name] for name in here if name in corpus]
        rows = run.rows(folder, some, labs.get(lab), night.told["device"])
        for row in rows:
            each = here.get(row.name)
            if each is None or each.status in (parts.FAILED, parts.MISSING, parts.SKIPPED):
                continue
            if row.verdict.startswith(("PROFITS", "BROKEN", "LOST")):
                each.status, each.why = parts.FAILED, f"{row.verdict}: {row.reason}"
            elif row.verdict == run.UNDECIDED:
                each.status, each.why = parts.UNDECIDED, row.reason
            elif row.verdict == "not graded":
                control = here.get(corpus[row.name].control)
                each.status, each.why = {
                    parts.FAILED: (parts.FAILED, "its control could not be graded"),
                    parts.UNDECIDED: (parts.UNDECIDED, "its control is undecided"),
                }.get(control.status if control else "", (parts.MISSING, "its control is missing"))
        tables.append(run.table(f"{lab} on {night.told['device']}", rows))
    return tables


# ---------------------------------------------------------------- closing


def finished(night: Night, found: Assessed) -> bool:
    return not again(night, found) and all(each.status != parts.MISSING for each in found.outcomes)


def hosts(night: Night) -> list[dict[str, Any]]:
    """The machines that graded, the one of most grades first; the one that the night began on where nothing was graded."""
    made = (run["result"] for part in night.parts for run in night.runs(part) if "result" in run)
    graded = (result.get("grade", result) for result in made)
    facts = [result["machine"] for result in graded if "checks" in result]
    return sorted(facts, key=facts.count, reverse=True) or [night.told["host"]]


def entry(night: Night, found: Assessed) -> dict[str, Any]:
    """The night's line in the history."""
    told = night.told
    return {
        "night": night.name,
        "date": told["date"],
        "status": found.worst(),
        **{name: told[name] for name in ("device", "quick", "select", "grader", "torch", "commit", "packages")},
        "host": hosts(night)[0],
        "parts": {
            each.part.name: {
                name: value
                for name, value in (
                    ("status", each.status),
                    ("why", each.why),
                    ("seconds", each.seconds),
                    ("runs", each.runs),
                    ("machine", each.machine),
                    ("values", each.values),
                    ("noise", each.noise),
                )
                if value not in ("", {}, None)
            }
            for each in found.outcomes
        },
    }


def close(night: Night, found: Assessed) -> None:
    """Write the page and the summaries, and, of a night that has all its parts, the line in the history."""
    from grader.nightly import report

    report.write(night, found)
    if finished(night, found):
        night.history.append(entry(night, found))


def statuses(found: Assessed) -> Iterator[tuple[str, int]]:
    for status in parts.ORDER:
        if count := sum(each.status == status for each in found.outcomes):
            yield status, count
