"""What a class's grades amount to: how the marks are distributed, what needs a person's look, what it cost."""

import ast
import functools
import hashlib
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from grader import labs, web_page
from grader.classroom.people import assigned, gradebook_at
from grader.classroom.store import FAILED
from grader.classroom.submissions import HandedIn
from grader.errors import UserError
from grader.labs.lab import Lab
from grader.result import INCONCLUSIVE, NOT_MEASURED, write_json, write_text
from grader.safe_text import clean, csv_text, no_formula, one_line, to_html
from grader.submission import solution

GRADED = "graded"
MISSING = "not graded"  # the run was stopped before
UNREADABLE = "no submission"  # nothing that could be run; its mark is 0
DISTURBED = "disturbed"  # the machine was in use by somebody else: graded again by the next run
UNFINISHED = (MISSING, DISTURBED, FAILED)
FASTER = 1.15  # a gain this much above the reference solution's deserves a look
LONGER_S = 10.0  # so much longer than others a grade must take to deserve one
BINS = 10
ELSEWHERE = "Text outside of the explanation's cell (a person marks it in Formgrader)"
OTHER_RELEASE = "Notebooks of another release of the lab (it may have asked for something else)"
OTHER_DEVICE = (
    "Predicted the gain on another device, so half of these points are lost (tell the class which device grades)"
)
EMPTY: Mapping[str, Sequence[str]] = {}


@dataclass
class Row:
    """One student's grade of one lab."""

    student: str
    lab: str
    status: str
    score: float | None = None
    measured_max: float | None = None
    gain: float | None = None
    target: float | None = None  # the gain that all points were for
    calibrated: bool = True  # whether the target is what the solution gains on this machine
    seconds: float | None = None
    inconclusive: list[str] = field(default_factory=list)
    identical: int | None = None  # a number that all who handed in the same program share
    untouched: bool = False  # the same program as the starter: a group of its own
    quick: bool = False
    why: str = ""  # for what is not simply graded
    machine: str = ""
    date: str = ""
    digest: str = ""
    outlier: str = ""
    form: str = ""  # "cuda", "cpu" or "traces"
    explained: str = ""  # where the explanation stands, if not in its cell
    other_release: bool = False
    other_device: bool = False  # whether the gain that was predicted is another device's, and so was not judged

    @property
    def share(self) -> float | None:
        return self.score / self.measured_max if self.score is not None and self.measured_max else None


def rows(everyone: Iterable[HandedIn], records: dict[tuple[str, str], dict[str, Any] | None]) -> list[Row]:
    """One row for each that was handed in; records by (student, lab), None for what was not graded."""
    made, programs = [], {}
    for one in everyone:
        row = _row(one, records.get((one.student, one.lab)))
        made.append(row)
        if one.submission:
            programs[one.student, one.lab] = (one.lab, program(one.submission.source))
    groups = defaultdict(list)
    for row in made:
        if (row.student, row.lab) in programs:
            groups[programs[row.student, row.lab]].append(row)
    number = 0
    for (lab, made_of), alike in groups.items():
        if made_of == program(labs.get(lab).starter):
            for row in alike:
                row.untouched = True
        elif len(alike) > 1 and not _all_right(alike):
            number += 1
            for row in alike:
                row.identical = number
        if made_of == _solution(lab) and not alike[0].untouched:  # a healthy loop's solution is its starter
            for row in alike:
                row.outlier = "the same program as the course's own solution"
    _outliers(made)
    _one_maximum(made)
    return made


def _one_maximum(made: list[Row]) -> None:
    """Of a lab on a machine the same points can be measured for everybody, whatever was handed in: what can be measured in
    that form. What could not be run is of as many as the lab's others. Where nothing could be measured it stays at none."""
    usual = Counter(row.form for row in made if row.form)
    for name in {row.lab for row in made}:
        mine, lab = [row for row in made if row.lab == name], labs.get(name)
        here = Counter(row.form for row in mine if row.form)
        known = here or Counter({form: n for form, n in usual.items() if form in lab.forms})
        form = known.most_common(1)[0][0] if known else next(iter(lab.forms))
        seen = max((row.measured_max for row in mine if row.measured_max), default=lab.measurable(form))
        for row in mine:
            if row.score is not None and (row.status != GRADED or row.measured_max):
                row.measured_max = lab.measurable(row.form or form) if known else seen


def _all_right(alike: list[Row]) -> bool:
    """Whether they are the right answers to a lab's questions, which are alike by themselves."""
    return not labs.get(alike[0].lab).runs_code and all(row.score and row.score == row.measured_max for row in alike)


