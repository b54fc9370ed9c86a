"""What a night shows: one static page, JUnit XML, a Markdown summary."""

import functools
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from grader import web_page
from grader.nightly import judging, parts
from grader.nightly.history import LAST
from grader.nightly.judging import Assessed
from grader.nightly.night import Night
from grader.nightly.parts import Outcome
from grader.result import write_text
from grader.safe_text import clean, cores_text, one_line, to_html
from grader.web_page import GREEN, GREY, ORANGE, PURPLE, VERMILION, folded, section

COLOURS = {
    parts.FAILED: VERMILION,
    parts.SLOWER: ORANGE,
    parts.MISSING: PURPLE,
    parts.UNDECIDED: GREY,
    parts.SKIPPED: GREY,
    parts.OK: GREEN,
}
MOST = 40  # problems in the text of a night
_CSS = """
.speed-report td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.speed-report .sp-wide td:last-child { min-width: 15em; }
.speed-report .is { font-weight: 600; white-space: nowrap; }
.speed-report .marks { white-space: nowrap; }
"""


def write(night: Night, assessed: Assessed) -> None:
    """index.html, junit.xml and summary.md in the night's folder, each whole or not at all."""
    write_text(night.folder / "index.html", html(night, assessed))
    write_text(night.folder / "junit.xml", junit(night, assessed))
    write_text(night.folder / "summary.md", markdown(night, assessed))


def close(night: Night, assessed: Assessed) -> None:
    """Write the page and the summaries, and, of a night that has all its parts, the line in the history."""
    write(night, assessed)
    if judging.finished(night, assessed):
        night.history.append(judging.entry(night, assessed))


def headline(night: Night, assessed: Assessed) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in assessed.counts().items())
    worst = assessed.worst()
    if not judging.finished(night, assessed):
        return f"Not finished{', and something failed' * (worst == parts.FAILED)}: {counts}"
    timed = any(each.values for each in assessed.outcomes)
    compared = "nothing is slower" if assessed.changes else "too few nights to compare with"
    verdict = {
        parts.FAILED: "Something failed",
        parts.SLOWER: "Everything works; something is slower than before",
        parts.OK: f"Everything works{f', {compared}' * timed}",
    }[worst]
    return f"{verdict}: {counts}"


def about(night: Night) -> str:
    """On what it ran, in one line."""
    manifest = night.manifest
    machines = "; ".join(dict.fromkeys(map(_machine, judging.hosts(night))))
    size = "quick" if manifest["quick"] else "in full"
    course = ", ".join(filter(None, [manifest["commit"] or manifest["grader"], *manifest.get("later_commits", [])]))
    return f"{night.name} on {machines}, torch {manifest['torch']}, course {course}, {size}"


def _machine(host: dict[str, Any]) -> str:
    driver = f", driver {host['driver']}" if host.get("driver") else ""
    return f"{host.get('gpu') or host.get('cpu')}{driver}, {cores_text(host.get('cores'))}"


def _problems(assessed: Assessed) -> list[Outcome]:
    shown = [each for each in assessed.outcomes if each.status in (parts.FAILED, parts.SLOWER)]
    return sorted(shown, key=lambda each: parts.ORDER.index(each.status))


def differences(night: Night, assessed: Assessed) -> list[str]:
    """What is not as it was on the last night that found nothing: course, driver, packages."""
    green = night.history.last_green(night.manifest["device"], night.manifest["quick"], night.name)
    if green is None:
        return []
    now = judging.entry(night, assessed)
    lines = [
        f"{name}: {green.get(name) or '?'} -> {now[name] or '?'}"
        for name in ("commit", "grader")
        if green.get(name) != now[name]
    ]
    for what, missing in (("host", None), ("packages", "not there")):
        old, new = green[what], now[what]
        names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
        lines += [f"{name}: {old.get(name, missing)} -> {new.get(name, missing)}" for name in names]
    return [f"since {green['night']}:", *lines] if lines else [f"since {green['night']}: nothing"]


