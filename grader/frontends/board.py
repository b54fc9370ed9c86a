"""`grader board`: the leaderboard of all attempts, by lab and machine; and the ladder of one lab's."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from grader import labs, paths, web_page
from grader.frontends.attempts import COLUMNS, DID_NOT_RUN, Attempt, collect, counted_gain
from grader.frontends.gain import interval
from grader.frontends.options import add_json, add_lab
from grader.result import check_writable, write_text
from grader.safe_text import csv_text, no_formula, rounded, times, to_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = ("", "points", "gain, 90% interval", "speed", "when (UTC)", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_lab(parser, default="all")
    parser.add_argument("--html", metavar="FILE", help="write the board as an HTML page")
    parser.add_argument("--csv", metavar="FILE", help="write one line per grade (- prints only these lines)")
    add_json(parser, "all of it")
    folder = "folder with the notebooks (default: the course's work/)"
    parser.add_argument("--folder", type=Path, default=paths.learners() / "work", help=folder)


def run(options: argparse.Namespace) -> None:
    """Show all results in the terminal, or write them as the options say."""
    if options.lab:
        labs.get(options.lab)
    attempts = collect(options.folder, options.lab)
    forms: dict[str | None, Callable[[list[Attempt]], str]] = {
        options.html: page,
        options.csv: as_csv,
        options.json: lambda rows: json.dumps(rows, indent=1, ensure_ascii=False) + "\n",
    }
    targets = {target: form for target, form in forms.items() if target is not None}
    for target in targets:
        if target != "-":
            check_writable(target)
    for target, form in targets.items():
        if target == "-":
            sys.stdout.write(form(attempts))
        else:
            write_text(target, form(attempts))
    if "-" not in targets:
        print(text(attempts))


def ranked(attempts: Iterable[Attempt]) -> Iterator[tuple[str, list[tuple[str, list[Attempt]]]]]:
    """(lab, [(machine, its attempts)]): labs in the course's order, attempts by points, then by gain, quick ones last."""

    def place(attempt: Attempt) -> tuple[int, str, bool, float, float]:
        lab, points = labs.NAMES.index(attempt["lab"]), attempt["points"] or 0
        return lab, machine_of(attempt), attempt["quick"], -points, -counted_gain(attempt)

    for lab, of_lab in groupby(sorted(attempts, key=place), key=lambda attempt: attempt["lab"]):
        yield lab, [(machine, list(rows)) for machine, rows in groupby(of_lab, key=machine_of)]


def machine_of(attempt: Attempt) -> str:
    """What a figure depends on: the device, and torch's release."""
    release = ".".join(attempt["torch"].split("+")[0].split(".")[:2])
    return f"{attempt['machine']}, torch {release}"


def cells(place: int, attempt: Attempt) -> tuple[str, ...]:
    """An attempt as texts, below HEAD."""
    gain = attempt["said"] or "–"
    if attempt["gain"] and not attempt["said"]:
        low, high = interval(attempt)
        certain = attempt["gain_certain"] or 0.0
        known = f"{times(low)} to {times(high)}" if low and high else f"{times(certain)} is certain"
        gain = f"{times(attempt['gain'])} ({known})"
    speed = attempt["rate"]
    rate = "–" if speed is None else f"{rounded(speed, 3) if speed < 1000 else f'{speed:,.0f}'} {attempt['unit']}"
    when = attempt["when"][:16].replace("T", " ") + " (quick)" * attempt["quick"]
    return f"{place}", _points(attempt), gain, rate, when, attempt["note"]


def _points(attempt: Attempt) -> str:
    """What could not be measured is not lost: "60 of 60 (of 100)", "–" where it is all. A program that did not run has lost."""
    points, most, measured = attempt["points"], attempt["max_points"] or 0, attempt["measured_points"]
    if measured is None or attempt["said"] == DID_NOT_RUN:
        measured = most
    if points is None or (most and not measured):
        return "–"
    return f"{points:g} of {measured:g}" + (f" (of {most:g})" if measured < most else "")


def text(attempts: list[Attempt]) -> str:
    lines = []
    for lab, machines in ranked(attempts):
        lines += [f"{lab} · {labs.get(lab).title}"]
        for machine, rows in machines:
            table = [HEAD, *(cells(place, attempt) for place, attempt in enumerate(rows, 1))]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines.append(f"  {machine}")
            for row in table:
                padded = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
                lines.append(f"    {'  '.join(padded)}".rstrip())
        lines.append("")
    return "\n".join(lines).rstrip()


def as_csv(attempts: list[Attempt]) -> str:
    """A line a grade, with an attempt's names above; times in UTC."""
    rows = ([no_formula(v) if isinstance(v, str) else v for v in attempt.values()] for attempt in attempts)
    return csv_text([COLUMNS, *rows])


_CSS = """
.speed-report.speed-report.speed-report .sp-table td { font-variant-numeric: tabular-nums; }
.speed-report.speed-report.speed-report .sp-table td.sp-best { font-weight: 600; }
.speed-report.speed-report.speed-report .sp-table td.sp-not { color: #4b5563; }
.speed-report.speed-report.speed-report .sp-table td:not(:last-child) { white-space: nowrap; }
.speed-report.speed-report.speed-report .sp-table td:last-child { min-width: 10em; }
"""


def page(attempts: list[Attempt]) -> str:
    """The board as one self-contained page: no scripts, nothing to load."""
    note = "Your results, by machine. A gain on one machine says little about a different one."
    parts = [web_page.heading("Leaderboard"), f'<p class="sp-note">{note}</p>']
    for lab, machines in ranked(attempts):
        tables = (_table_html(machine, rows) for machine, rows in machines)
        parts.append(web_page.section(f"{lab} · {labs.get(lab).title}", *tables))
    return web_page.page("Leaderboard", "".join(parts), _CSS)


def _table_html(machine: str, rows: list[Attempt]) -> str:
    shown = ["".join(f'<th scope="col">{escape(name or "place")}</th>' for name in HEAD)]
    for place, attempt in enumerate(rows, 1):
        kind = "sp-not" if attempt["said"] else "sp-best" if place == 1 else ""
        shown.append("".join(f'<td class="{kind}">{to_html(cell)}</td>' for cell in cells(place, attempt)))
    ladder = ladder_image(sorted(rows, key=lambda attempt: attempt["when"]))
    table = f'<table class="sp-table">{"".join(f"<tr>{row}</tr>" for row in shown)}</table>'
    return f'<p><b>{to_html(machine)}</b></p><div class="sp-wide">{table}</div>{ladder}'


def ladder_image(attempts: list[Attempt]) -> str:
    """The gains of attempts, oldest first, as HTML; "" where none was timed."""
    if not any(attempt["gain"] for attempt in attempts):
        return ""
    return web_page.image(partial(_draw, attempts), "Gain of each attempt, in their order")


def _draw(attempts: list[Attempt]) -> Figure:
    from grader.frontends.gain_pictures import draw_ladder  # here, for the weight of matplotlib

    return draw_ladder(attempts)