@functools.cache
def _solution(lab: str) -> str | None:
    """What the solution's program is; None where it is not here, and where right answers are alike by themselves."""
    try:
        return program(solution(labs.get(lab)).source) if labs.get(lab).runs_code else None
    except UserError:
        return None


def _row(one: HandedIn, record: dict[str, Any] | None) -> Row:
    row = Row(one.student, one.lab, MISSING, explained=one.explained, other_release=one.other_release)
    if one.closed:
        row.why = one.problem
    elif one.submission is None:
        row.status, row.why, row.score = UNREADABLE, one.problem, 0.0
    elif record and FAILED in record:
        row.status, row.why, row.digest = FAILED, record[FAILED], record["digest"]
    elif record:
        result = record["result"]
        row.status, row.why = (DISTURBED, result["disturbed"]) if result["disturbed"] else (GRADED, result["fatal"])
        row.seconds, row.machine, row.date = record["seconds"], record["machine"], record["date"]
        row.digest, row.quick, row.form = record["digest"], result["quick"], result.get("form", "")
        if row.status == GRADED:
            row.score, row.measured_max = result["score"], result["measured_max"]
            row.inconclusive = [c["title"] for c in result["checks"] if c["status"] == INCONCLUSIVE]
            row.other_device = any(check.get("unmeasured") for check in result["checks"])
            for check in result["checks"]:
                evidence = check["evidence"] if check["status"] != NOT_MEASURED else {}
                row.gain = evidence.get("gain", row.gain)
                reference = evidence.get("reference_gain")
                if "target" in evidence:
                    row.target = evidence["target"]
                    lab = labs.get(one.lab)
                    row.calibrated = bool(reference) or (isinstance(lab, Lab) and lab.throughput.healthy)
                if reference and evidence.get("gain_certain", 0) > FASTER * reference:
                    row.outlier = f"{row.gain:.1f} times as fast, while the solution is {reference:.1f} times as fast"
    return row


def _outliers(made: list[Row]) -> None:
    """Grades that took far longer than others: beyond five times the median absolute deviation, half as long again, and `LONGER_S`."""
    # questions take as long as the machine is busy
    for lab in {row.lab for row in made if labs.get(row.lab).runs_code}:
        timed = [(row, row.seconds) for row in made if row.lab == lab and row.seconds and not row.why]
        if len(timed) < 5:
            continue
        middle = median(seconds for _, seconds in timed)
        spread = median(abs(seconds - middle) for _, seconds in timed)
        for row, seconds in timed:
            if seconds > max(middle + 5 * spread, 1.5 * middle, middle + LONGER_S) and not row.outlier:
                row.outlier = f"the grade took {seconds:.0f} s, and half of them take less than {middle:.0f} s"


def program(source: str) -> str:
    """What a submission is apart from white space and comments: equal for two that differ in those alone."""
    try:
        text = ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = source
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


# ---------------------------------------------------------------- figures


@dataclass
class LabFigures:
    lab: str
    handed_in: int
    graded: int
    median: float | None
    quartiles: tuple[float, float] | None
    out_of: float | None
    bins: list[int]  # grades by share of the marks that could be measured, in tenths
    seconds: float | None  # of a device, the median submission
    quick: bool


def figures(made: list[Row]) -> list[LabFigures]:
    found = []
    for lab in labs.NAMES:
        if not (mine := [row for row in made if row.lab == lab]):
            continue
        scored = [row for row in mine if row.share is not None]
        graded = [row for row in scored if row.status == GRADED]
        scores = [row.score for row in scored if row.score is not None]
        cut = quantiles(scores, n=4, method="inclusive") if len(scores) > 1 else None
        bins = Counter(min(BINS - 1, int(BINS * row.share)) for row in scored if row.share is not None)
        # seconds of each grade that was made, those that several students share once
        times = {row.digest: row.seconds for row in mine if row.seconds is not None}
        found.append(
            LabFigures(
                lab=lab,
                handed_in=len(mine),
                graded=len(graded),
                median=median(scores) if scores else None,
                quartiles=(cut[0], cut[2]) if cut else None,
                out_of=max((row.measured_max for row in graded or scored if row.measured_max), default=None),
                bins=[bins[number] for number in range(BINS)],
                seconds=median(times.values()) if times else None,
                quick=any(row.quick for row in mine),
            )
        )
    return found


def groups(made: list[Row]) -> list[list[Row]]:
    """Those who handed in the same program, group by group; the untouched starter is not among them."""
    found = defaultdict(list)
    for row in made:
        if row.identical is not None:
            found[row.identical].append(row)
    return list(found.values())