def markdown(night: Night, assessed: Assessed) -> str:
    lines = [f"# {headline(night, assessed)}", "", about(night), ""]
    problems = _problems(assessed)
    if problems:
        lines += ["| | part | why |", "|---|---|---|"]
        lines += [
            f"| {each.status} | {each.part.name} | {one_line(each.why).replace('|', '/')} |" for each in problems[:MOST]
        ]
        lines += [f"| | and {len(problems) - MOST} more | |"] * (len(problems) > MOST)
        lines.append("")
    changed = differences(night, assessed)
    if changed:
        lines += ["Changed " + changed[0], "", *(f"- {line}" for line in changed[1:]), ""]
    return "\n".join(lines)


def junit(night: Night, assessed: Assessed) -> str:
    root = ET.Element("testsuites", name=f"night {night.name}")
    for kind in parts.KINDS:
        some = [each for each in assessed.outcomes if each.part.kind == kind]
        if not some:
            continue
        bad = [each for each in some if each.status in (parts.FAILED, parts.SLOWER)]
        skipped = [each for each in some if each.status in (parts.SKIPPED, parts.UNDECIDED, parts.MISSING)]
        counts = {"tests": str(len(some)), "failures": str(len(bad)), "errors": "0", "skipped": str(len(skipped))}
        seconds = f"{sum(each.seconds for each in some):.1f}"
        suite = ET.SubElement(root, "testsuite", {"name": kind, **counts, "time": seconds})
        for each in some:
            name = " ".join(filter(None, (each.part.subject, each.part.what)))
            case = ET.SubElement(suite, "testcase", classname=kind, name=name, time=f"{each.seconds:.1f}")
            if each in bad:
                ET.SubElement(case, "failure", type=each.status, message=_xml(each.why))
            elif each in skipped:
                ET.SubElement(case, "skipped", message=_xml(f"{each.status}: {each.why}"))
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(c for c in clean(text) if c in "\t\n" or c.isprintable())


# ---------------------------------------------------------------- the page


