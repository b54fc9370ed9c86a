"""What was tried in each lab: `lab.check()` keeps a line of every grade beside the notebook, `lab.log("bf16")` puts a note to
the last one and draws the ladder so far, `grader board` makes the leaderboard of all of them, by machine."""

from __future__ import annotations

import argparse
import contextlib
import csv
import fcntl
import io
import json
import math
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import labs, paths, web_page
from grader.errors import UserError
from grader.frontends import report
from grader.frontends.options import add_json, add_lab
from grader.labs.lab import AnyLab, Form
from grader.result import FAIL, INCONCLUSIVE, Result, check_writable, write_json, write_text
from grader.safe_text import clean, cores_text, plausible, rounded, times, to_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Attempt = dict[str, Any]  # one grade in one line, with the keys of COLUMNS

COLUMNS = (
    "lab", "when", "machine", "torch", "form", "points", "max_points", "measured_points", "gain", "gain_lower", "gain_upper",
    "gain_certain", "target", "rate", "unit", "counts", "said", "quick", "note",
)  # fmt: skip
NUMBERS = (
    "points",
    "max_points",
    "measured_points",
    "gain",
    "gain_lower",
    "gain_upper",
    "gain_certain",
    "target",
    "rate",
)
FORMULA = ("=", "+", "-", "@", "\t")  # how a spreadsheet's formula begins
MOST = 1000  # attempts that are kept of a lab
SHOWN = 24  # in a ladder: the last ones
DID_NOT_RUN = "did not run"
NOTE = 1_000  # characters of a note that are kept


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_lab(parser, default="all")
    parser.add_argument("--html", metavar="FILE", help="write it as a page")
    parser.add_argument("--csv", metavar="FILE", help="write a line a grade; - prints it, and only it")
    add_json(parser, "all of it")
    parser.add_argument(
        "--folder",
        type=Path,
        default=paths.REPOSITORY / "work",
        help="where the notebooks are (default: the course's work/)",
    )


def run(options: argparse.Namespace) -> None:
    """Show all results in the terminal, or write them as the options say."""
    if options.lab:
        labs.get(options.lab)
    attempts = collect(options.folder, options.lab)
    ways = {
        options.html: page,
        options.csv: as_csv,
        options.json: lambda rows: json.dumps(rows, indent=1, ensure_ascii=False) + "\n",
    }
    ways.pop(None, None)
    for target in ways:
        if target != "-":
            check_writable(target)
    for target, made in ways.items():
        if target == "-":
            sys.stdout.write(made(attempts))
        else:
            write_text(target, made(attempts))
    if "-" not in ways:
        print(text(attempts))


def attempt(lab: AnyLab, result: Result) -> Attempt:
    """A grade of `lab` in one line. gain, target and rate (units a second, of the submission) are None where nothing was timed. counts:
    whether the gain counts; said: why it does not."""
    evidence = next((check.evidence for check in result.checks if check.name == "throughput"), {})
    said = _said(result)
    rate, unit = None, ""
    form = lab.forms.get(result.form)
    if isinstance(form, Form) and evidence.get("submission_ms"):
        work, unit = form.work
        rate, unit = work / evidence["submission_ms"] * 1e3, f"{unit}/s"
    gpu, cores = result.machine.get("gpu"), result.machine.get("cores")
    return {
        "lab": result.lab,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{gpu if result.form == 'cuda' else result.machine.get('cpu')}, {cores_text(cores)}",
        "torch": result.versions.get("torch", ""),
        "form": result.form,
        "points": result.score,
        "max_points": result.max_score,
        "measured_points": result.measured_max,
        **{name: evidence.get(name) for name in ("gain", "gain_lower", "gain_upper", "gain_certain", "target")},
        "rate": rate,
        "unit": unit,
        "counts": not said,
        "said": said,
        "quick": result.quick,
        "note": "",
    }