def _targets(made: list[Row]) -> dict[str, list[str]]:
    """Marks that a calibration would have made others: heading -> lines. A quick look gives no marks."""
    found = defaultdict(list)
    for row in made:
        if row.target and not row.quick:
            found[row.lab, row.machine].append(row)
    uncalibrated, mixed = [], []
    for (lab, machine), alike in found.items():
        counts = Counter(f"{row.target:.2f}x" for row in alike)
        if len(counts) > 1:
            each = ", ".join(f"{target} for {count}" for target, count in counts.items())
            mixed.append(f"{lab} on {machine}: full points need {each}. Grade them again with --again {lab}")
        elif not all(row.calibrated for row in alike):
            uncalibrated.append(f"{lab} on {machine}: `grader calibrate {lab} --for-class` there, then --again {lab}")
    return {
        "Not calibrated, so the lab's minimum gain earns full points": uncalibrated,
        "Graded against different targets, before and after a calibration": mixed,
    }


def _from_book(lines: Callable[[Any, list[Row]], Iterator[str]]) -> Callable[[Path, list[Row]], list[str]]:
    """Lines from nbgrader's gradebook at a path; none where there is none."""

    def found(gradebook: Path, made: list[Row]) -> list[str]:
        try:
            with gradebook_at(gradebook) as book:
                return list(lines(book, made)) if book else []
        except (UserError, OSError) as error:  # the class is graded: that must not be lost for this
            return [str(error).splitlines()[0]]

    return found


@_from_book
def absent(book: Any, made: list[Row]) -> Iterator[str]:
    """Who is in the gradebook and handed nothing in, of each lab that others did."""
    everyone, set_ones = {student.id for student in book.students}, assigned(book)
    for lab in dict.fromkeys(row.lab for row in made if row.lab in set_ones):
        if missing := everyone - {row.student for row in made if row.lab == lab}:
            yield f"{lab}: {', '.join(sorted(missing))}"


@_from_book
def stale(book: Any, made: list[Row]) -> Iterator[str]:
    """Whose points in the gradebook are others than those that were measured. A quick look belongs in no gradebook."""
    from nbgrader.api import MissingEntry

    for row in made:
        if row.status not in (GRADED, UNREADABLE) or row.quick or row.score is None:
            continue
        try:
            grades = book.find_submission_notebook(row.lab, row.lab, row.student).grades
        except (MissingEntry, UnicodeEncodeError):  # a folder's name that is no text is in no gradebook
            continue
        measured = {check.name for check in labs.get(row.lab).checks}
        there = sum(grade.auto_score or 0.0 for grade in grades if grade.name in measured)
        if abs(there - row.score) > 0.01:
            again = f"nbgrader autograde {row.lab} --student {shlex.quote(row.student)} --force"
            yield f"{row.student}, {row.lab}: {there:g} in the gradebook, {row.score:g} measured. Run `{again}`"


def attention(made: list[Row], also: Mapping[str, Sequence[str]] = EMPTY) -> dict[str, list[str]]:
    """What a person should look at: heading -> lines. also: what the grades do not tell, likewise."""
    named = lambda row, why: f"{row.student}, {row.lab}" + (f": {why}" if why else "")  # noqa: E731
    return {
        heading: lines
        for heading, lines in {
            "Failed to grade (the next run tries again)": [named(r, r.why) for r in made if r.status == FAILED],
            "Disturbed (the next run grades them again)": [named(r, r.why) for r in made if r.status == DISTURBED],
            "Not graded yet": [named(r, r.why) for r in made if r.status == MISSING],
            **{heading: list(lines) for heading, lines in also.items()},
            **_targets(made),
            "Nothing that could be graded (no points)": [named(r, r.why) for r in made if r.status == UNREADABLE],
            "Stopped by an error of their own": [named(r, r.why) for r in made if r.status == GRADED and r.why],
            "Inconclusive (--again STUDENT/LAB while nothing else runs measures it anew)": [
                named(r, ", ".join(r.inconclusive)) for r in made if r.inconclusive
            ],
            OTHER_DEVICE: [
                f"{lab}: {', '.join(row.student for row in made if row.lab == lab and row.other_device)}"
                for lab in dict.fromkeys(row.lab for row in made if row.other_device)
            ],
            "Outliers": [named(r, r.outlier) for r in made if r.outlier],
            "Identical, apart from white space and comments": [
                f"{g[0].lab}: {', '.join(row.student for row in g)}" for g in groups(made)
            ],
            ELSEWHERE: [named(r, "") for r in made if r.explained],
            OTHER_RELEASE: [named(r, "") for r in made if r.other_release],
            "The starter, untouched": [named(r, "") for r in made if r.untouched],
        }.items()
        if lines
    }


