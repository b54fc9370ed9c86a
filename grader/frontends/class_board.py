"""`grader class board`: the leaderboard of a class, by lab and machine, of those who agreed to be on it."""

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from grader import labs, web_page
from grader.classroom import summary
from grader.classroom.marks import read_table
from grader.classroom.store import Store
from grader.classroom.submissions import Job, read_class
from grader.classroom.summary import GRADED, Row
from grader.errors import UserError
from grader.frontends.classroom import RESULTS, add_class, record
from grader.result import check_writable, write_text
from grader.safe_text import one_line, times, to_html

HEAD = ("place", "name", "points", "gain")


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=show)
    add_class(sub)
    agreed = "CSV with a column student for everyone who agreed, and a column name for what they want to be called"
    sub.add_argument("--agreed", type=Path, required=True, metavar="FILE", help=agreed)
    sub.add_argument("--html", metavar="FILE", help="write the board as an HTML page")


def show(options: argparse.Namespace) -> None:
    if options.html:
        check_writable(options.html)
    names = _agreed(options.agreed)
    everyone = read_class(options.release, options.submitted, options.lab)
    store = Store(options.results or options.submitted.absolute().parent / RESULTS)
    records = {
        (one.student, one.lab): record(store, Job(one.lab, one.submission)) for one in everyone if one.submission
    }
    rows = [row for row in summary.rows(everyone, records) if row.student in names and row.status == GRADED]
    handed_in = {one.student for one in everyone}
    for heading, some in (
        ("Handed nothing in", names.keys() - handed_in),
        ("No full grade yet, so not on the board", (names.keys() & handed_in) - {row.student for row in rows}),
    ):
        if some:
            print(f"{heading}: {', '.join(map(one_line, sorted(some)))}", file=sys.stderr)
    if not rows:
        raise UserError("Nobody who agreed has a full grade yet. Run `grader class` first.")
    for (lab, machine), table in ranked(rows, names):
        print(f"{lab} · {labs.get(lab).title}\n  {one_line(machine)}")
        for cells in table:
            print(
                f"    {'  '.join(f'{cell:<{width}}' for cell, width in zip(cells, (5, 24, 12, 8), strict=True))}".rstrip()
            )
    if options.html:
        write_text(options.html, page(rows, names))


def _agreed(path: Path) -> dict[str, str]:
    """Student -> the name on the board."""
    head, body = read_table(path)
    if "student" not in head:
        raise UserError(f"{path} has no column student. It lists who agreed to be on the board, one student a line.")
    found = {row["student"].strip(): one_line(row.get("name", "").strip()) for row in body if row["student"].strip()}
    return {student: name or student for student, name in found.items()}


def ranked(rows: list[Row], names: dict[str, str]) -> Iterator[tuple[tuple[str, str], list[tuple[str, str, str, str]]]]:
    """((lab, machine), the cells of its rows), labs in the order of the course. Who is equal shares a place."""
    place = lambda row: (labs.NAMES.index(row.lab), row.machine, -(row.score or 0), -(row.gain or 0))  # noqa: E731
    for key, found in groupby(sorted(rows, key=place), key=lambda row: (row.lab, row.machine)):
        mine, table = list(found), []
        for row in mine:
            rank = 1 + sum((other.score or 0) > (row.score or 0) for other in mine)
            gain = times(row.gain) if row.gain and row.score else "–"
            table.append((f"{rank}", names[row.student], f"{row.score:g} of {row.measured_max:g}", gain))
        yield key, table


def page(rows: list[Row], names: dict[str, str]) -> str:
    """One page that loads nothing."""
    parts = [web_page.heading("Leaderboard of the class")]
    parts.append('<p class="sp-note">Of those who agreed. A gain on one machine says little about another.</p>')
    for (lab, machine), table in ranked(rows, names):
        cells = web_page.table(HEAD, [[to_html(cell) for cell in row] for row in table])
        parts.append(web_page.section(f"{lab} · {labs.get(lab).title}", f"<p>{to_html(machine)}</p>", cells))
    return web_page.page("Leaderboard of the class", "".join(parts), web_page.TABLES)