def _said(result: Result) -> str:
    """Why a grade's gain does not count, in a few words; '' where it does."""
    if result.fatal:
        return DID_NOT_RUN
    if result.disturbed:
        return "not measured"
    why = {"parity": "not the same training", "outcome": "not the same outcome", "logs": "other logs", "budget": "too much memory"}  # fmt: skip
    other = next((why[check.name] for check in result.checks if check.name in why and check.status == FAIL), "")
    speed = next((check for check in result.checks if check.name == "throughput" and not check.points), None)
    if other or not speed:
        return other
    if speed.evidence.get("impossible"):
        return "faster than this GPU can be"
    return "undecided" if speed.status == INCONCLUSIVE else ""


# ---------------------------------------------------------------- kept on disk


def file_of(folder: Path, lab: str) -> Path:
    return folder / f"attempts-{lab}.json"


def read(path: Path) -> list[Attempt]:
    """The attempts in a file, oldest first; what is damaged is left out."""
    try:
        return _rows(path)
    except (OSError, ValueError, RecursionError):
        return []


def _rows(path: Path) -> list[Attempt]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, list):
        raise ValueError(f"{path} holds no list")
    return [_whole(each) for each in found if isinstance(each, dict) and each.get("lab") in labs.NAMES]


def _whole(found: dict[str, Any]) -> Attempt:
    """All columns, with a usable value or none."""
    row = {name: found.get(name) for name in COLUMNS}
    for name in NUMBERS:
        value = row[name]
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        row[name] = float(value) if usable else None
    for name in ("lab", "when", "machine", "torch", "form", "unit", "said", "note"):
        row[name] = clean(row[name] if isinstance(row[name], str) else "")
    row["machine"] = re.sub(r", 1 cores$", ", 1 core", row["machine"])  # as it was written once
    for name in ("gain", "gain_certain", "target"):
        row[name] = plausible(row[name])
    row["gain_lower"], row["gain_upper"] = report.interval(row)
    if not (row["gain"] and (row["gain_lower"] or row["gain_certain"])):
        row["gain"] = row["gain_lower"] = row["gain_upper"] = None
    return row | {"counts": row["counts"] is True, "quick": row["quick"] is True}


def save(folder: Path, lab: AnyLab, result: Result) -> str:
    """Keep a grade in the learner's own folder, where the map and the board look for it: the report, and a line of the
    attempts. Returns what was done, in a sentence, with paths from the current folder: a folder that cannot be written costs the file, not the answer."""
    if result.disturbed:
        return "Not saved, for nothing was measured: an earlier report stays as it is."
    data, page = (folder / f"report-{lab.name}.{kind}" for kind in ("json", "html"))
    try:
        write_json(data, result.to_dict())
        report.write_html(result, page)
        keep(folder, lab, result)
    except (OSError, ValueError) as error:
        return f"The report is shown here only: {unwritten(error)}"
    return f"Saved as {os.path.relpath(page)} and {os.path.relpath(data)}."