# ---------------------------------------------------------------- shown and written


def text(made: list[Row], also: Mapping[str, Sequence[str]] = EMPTY, most: int = 10) -> str:
    """For the terminal, which obeys control characters: none of a file's name or an error's text gets there."""
    lines = []
    for each in figures(made):
        lines.append(f"{each.lab}: {each.handed_in} handed in, {each.graded} graded{' (quick)' * each.quick}")
        if each.median is not None:
            spread = f", the middle half from {each.quartiles[0]:g} to {each.quartiles[1]:g}" if each.quartiles else ""
            lines.append(f"  marks: median {each.median:g} of {each.out_of:g}{spread}")
            top = max(each.bins)
            for i, count in enumerate(each.bins):
                lines.append(
                    f"  {10 * i:3d}-{10 * i + 10:3d}% {'█' * math.ceil(40 * count / top)} {count or ''}".rstrip()
                )
        if each.seconds is not None:
            lines.append(f"  {each.seconds:.0f} seconds of a device per submission (median)")
    for heading, found in attention(made, also).items():
        lines += [
            "",
            f"{heading}: {len(found)}",
            *(f"  {clean(' '.join(line.split()))}" for line in (found if heading == ELSEWHERE else found[:most])),
        ]
        if len(found) > most and heading != ELSEWHERE:
            lines.append(f"  and {len(found) - most} more, in the summary's files")
    return "\n".join(lines)


def write(
    made: list[Row], folder: Path, also: Mapping[str, Sequence[str]] = EMPTY, name: str = "summary"
) -> list[Path]:
    """NAME.json, NAME.csv, NAME.html in `folder`, each whole or not at all; returns their paths."""
    paths = [folder / f"{name}.{kind}" for kind in ("json", "csv", "html")]
    write_json(
        paths[0],
        {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "labs": [asdict(each) for each in figures(made)],
            "attention": attention(made, also),
            "grades": [asdict(row) for row in made],
        },
    )
    write_text(paths[1], _csv(made))
    write_text(paths[2], html(made, also))
    return paths


def _csv(made: list[Row]) -> str:
    names = [name for name in asdict(made[0]) if name != "inconclusive"] if made else []
    rows = ([*(getattr(row, name) for name in names), "; ".join(row.inconclusive)] for row in made)
    return csv_text([[*names, "inconclusive"], *(map(_safe, row) for row in rows)])


def _safe(cell: Any) -> Any:
    """Text without control characters; what a spreadsheet would take for a formula is marked as text."""
    if isinstance(cell, str):
        return no_formula(one_line(cell))
    return round(cell, 3) if isinstance(cell, float) else cell


def html(made: list[Row], also: Mapping[str, Sequence[str]] = EMPTY) -> str:
    """One static page: no scripts, nothing to load."""
    parts = ['<div class="sp-title">The class</div>']
    for each in figures(made):
        said = f"{each.handed_in} handed in, {each.graded} graded" + ", by quick measurements" * each.quick
        marks = f"; median {each.median:g} of {each.out_of:g}" if each.median is not None else ""
        cost = f"; {each.seconds:.0f} seconds of a device per submission (median)" if each.seconds is not None else ""
        picture = web_page.image(functools.partial(_draw, each), f"Distribution of the marks of {each.lab}")
        parts.append(web_page.section(each.lab, f"<p>{said}{marks}{cost}</p>", picture))
    for heading, lines in attention(made, also).items():
        parts.append(web_page.section(f"{heading}: {len(lines)}", web_page.items(map(to_html, lines))))
    head = ("student", "lab", "status", "points", "of", "gain", "seconds", "note")
    table = web_page.table(head, [[to_html(cell) for cell in _cells(row)] for row in made])
    parts.append(web_page.section("All", table))
    return web_page.page("The class", "".join(parts), web_page.TABLES)


def _cells(row: Row) -> list[str]:
    numbers = map(_number, (row.score, row.measured_max, row.gain, row.seconds))
    return [row.student, row.lab, row.status, *numbers, row.outlier or row.why or ", ".join(row.inconclusive)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _draw(each: LabFigures) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from grader.trace.words import BLUE

    figure = Figure(figsize=(7.8, 2.2), facecolor="white", layout="constrained")
    axes = figure.subplots()
    bars = axes.bar([10 * i + 5 for i in range(BINS)], each.bins, width=9, color=BLUE)
    axes.bar_label(bars, [count or "" for count in each.bins], fontsize=9)
    axes.set_xticks(range(0, 101, 10), [f"{x}%" for x in range(0, 101, 10)])
    axes.set_xlabel("of the points that could be measured")
    axes.set_ylabel("submissions")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.15)
    return figure