def html(night: Night, assessed: Assessed) -> str:
    """The page: no scripts, nothing to load."""
    say = f'<div class="sp-say">{escape(headline(night, assessed))}</div>'
    body = ['<div class="sp-title">A night of the course</div>', f"<p>{escape(about(night))}</p>", say]
    problems = _problems(assessed)
    if problems:
        wrong = [(_status(each), _link(night, each, each.part.name), to_html(each.why)) for each in problems]
        body.append(section("What is wrong", _table(("", "part", "why"), wrong)))
    changed = differences(night, assessed)
    if changed:
        lines = web_page.items(map(escape, changed[1:])) if changed[1:] else ""
        body.append(section("What changed " + changed[0], lines))
    body += [_labs(night, assessed), _notebooks(night, assessed)]
    for table in assessed.tables:
        body.append(section("Adversaries: " + table.split("\n")[1].strip("# "), _from_markdown(table)))
    rows = [(_status(each), escape(each.part.name), _n(each.seconds, 0), str(each.runs)) for each in assessed.outcomes]
    all_parts = _table(("", "part", "seconds", "runs"), rows)
    body.append(section("All parts", folded(f"{len(rows)} parts", all_parts)))
    return web_page.page(f"Night {night.name}", "".join(body), web_page.TABLES + _CSS)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Of HTML; a number stands to the right."""
    return web_page.table(head, rows, numbers_right=True) if rows else ""


def _status(each: Outcome) -> str:
    return f'<span class="is" style="color:{COLOURS[each.status]}">{escape(each.status)}</span>'


def _link(night: Night, each: Outcome, text: str) -> str:
    there = each.notebook and (night.folder / each.notebook).exists()
    return f'<a href="{escape(each.notebook)}">{escape(text)}</a>' if there else escape(text)


def _n(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _labs(night: Night, assessed: Assessed) -> str:
    """A line a lab: marks of solution and starter, what the solution gains, and against the nights before."""
    by_name = {each.part.name: each for each in assessed.outcomes}
    rows, pictures = [], []
    for name in dict.fromkeys(each.part.subject for each in assessed.outcomes if each.part.kind == "grade"):
        solution, starter = by_name.get(f"grade {name} solution"), by_name.get(f"grade {name} starter")
        if solution is None or starter is None:
            continue
        v = solution.values
        against = "<br>".join(escape(change.says()) for change in assessed.changes.get(solution.part.name, []))
        idle = f"{v['gpu_idle']:.0%}" if "gpu_idle" in v else ""
        figures = (_n(v.get("gain")), _n(v.get("step_ms")), _n(v.get("kernels"), 0), idle)
        worse = min(solution, starter, key=lambda each: parts.ORDER.index(each.status))
        rows.append((escape(name), _status(worse), _marks(solution), _marks(starter), *figures, against))
        before = night.history.before(solution.part.name, solution.machine, night.manifest["quick"], night.name)[-LAST:]
        if v.get("step_ms") and len(before) >= 2:
            draw = functools.partial(_draw, name, before, solution)
            pictures.append(web_page.image(draw, f"{name}: gain and step of each night"))
    head = ("lab", "", "solution", "starter", "gain", "ms per step", "kernels", "GPU idle", "against the nights before")
    trends = folded("Trends", "".join(pictures), opened=True) if pictures else ""
    return section("Labs", _table(head, rows) + trends if rows else "")


def _marks(each: Outcome) -> str:
    if each.points is None or not each.out_of:
        return escape(each.status)
    return f'<span class="marks">{each.points:g} of {each.out_of:g}</span>'


def _draw(name: str, before: list[dict[str, Any]], solution: Outcome) -> Any:
    from matplotlib.figure import Figure

    from grader.trace.words import BLUE

    figure = Figure(figsize=(7.8, 1.5), facecolor="white", layout="constrained")
    for axes, series, label in zip(figure.subplots(1, 2), ("gain", "step_ms"), ("gain", "ms per step"), strict=True):
        values = [part["values"].get(series) for part in before] + [solution.values.get(series)]
        values = [float("nan") if value is None else value for value in values]
        axes.plot(range(len(values)), values, color=BLUE, marker="o", markersize=3, linewidth=1)
        axes.plot(len(values) - 1, values[-1], marker="o", markersize=7, color=COLOURS[solution.status])
        axes.set_ylabel(label, fontsize=9)
        axes.set_title(f"{name}, nights, newest on the right", fontsize=9, loc="left")
        axes.set_xticks([])
        axes.tick_params(labelsize=8)
        axes.margins(y=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _notebooks(night: Night, assessed: Assessed) -> str:
    """Each executed notebook with the time of its cells; the last night's beside it."""
    last = night.history.last_green(night.manifest["device"], night.manifest["quick"], night.name)
    known = last["parts"] if last else {}
    blocks, rows = [], []
    for each in assessed.outcomes:
        if each.part.kind not in ("lesson", "solution"):
            continue
        earlier = known.get(each.part.name, {}).get("seconds")
        slowest = max(each.cells, key=lambda cell: cell["seconds"] or 0, default=None)
        said = f"{escape(slowest['id'])} {_n(slowest['seconds'], 1)} s" if slowest and slowest["seconds"] else ""
        name = _link(night, each, each.part.name)
        seconds = each.seconds if each.runs else None
        rows.append((name, _status(each), _n(seconds, 0), _n(earlier, 0), said))
        if each.cells:
            cells = [
                (escape(c["id"]), f"<code>{to_html(c['begins'])}</code>", _n(c["seconds"], 2) or "not reached")
                for c in each.cells
            ]
            table = _table(("cell", "begins", "seconds"), cells)
            blocks.append(folded(each.part.name, table))
    if not rows:
        return ""
    table = _table(("executed notebook", "", "seconds", "last green night", "slowest cell"), rows)
    return section("Notebooks", table, folded("Each cell's seconds", "".join(blocks)))


def _from_markdown(table: str) -> str:
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    rows = [tuple(to_html(cell) for cell in line) for line in lines[2:]]
    return folded(f"{len(rows)} rows", _table(lines[0], rows))


def folder_index(out: Path) -> Path:
    """A page with all nights of a folder, newest first: what a web server shows at its top."""
    names = sorted((path.parent.name for path in out.glob("*/index.html")), reverse=True)
    links = web_page.items(f'<a href="{escape(name)}/index.html">{escape(name)}</a>' for name in names)
    write_text(out / "index.html", web_page.page("Nights", f'<div class="sp-title">Nights</div>{links}'))
    return out / "index.html"