def unwritten(error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return f"nothing could be written into this folder ({why})."


def keep(folder: Path, lab: AnyLab, result: Result) -> None:
    """Add a grade to those of its lab in `folder`; a file that is damaged is put aside. Raises OSError."""
    path = file_of(folder, lab.name)
    with _alone(folder):
        write_json(path, [*_kept(path), attempt(lab, result)][-MOST:])


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
    with _alone(folder):
        attempts = read(file_of(folder, lab))
        if not attempts:
            raise UserError("There is nothing to note yet: run lab.check() first.")
        attempts[-1]["note"] = clean(words, NOTE)
        write_json(file_of(folder, lab), attempts)


def collect(folder: Path, lab: str | None = None) -> list[Attempt]:
    """All attempts in `folder` and the folders in it, of one lab or of all. Raises UserError where there are none."""
    pattern = f"attempts-{lab or '*'}.json"
    paths = sorted({*folder.glob(pattern), *folder.glob(f"*/{pattern}")})
    found = [each for path in paths for each in read(path) if lab in (None, each["lab"])]
    if not found:
        of = f" of {lab}" if lab else ""
        raise UserError(f"There are no results{of} in {folder}. lab.check() in a lab's notebook makes the first.")
    return found


def ranked(attempts: Iterable[Attempt]) -> Iterator[tuple[str, list[tuple[str, list[Attempt]]]]]:
    """(lab, [(machine, its attempts, best first)]), labs in the order of the course. Best is who has most points, and of equals
    the greatest gain; quick measurements come after all others."""

    def place(each: Attempt) -> tuple:
        return (labs.NAMES.index(each["lab"]), on(each), each["quick"], -(each["points"] or 0), -_counted(each))

    for lab, of_lab in groupby(sorted(attempts, key=place), key=lambda each: each["lab"]):
        yield lab, [(machine, list(rows)) for machine, rows in groupby(of_lab, key=on)]


def on(each: Attempt) -> str:
    """What a figure depends on: the device, and torch's release."""
    release = ".".join(each["torch"].split("+")[0].split(".")[:2])
    return f"{each['machine']}, torch {release}"


def _counted(each: Attempt) -> float:
    return each["gain"] if each["counts"] and each["gain"] else 0.0


# ---------------------------------------------------------------- shown

HEAD = ("", "points", "gain, 90% interval", "speed", "when (UTC)", "note")


def cells(place: int, each: Attempt) -> tuple[str, ...]:
    """An attempt as texts, below HEAD."""
    gain = each["said"] or "–"
    if each["gain"] and not each["said"]:
        low, high = report.interval(each)
        known = f"{times(low)} to {times(high)}" if low and high else f"{times(each['gain_certain'])} is certain"
        gain = f"{times(each['gain'])} ({known})"
    speed = each["rate"]
    rate = "–" if speed is None else f"{rounded(speed, 3) if speed < 1000 else f'{speed:,.0f}'} {each['unit']}"
    when = each["when"][:16].replace("T", " ")
    return f"{place}", _points(each), gain, rate, f"{when}{' (quick)' if each['quick'] else ''}", each["note"]


def _points(each: Attempt) -> str:
    """What could not be measured there is not lost: "60 of 60 (of 100)", and "–" where it is all. A program that did not run
    has lost all the same."""
    points, most, measured = each["points"], each["max_points"] or 0, each["measured_points"]
    if measured is None or each["said"] == DID_NOT_RUN:
        measured = most
    if points is None or (most and not measured):
        return "–"
    return f"{points:g} of {measured:g}" + (f" (of {most:g})" if measured < most else "")


def text(attempts: list[Attempt]) -> str:
    """The board for a terminal."""
    lines = []
    for lab, machines in ranked(attempts):
        lines += [f"{lab}: {labs.get(lab).title}"]
        for machine, rows in machines:
            table = [HEAD, *(cells(place, each) for place, each in enumerate(rows, 1))]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines.append(f"  {machine}")
            lines += [
                "    " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in table
            ]
        lines.append("")
    return "\n".join(lines).rstrip()


def as_csv(attempts: list[Attempt]) -> str:
    """A line a grade, with COLUMNS above; times in UTC."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    # a spreadsheet must not take a note for a formula
    safe = lambda value: f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value  # noqa: E731
    writer.writerows({name: safe(each[name]) for name in COLUMNS} for each in attempts)
    return out.getvalue()


_CSS = """
.speed-report .sp-board { display: grid; grid-template-columns: max-content max-content max-content max-content max-content
  minmax(90px, 1fr); gap: 5px 16px; margin: 8px 0; font-size: 13px; font-variant-numeric: tabular-nums; }
.speed-report .sp-board > div { overflow-wrap: anywhere; }
.speed-report .sp-board .sp-best { font-weight: 600; }
.speed-report .sp-board .sp-not { color: #6b7280; }
"""


def page(attempts: list[Attempt]) -> str:
    """The board as one self-contained page: no scripts, nothing to load."""
    parts = ['<div class="sp-head"><div class="sp-title">Leaderboard</div></div>']
    parts.append(
        '<p class="sp-note">Own results, by machine: what was gained on one machine says little about another.</p>'
    )
    for lab, machines in ranked(attempts):
        parts.append(f'<div class="sp-section"><p class="sp-big">{to_html(f"{lab}: {labs.get(lab).title}")}</p>')
        for machine, rows in machines:
            shown = [f"<div><b>{escape(name)}</b></div>" for name in HEAD]
            for place, each in enumerate(rows, 1):
                kind = "sp-not" if each["said"] else "sp-best" if place == 1 else ""
                shown += [f'<div class="{kind}">{to_html(cell)}</div>' for cell in cells(place, each)]
            parts.append(f'<p><b>{to_html(machine)}</b></p><div class="sp-board">{"".join(shown)}</div>')
            if any(each["gain"] for each in rows):
                in_order = sorted(rows, key=lambda each: each["when"])
                parts.append(web_page.image(lambda rows=in_order: draw(rows), "Gain of each attempt, in their order"))
        parts.append("</div>")
    return web_page.page("Leaderboard", "".join(parts), _CSS)


def draw(attempts: list[Attempt]) -> Figure:
    """The ladder: gain over the starter by attempt, oldest on top, with the 90% interval. What does not count is a cross, a
    quick measurement is hollow, and a line follows the best so far."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from grader.trace.picture import HALO
    from grader.trace.words import BLUE, FAINT, GREEN, INK, VERMILION

    shown = attempts[-SHOWN:]
    target = next((each["target"] for each in reversed(shown) if each["target"]), None)
    lines = [report.interval(each) if each["gain"] else (None, None) for each in shown]
    ends = [1.0, *(end for line, each in zip(lines, shown, strict=True) for end in (*line, each["gain"]) if end)]
    low, high = min(ends), max([*ends, target or 1.0, 1.2])
    pad = (high / low) ** 0.06
    height = 0.27 * len(shown) + 0.95
    figure = Figure(figsize=(8.4, height), facecolor="white")
    axes = figure.add_axes((0.3, 0.5 / height, 0.66, 1 - 0.85 / height))
    axes.set_xscale("log")
    axes.set_xlim(low / pad, high * pad**2)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    width = math.log(high * pad**3 / low)
    clear = width / 16  # of the mark at 1
    ticks = [x for x in report.log_ticks(low / pad, high * pad**2) if x == 1 or abs(math.log(x)) > clear]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    # by their time, which the table has too: its numbers are places
    names = [
        f"{textwrap.shorten(each['note'], 26, placeholder=' …')}  {each['when'][5:16].replace('T', ' ')}"
        for each in shown
    ]
    axes.set_yticks(range(len(shown)), names, fontsize=9, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9, colors=INK)
    axes.set_xlabel("times as fast as the starter (log scale)", fontsize=9, color=INK)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.axvline(1, color=INK, linewidth=1)
    side_by_side = bool(target) and math.log(target) < 0.15 * width  # centred, the two words would touch
    ends_at, begins_at = ("right", "left") if side_by_side else ("center", "center")
    axes.text(1, -0.72, "starter", ha=ends_at, va="bottom", fontsize=9, color=INK)
    if target:
        axes.axvline(target, color=GREEN, linestyle="--", linewidth=1.4, zorder=0)
        axes.text(target, -0.72, f"target {times(target)}", ha=begins_at, va="bottom", fontsize=9, color=INK)
    best = [max([1.0, *(_counted(each) for each in shown[: n + 1])]) for n in range(len(shown))]
    axes.step(best, range(len(shown)), where="pre", color=FAINT, linewidth=1, zorder=1)
    for y, (each, (lower, upper)) in enumerate(zip(shown, lines, strict=True)):
        if lower:
            axes.plot([lower, upper], [y, y], color=BLUE if each["counts"] else VERMILION, linewidth=2)  # fmt: skip
        x, words = each["gain"] or 1.0, times(each["gain"]) if each["counts"] and each["gain"] else each["said"]
        if each["counts"] and each["gain"]:
            axes.plot([x], [y], "o", color=BLUE, markerfacecolor="white" if each["quick"] else BLUE, markersize=6)
        else:
            axes.plot([x], [y], "x", color=VERMILION, markersize=7, markeredgewidth=2)
        right = max(x, upper or x)
        near_end = math.log(right / low) > (0.95 if each["counts"] else 0.7) * math.log(high * pad / low)
        at, side = ((lower or x), "right") if near_end else (right, "left")
        gap = pad**0.3
        axes.text(at / gap if near_end else at * gap, y, words, ha=side, va="center", fontsize=9, color=INK, path_effects=HALO)  # fmt: skip
    return figure
