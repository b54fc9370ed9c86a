"""What a night consists of, and what is expected of each part."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, geometric_mean, stdev
from typing import Any, Protocol

from grader import labs
from grader.classroom.store import FAILED as NOT_MADE
from grader.classroom.submissions import Call, Job, Task
from grader.course.outline import lessons as course_lessons
from grader.errors import UserError
from grader.grading.forms import missing_packages
from grader.labs.lab import AnyLab, Form
from grader.paths import REPOSITORY, course, installed
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, PASS, Result
from grader.submission import read_notebook
from grader.version import definition

ADVERSARIES = REPOSITORY / "tests" / "adversaries"
KINDS = ("lesson", "solution", "grade", "adversary")  # in the order in which they run
IN_A_WHEEL = {"lesson", "grade"}  # of a solution it has no more than what a grade trains
CELL_LIMIT_S = {True: 240.0, False: 600.0}  # of one cell, by quick
TRIES = 3  # what is not as expected is measured again: it may have been noise
MOST_TRIES = 5  # where runs between them measured nothing, for somebody disturbed them
NEAR_ZERO = 0.05  # an untouched lab has at most this share of its points

OK, FAILED, SLOWER, UNDECIDED, MISSING = "ok", "failed", "slower", "undecided", "missing"
SKIPPED = "not measured"  # this device cannot
NOTHING_MEASURED = "none of its checks can be measured on this device"
# a part's verdict, worst first
ORDER = (FAILED, SLOWER, MISSING, UNDECIDED, SKIPPED, OK)


@dataclass(frozen=True)
class Part:
    kind: str  # one of KINDS
    subject: str  # the lab, or a lesson's folder and name
    what: str  # "solution" or "starter" of a grade; the name of the adversary, or of its control; else ""
    task: Task | None  # what the pool makes; None where no machine of this kind can
    # a solution's grade is the one that its notebook came to, if that is executed; this is what grades it again
    retry: Job | None = None
    lacks: str = ""  # why it cannot be made here; a record that another machine made counts all the same
    control: str = ""  # of an adversary: the honest work that it must not beat; of a control: itself
    corpus: Corpus | None = field(default=None, compare=False, repr=False)  # who compares an adversary with its control

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.kind, self.subject, self.what)))

    def again(self, repeat: int) -> Task:
        """The task of run number `repeat`, from 0."""
        assert self.task
        return replace((repeat and self.retry) or self.task, repeat=repeat)


@dataclass
class Outcome:
    part: Part
    status: str
    why: str = ""
    seconds: float = 0.0
    runs: int = 0  # how often it was measured
    machine: str = ""
    values: dict[str, float] = field(default_factory=dict)  # for the history
    noise: dict[str, float] = field(default_factory=dict)  # standard deviation of a value's log; 0 for what has none
    # the watched values of each run; an adversary's results
    repeats: list[dict[str, Any]] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    notebook: str = ""  # below the night's folder
    points: float | None = None
    out_of: float | None = None


class Corpus(Protocol):
    """The adversaries, which lie beside the tests of the course and are handed in as a folder."""

    def parts(self, lab: AnyLab, device: str, number: int, count: int) -> list[Part]:
        """The number-th of `count` shares of those that fit the lab, with the honest work beside them."""

    def judge(self, outcomes: list[Outcome], folder: Path, device: str) -> list[str]:
        """Set the status of each, keep in `folder` what is compared; the tables, in Markdown."""


def corpus_in(folder: Path) -> Corpus:
    """The corpus whose package is this folder. Raises UserError where it is missing."""
    if not folder.is_dir():
        raise UserError(f"{folder.parent} is missing. A night needs the whole course, as it is in its repository.")
    course = str(folder.parents[1])
    if course not in sys.path:
        sys.path.insert(0, course)
    return importlib.import_module(f"{folder.parent.name}.{folder.name}._night")


def plan(
    device: str,
    quick: bool,
    kinds: Iterable[str] = KINDS,
    chosen: Sequence[str] = (),
    lessons: Sequence[str] = (),
    adversaries: tuple[int, int] = (1, 1),
    lacks: dict[str, str] | None = None,
) -> list[Part]:
    """All parts of a night on "cpu" or "cuda". lessons: "2_data/3_overlap" or "2_data"; adversaries: (i, n) for the i-th of n shares;
    lacks: see `lacking`, which is asked where it is None. Raises UserError for one that is not there."""
    kinds, made = set(kinds), []
    if unknown := kinds - set(KINDS):
        raise UserError(
            f"There is no kind of part called {', '.join(sorted(unknown))}. The kinds are {', '.join(KINDS)}."
        )
    if installed() and (lacking_here := [kind for kind in KINDS if kind in kinds - IN_A_WHEEL]):
        raise UserError(
            f"The course was installed from a wheel, which has no parts of the kinds {', '.join(lacking_here)}. Give "
            f"--kinds {','.join(kind for kind in KINDS if kind in IN_A_WHEEL)}, or run `make nightly` in a copy of the repository."
        )
    names = [labs.get(name).name for name in chosen] or list(labs.NAMES)
    if "lesson" in kinds:
        made += [_notebook("lesson", path, device, quick) for path in _lessons(lessons)]
    executed = {}
    if "solution" in kinds:
        paths = {name: course() / "solutions" / name / f"{name}.ipynb" for name in names}
        executed = {name: _notebook("solution", path, device, quick) for name, path in paths.items()}
        made += executed.values()
    for name in names if "grade" in kinds else ():
        for what, folder in (("solution", "solutions"), ("starter", "labs")):
            job = Job(name, read_notebook(course() / folder / name / f"{name}.ipynb"), device, quick)
            part = Part("grade", name, what, job)
            if not {device, "traces"} & labs.get(name).forms.keys():
                part = replace(part, task=None, lacks="it needs an NVIDIA GPU")
            elif what == "solution" and name in executed:
                part = replace(part, task=executed[name].task, retry=job)
            made.append(part)
    if "adversary" in kinds:
        found = corpus_in(ADVERSARIES)
        for name in names:
            made += [replace(part, corpus=found) for part in found.parts(labs.get(name), device, *adversaries)]
    missing = lacking(names) if lacks is None else lacks
    return [replace(part, lacks=part.lacks or missing.get(part.subject, "")) for part in made]


def lacking(chosen: Sequence[str]) -> dict[str, str]:
    """Of these labs, or all where none is named, those that cannot be measured here for want of packages: why."""
    return {name: why for name in chosen or labs.NAMES if (why := missing_packages(labs.get(name)))}


def planned(manifest: dict[str, Any], here: bool = True) -> list[Part]:
    """All parts of the night with this manifest; here: they are to be made on this machine, and not only reported."""
    kinds, names, lessons, (number, count) = (
        manifest["select"][key] for key in ("kinds", "labs", "lessons", "adversaries")
    )
    lacks = None if here else manifest.get("lacks", {})
    return plan(manifest["device"], manifest["quick"], kinds, names, lessons, (number, count), lacks)


def _lessons(chosen: Sequence[str]) -> list[Path]:
    every = {f"{path.parent.name}/{path.stem}": path for path in course_lessons()}
    for each in chosen:
        if not any(name == each or name.startswith(f"{each}/") for name in every):
            raise UserError(f"There is no lesson {each!r}. The lessons are: {', '.join(every)}.")
    return [p for name, p in every.items() if not chosen or name in chosen or name.partition("/")[0] in chosen]


def _notebook(kind: str, path: Path, device: str, quick: bool) -> Part:
    subject = path.stem if kind == "solution" else f"{path.parent.name}/{path.stem}"
    return Part(kind, subject, "", notebook_call(kind, path, device, quick))


def notebook_call(kind: str, path: Path, device: str, quick: bool, cell_limit_s: float = 0.0) -> Call:
    """A notebook to be executed by a worker. A lesson knows `quick`, a solution its device, too."""
    parameters: dict[str, Any] = {"quick": True} if quick else {}
    if kind == "solution":
        parameters = {"device": device, "quick": quick}
    relative = path.relative_to(course()) if path.is_relative_to(course()) else path
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    # a sentence, and outputs that are there, change nothing of what it comes to
    content = json.dumps([(cell["id"], cell["metadata"], cell["source"]) for cell in cells])
    if kind == "solution":
        content += definition(path.stem)
    arguments = {
        "path": str(relative),
        "parameters": parameters,
        "cell_limit_s": cell_limit_s or CELL_LIMIT_S[quick],
        "in_place": kind == "lesson",
    }
    return Call(f"{kind}s", "grader.nightly.notebook:execute", arguments, content, device)


# ---------------------------------------------------------------- what came of it


def was_measured(record: dict[str, Any]) -> bool:
    """Whether a part was made, and came to more than that nothing can be measured on that machine."""
    return NOT_MADE not in record and _measured(record["result"])


def _measured(result: dict[str, Any]) -> bool:
    checks = result.get("grade", result).get("checks")
    return not checks or any(check["status"] != NOT_MEASURED for check in checks)


def outcome(part: Part, records: list[dict[str, Any]]) -> Outcome:
    """What the records of a part, one a run, amount to. Adversaries are compared with their controls afterwards."""
    if not records:
        return Outcome(part, SKIPPED, part.lacks) if part.lacks else Outcome(part, MISSING, "not made yet")
    last = records[-1]
    machine = next((record["machine"] for record in reversed(records) if record.get("machine")), "")
    found = Outcome(part, OK, seconds=last["seconds"], runs=len(records), machine=machine)
    if all(NOT_MADE in record for record in records):
        found.status, found.why = FAILED, last[NOT_MADE]
    elif part.kind in ("lesson", "solution"):
        result = last["result"]
        found.status, found.why = (FAILED, result["why"]) if result["why"] else (OK, "")
        found.cells, found.notebook = result["cells"], result.get("file", "")
    else:
        made = [record["result"] for record in records if NOT_MADE not in record]
        (_of_grades if part.kind == "grade" else _of_adversary)(found, made)
    return found


def _of_grades(found: Outcome, made: list[dict[str, Any]]) -> None:
    graded = [result.get("grade") if "cells" in result else result for result in made]
    if results := [Result.from_dict(result) for result in graded if result]:
        found.seconds = results[-1].seconds
        _graded(found, results)
    else:
        found.status, found.why = FAILED, "its notebook came to no grade"


def _of_adversary(found: Outcome, made: list[dict[str, Any]]) -> None:
    """What its corpus compares afterwards."""
    part = found.part
    if not any(_measured(result) for result in made):
        found.status, found.why, made = SKIPPED, NOTHING_MEASURED, []
    elif part.what == part.control:  # one that was disturbed is no yardstick
        undisturbed = [result for result in made if not result.get("disturbed")]
        if not undisturbed:
            found.status, found.why = UNDECIDED, made[-1]["disturbed"]
        made = undisturbed
    for result in made:
        if part.what in result:  # marks of a notebook that was one of several in its task have their own time
            found.seconds = result[part.what]["seconds"]
    found.repeats = [result.get(part.what, result) for result in made]


def _graded(found: Outcome, results: list[Result]) -> None:
    """The verdict is that of the best run: noise spoils a grade, and makes none."""
    verdicts = [(_unexpected(found.part, result), result) for result in results]
    (found.status, found.why), best = min(verdicts, key=lambda each: -ORDER.index(each[0][0]))
    found.points, found.out_of = best.score, best.measured_max
    for result in results:
        # times of two kinds of machine have no mean
        if result.fatal or result.disturbed or result.machine.get("gpu") != results[-1].machine.get("gpu"):
            continue
        values, noise = figures(result)
        if values:
            found.repeats.append(values)
            found.noise = noise
    for name in {name for values in found.repeats for name in values}:
        every = [values[name] for values in found.repeats if name in values]
        found.values[name] = geometric_mean(every) if min(every) > 0 else fmean(every)
    found.values |= {"points": best.score, "out_of": best.measured_max}


def figures(result: Result) -> tuple[dict[str, float], dict[str, float]]:
    """A grade's (gain, ms a step of submission and starter, kernels a step, share of GPU idleness); and the sd, in the log, of some."""
    evidence = next((c.evidence for c in result.checks if c.name == "throughput"), {})
    if not evidence.get("pairs"):
        return {}, {}
    values = {"gain": evidence["gain"], "step_ms": evidence["submission_ms"], "starter_ms": evidence["starter_ms"]}
    after = result.timelines.get("after", {})
    for name in ("kernels", "gpu_idle"):
        if after.get(name) is not None and result.form == "cuda":
            values[name] = after[name]
    times = [math.log(submission_s) for _, submission_s in evidence["pairs"]]
    n, form = len(times), labs.get(result.lab).sized(result.size).forms[result.form]
    assert isinstance(form, Form)  # only training loops are timed in pairs
    noise = {"gain": evidence["noise"], "step_ms": stdev(times) if n > 1 else 0.0}
    return values, {name: max(sd, form.noise) / math.sqrt(n) for name, sd in noise.items()}


