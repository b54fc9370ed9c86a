"""Grading of one adversary or control, and the comparison of the two."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader import labs
from grader.grade import grade
from grader.grading.forms import QUIET
from grader.labs.lab import Lab
from grader.measure.blocks import Plan
from grader.result import INCONCLUSIVE, NOT_MEASURED, Result, write_json
from grader.submission import Submission
from tests import adversaries
from tests.adversaries import Adversary, _class

PLAN = Plan(
    block_s=0.8,
    block_steps=2,
    min_pairs=3,
    max_pairs=8,
    precision=0.12,
    profile_steps=2,
    profile_starter=False,
    use_up_s=6.0,
)


def plan_of(lab: Lab, device: str) -> Plan:
    """Where blocks hardly differ, two short pairs say as much, and a GPU is through its corpus earlier."""
    quiet = getattr(lab.forms[device], "noise", 1.0) <= QUIET  # a benchmark's form has none
    return replace(PLAN, block_s=0.4, min_pairs=2) if quiet else PLAN


# Two grades of the same loop differ: a gain of 2% in a lab with a target of 3x is one point of fifty. An adversary that is
# no better than its control must not be called one that profits by that.
NOISE = 2.0
TRIES = 3  # a profit that cannot be had again was noise
UNDECIDED = "undecided"  # a control that noise left without its points
CONTROL_KEEPS = {"starter": (0, 3), "half fix": (10, 70), "solution": (65, 100)}  # per cent of what was measured


@dataclass(frozen=True)
class Row:
    name: str
    category: str
    points: float | None
    control: float | None
    verdict: str
    reason: str


def path_of(folder: Path, name: str) -> Path:
    """Where the result of an adversary or a control is kept."""
    return folder / f"{name.replace(' ', '_')}.json"


def kept(folder: Path, name: str, make: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The result in the folder; made with `make(*arguments)` and written where it is missing."""
    path = path_of(folder, name)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, make(*arguments))
    return json.loads(path.read_text(encoding="utf-8"))


def compared(folder: Path, lab: Lab, device: str, each: Adversary) -> None:
    """Grade an adversary. One that seems to profit is graded again, with its control: the least of its points count, and
    the most of the control's."""
    found = kept(folder, each.name, adversary, lab, device, each)
    beside = kept(folder, each.control, control, lab, device, each.control)
    for _ in range(found.get("tries", 1), TRIES):
        if not profits(found, found.get("control", beside)):
            return
        best = most(found.get("control", beside), control(lab, device, each.control))
        tries = found.get("tries", 1) + 1
        found = least(found, adversary(lab, device, each)) | {"control": best, "tries": tries}
        write_json(path_of(folder, each.name), found)


def control(lab: Lab, device: str, name: str) -> dict[str, Any]:
    source = adversaries.CONTROLS[name](lab.name)
    return seen(grade(Submission(source), lab, device=device, plan=plan_of(lab, device)))


def adversary(lab: Lab, device: str, each: Adversary) -> dict[str, Any]:
    if each.tamper:
        return _class.grade_tampered(lab, device, each.tamper)
    return seen(grade(Submission(each.source(lab.name)), lab, device=device, plan=plan_of(lab, device)))


def tampered(lab: str, device: str, names: list[str]) -> dict[str, Any]:
    """nbgrader's marks of notebooks that the adversaries of these names tampered with, by name, with the seconds that each took."""
    corpus, marks = {each.name: each for each in adversaries.corpus()}, {}
    try:
        for name in names:
            began = time.monotonic()
            marks[name] = _class.grade_tampered(labs.get(lab), device, corpus[name].tamper)
            marks[name]["seconds"] = round(time.monotonic() - began, 1)
    finally:
        _class.forget()
    return marks


def seen(result: Result) -> dict[str, Any]:
    """What is kept of a grade. gain, certain: the measured gain, and the part of it that is certain, for which there are
    points; share: of throughput's points. None where nothing was timed. undecided: whether noise left points open."""
    throughput = next((c for c in result.checks if c.name == "throughput"), None)
    timed = throughput.evidence if throughput else {}
    return {
        "points": points(result),
        "reason": reason(result),
        "output": result.output[-500:],
        "gain": timed.get("gain"),
        "certain": timed.get("gain_certain"),
        "share": throughput.points / throughput.max_points if timed else None,
        "undecided": bool(throughput and throughput.status == INCONCLUSIVE),
    }