def _unexpected(part: Part, result: Result) -> tuple[str, str]:
    """(status, why) of one grade: the solution passes every check that can be measured, the starter has next to no points."""
    if result.disturbed:
        return UNDECIDED, result.disturbed
    lab = labs.get(part.subject)
    if result.fatal:
        untouched = part.what == "starter" and lab.personal  # it lacks what only its owner has
        return (OK, "") if untouched else (FAILED, result.fatal)
    measured = [c for c in result.checks if c.status != NOT_MEASURED]
    if not measured:
        return SKIPPED, NOTHING_MEASURED
    if part.what == "solution":
        failed = next((c for c in measured if c.status not in (PASS, INCONCLUSIVE)), None)
        if failed:
            return FAILED, f"{failed.title}: {failed.reason}"
        open_ = next((c for c in measured if c.status == INCONCLUSIVE), None)
        return (UNDECIDED, f"{open_.title}: {open_.reason}") if open_ else (OK, "")
    points = sum(c.points for c in measured if c.name != "prediction")
    most = sum(c.max_points for c in measured)
    if points > NEAR_ZERO * most:
        return FAILED, f"the untouched lab has {points:g} of {most:g} points"
    other = next((c for c in measured if c.name in ("parity", "outcome") and c.status == FAIL), None)
    return (FAILED, f"{other.title}: {other.reason}") if other else (OK, "")