def points(result: Result) -> float:
    """Points for what was measured: all but the prediction, which no loop can change."""
    return sum(c.points for c in result.checks if c.status != NOT_MEASURED and c.name != "prediction")


def reason(result: Result) -> str:
    """Why the loop got what it got, in short."""
    if result.fatal or result.disturbed:
        return result.fatal or result.disturbed
    parity = next((c for c in result.checks if c.name == "parity"), None)
    if parity and parity.status == "FAIL":
        return parity.reason
    # of 3i its shapes
    return next((c.reason for c in result.checks if c.name == "throughput"), result.checks[0].reason)


def profits(found: dict[str, Any], control: dict[str, Any]) -> bool:
    """Whether an adversary has more points than the honest work beside it, by more than two grades of one loop differ.

    Points are for what is certain of a gain, so a loop that was timed with less noise has more of them. That is no profit:
    one that is not certainly faster than its control is compared with what the control would have at the same certainty."""
    honest = control["points"]
    if found.get("share") and control.get("share") and found["certain"] <= control["gain"]:
        honest *= max(1.0, found["share"] / control["share"])
    return found["points"] > honest + NOISE


def least(*records: dict[str, Any]) -> dict[str, Any]:
    return min(records, key=lambda record: record["points"])


def most(*records: dict[str, Any]) -> dict[str, Any]:
    return max(records, key=lambda record: record["points"])


def rows(folder: Path, corpus: list[Adversary], lab: Lab, device: str) -> list[Row]:
    """What the results in the folder say, the controls first."""
    made = []
    most = sum(c.points for c in lab.checks if c.name != "prediction" and lab.measures(c, device))
    for name, (least, greatest) in CONTROL_KEEPS.items():
        found = _read(folder, name)
        if found:
            share = 100 * found["points"] / most
            verdict = "keeps its points" if least <= share <= greatest else f"LOST: expected {least} to {greatest}%"
            if share < least and found.get("undecided"):
                verdict = UNDECIDED
            made.append(Row(name, "control", found["points"], None, verdict, found["reason"]))
    for each in corpus:
        found, control = _read(folder, each.name), _read(folder, each.control)
        if not found or not control:
            made.append(Row(each.name, each.category, None, None, "not graded", ""))
            continue
        honest = found.get("control", control)
        verdict = "PROFITS" if profits(found, honest) else "no profit"
        if re.search(r"NameError|UnboundLocalError|SyntaxError|TypeError", found["reason"]):
            verdict = "BROKEN: a mistake in the adversary"  # it was stopped, but not for what it tries
        made.append(Row(each.name, each.category, found["points"], honest["points"], verdict, found["reason"]))
    return made


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = path_of(folder, name)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def table(title: str, made: list[Row]) -> str:
    number = lambda x: "-" if x is None else f"{x:.1f}"  # noqa: E731
    lines = [
        f"\n## {title}\n",
        "| name | category | points | honest control | verdict | why |",
        "|---|---|---|---|---|---|",
    ]
    for row in made:
        why = " ".join(row.reason.split()).replace("|", "/")
        lines.append(
            f"| {row.name} | {row.category} | {number(row.points)} | {number(row.control)} | {row.verdict} | {why} |"
        )
    return "\n".join(lines)


def table_of_times(title: str, times: list[list[Row]]) -> str:
    """A row for each adversary or control that was graded several times: the least and the most of its points."""
    lines = [
        f"\n## {title}\n",
        "| name | category | grades | points | honest control | verdicts |",
        "|---|---|---|---|---|---|",
    ]
    by_name: dict[str, list[Row]] = {}
    for row in (row for rows in times for row in rows if row.points is not None):
        by_name.setdefault(row.name, []).append(row)
    for name, graded in by_name.items():
        verdicts = Counter(row.verdict for row in graded)
        said = ", ".join(f"{verdict}: {number}" for verdict, number in verdicts.most_common())
        own, control = _span(row.points for row in graded), _span(row.control for row in graded)
        lines.append(f"| {name} | {graded[0].category} | {len(graded)} | {own} | {control} | {said} |")
    return "\n".join(lines)


def _span(points: Iterable[float | None]) -> str:
    known = sorted({f"{x:.1f}" for x in points if x is not None}, key=float)
    return " to ".join(dict.fromkeys((known[0], known[-1]))) if known else "-"
