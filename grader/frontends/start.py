"""The start notebook's two displays: what this machine is, and the map of the course."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from grader import labs, machine
from grader.course import outline
from grader.errors import DAMAGED, UserError
from grader.frontends import attempts, cli
from grader.frontends.commands import doctor
from grader.result import read_json
from grader.safe_text import cores_text, prose_to_html

HOSTED = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE")  # in the environment there
COLAB = "https://colab.research.google.com/github/{repository}/blob/main/{place}"


def this_machine() -> None:
    """Show in one line what this machine is and how many labs it can grade, and below it, folded, what `grader doctor` says."""
    facts = machine.facts()
    has = facts["gpu"] or "no NVIDIA GPU"
    line = (
        f"{has}, {cores_text(facts['cores'])}: {len(doctor.gradable())} of {len(labs.NAMES)} labs can be graded here."
    )
    with contextlib.redirect_stdout(io.StringIO()) as details:
        cli.main(["doctor"])
    # JupyterLab would break lines within words
    style = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
    folded = f'<details><summary>Details</summary><pre style="{style}">{escape(details.getvalue())}</pre></details>'
    shown = f"<p><b>This machine:</b> {escape(line)}</p>{folded}"
    display({"text/html": shown, "text/plain": f"This machine: {line}"}, raw=True)


def course_map(repository: str = "") -> None:
    """Show the map: phases with their lessons and labs in order, and how far the learner is with each lab. A lab's
    button makes a working copy and links to it.

    repository: owner/name on GitHub. Colab and Kaggle open no notebook of the machine that they lend, so links lead there."""
    known = grades_here()
    address: Callable[[str], str] | None = None
    if hosted := repository or any(name in os.environ for name in HOSTED):
        address = lambda place: COLAB.format(repository=repository, place=place) if repository else ""  # noqa: E731
    shown: dict[str, Any] = {"text/html": as_html(address, known), "text/plain": text(known)}
    if not hosted:
        view = {"version_major": 2, "version_minor": 0, "model_id": _map(known).model_id}
        shown["application/vnd.jupyter.widget-view+json"] = view
    display(shown, raw=True)


def as_html(address: Callable[[str], str] | None = None, known: Known | None = None) -> str:
    """The map where no widget is shown. address: where a link leads, from a path below the course's folder, "" for nowhere; None for
    beside this notebook. known: here and below, the grades, where they were read already."""
    known = known or grades_here()
    parts = [_path(known, lambda place, words: _link(place, words, address))]
    for phase in outline.PHASES:
        parts.append(_heading(phase))
        for stop in phase.stops:
            if isinstance(stop, outline.Lesson):
                parts.append(_row(_kind(stop), _link(stop.place, stop.title, address), ""))
                continue
            place = stop.place if stop.file.exists() and not address else f"labs/{stop.name}/{stop.name}.ipynb"
            link = _link(place, f"{stop.name} {stop.declared.title}", address)
            core = " <b>(core path)</b>" if stop.core else ""
            below = f"{link}{core}<br><small>{prose_to_html(stop.declared.goal)}</small>"
            parts.append(_row(_kind(stop), below, _said(stop, known[stop.name])))
    return "".join(parts)


def text(known: Known | None = None) -> str:
    """The map where nothing can be clicked."""
    known, lines = known or grades_here(), []
    for phase in outline.PHASES:
        lines += [f"{phase.title} ({_hours(phase)})", f"  {phase.milestone}"]
        for stop in phase.stops:
            if isinstance(stop, outline.Lesson):
                lines.append(f"  {_kind(stop):<14}  {stop.title} ({stop.place})")
            else:
                core = " (core path)" if stop.core else ""
                said = _said(stop, known[stop.name])
                lines.append(f"  {_kind(stop):<14}  {stop.name}: {stop.declared.title}{core}; {said}")
        lines.append("")
    return "\n".join([*lines, _next(known), _summary(known)])


def _map(known: Known) -> widgets.VBox:
    rows = [widgets.HTML(_path(known))]
    for phase in outline.PHASES:
        rows.append(widgets.HTML(_heading(phase)))
        for stop in phase.stops:
            if isinstance(stop, outline.LabStop):
                rows.append(_lab(stop, known[stop.name]))
            else:
                lesson = _row(_kind(stop), _link(stop.place, stop.title), "")
                rows.append(widgets.HTML(lesson, layout=widgets.Layout(margin="0")))
    return widgets.VBox(rows, layout=widgets.Layout(overflow="visible"))


def _heading(phase: outline.Phase) -> str:
    title = f"{escape(phase.title)} <small>({_hours(phase)})</small>"
    head = f"<h2 style='margin: 14px 0 0; font-size: 17px'>{title}</h2>{escape(phase.milestone)}"
    return f"<div style='line-height: 1.4'>{head}</div>"


def _lab(stop: outline.LabStop, grades: Grades | None) -> widgets.HBox:
    """Its row, and a button that makes the working copy and is then a link to it."""
    shown = widgets.HTML(layout=widgets.Layout(flex="1 1 0", min_width="0", margin="0"))
    place = widgets.Layout(width="7em", flex="0 0 auto")
    short = stop.name.partition("_")[0]  # in the words on it, because a screen reader lists buttons and links alone
    button = widgets.Button(description=f"Start {short}", layout=place)
    button.tooltip = f"Start {stop.name}: make a working copy"
    link = widgets.HTML(layout=place)

    def show(error: str = "") -> None:
        begun = stop.file.exists()
        core = " <b>(core path)</b>" if stop.core else ""
        below = f'<b role="alert">{escape(error)}</b>' if error else prose_to_html(stop.declared.goal)
        name = _link(stop.place, stop.name) if begun else f"<b>{escape(stop.name)}</b>"
        title = f"{name} &nbsp;{escape(stop.declared.title)}{core}<br><small>{below}</small>"
        shown.value = _row(_kind(stop), title, _said(stop, grades))
        link.value = _link(stop.place, f"Open {short}") if begun else ""
        row.children = [shown, link if begun else button]

    def start(_: Any) -> None:
        try:
            outline.start(stop.name)
        except (UserError, OSError) as error:
            show(str(error))
        else:
            show()

    button.on_click(start)
    row = widgets.HBox([], layout=widgets.Layout(margin="0", overflow="visible"))
    show()
    return row


# of all rows, so it stands above them once: JupyterLab gives a line of a widget the height of a button
_STYLE = "<style>.course-row { display: flex; flex-wrap: wrap; gap: 0 10px; line-height: 1.4; padding: 2px 0 }</style>"


def _path(known: Known, link: Callable[[str, str], str] | None = None) -> str:
    """The core path: what is done, what is next and how long it takes, with a sign and a word for each lab."""
    link = link or _link
    items = []
    upcoming = _upcoming(known)
    for stop in (stop for stop in outline.lab_stops() if stop.core):
        grades, takes = known[stop.name], f"{stop.minutes} min"
        sign, said = ("✓", f"{grades.best:g} of {grades.most:g} points") if grades else ("○", takes)
        if stop is upcoming:
            sign, said = "▶", f"next, {takes}"
        name = link(stop.place, stop.name) if stop.file.exists() else escape(stop.name)
        border = (
            "2px solid var(--jp-brand-color1, #1976d2)"
            if stop is upcoming
            else "1px solid var(--jp-border-color1, #bdbdbd)"
        )
        items.append(
            f'<li style="border: {border}; border-radius: 6px; padding: 2px 8px; margin: 0"><b><span aria-hidden="true">{sign}</span> '
            f"{name}</b><br><small>{escape(said)}</small></li>"
        )
    style = "display: flex; flex-wrap: wrap; gap: 6px; list-style: none; margin: 6px 0; padding: 0"
    path = f'<ol aria-label="Core path" style="{style}">{"".join(items)}</ol>'
    above, below = (f'<p style="margin: 0">{said}</p>' for said in (_next(known, link), escape(_summary(known))))
    return f'{_STYLE}<div style="line-height: 1.4">{above}{path}{below}</div>'


@dataclass(frozen=True)
class Grades:
    """Those of a lab on this machine, from the last report beside the working copy, and the attempts."""

    score: float  # of the last grade
    most: float  # all points of the lab
    measured: float  # those that this machine could measure
    quick: bool  # a grade with quick measurements, not for marks
    best: float  # score of the best grade, quick ones left out where there are others
    best_quick: bool


Known = Mapping[str, Grades | None]  # by lab


def grades_here() -> Known:
    return {stop.name: grades_of(stop) for stop in outline.lab_stops()}


def grades_of(lab: outline.LabStop) -> Grades | None:
    """Read from `work/`; None before the first grade. A report that cannot be read counts as none."""
    report = read_json(lab.file.parent / f"report-{lab.name}.json")
    try:
        score, most, measured = (float(report[key]) for key in ("score", "max_score", "measured_max"))
    except DAMAGED:
        return None
    quick = bool(report.get("quick"))
    tried = attempts.read(attempts.file_of(lab.file.parent, lab.name))
    before = ((not t["quick"], t["points"]) for t in tried if t["points"] is not None and t["lab"] == lab.name)
    full, best = max([(not quick, score), *before])
    return Grades(score, most, measured, quick, best, best_quick=not full)


def _row(kind: str, title: str, said: str) -> str:
    """A lesson or lab; what does not fit beside its title stands below."""
    return (
        f'<div class="course-row"><div style="flex: 0 0 8em; opacity: 0.8">{kind}</div>'
        '<div class="course-row" style="flex: 1 1 14em; min-width: 0; padding: 0">'
        f'<div style="flex: 1 1 16em; min-width: 0">{title}</div><div style="flex: 0 1 11em">{escape(said)}</div></div></div>'
    )


def _kind(stop: outline.Lesson | outline.LabStop) -> str:
    """What it is, and how long it takes."""
    kind = "lesson" if isinstance(stop, outline.Lesson) else "lab"
    return f"{kind}, {stop.minutes} min" if stop.minutes else kind


def _hours(phase: outline.Phase) -> str:
    return f"about {sum(stop.minutes or 0 for stop in phase.stops) / 60:.0f} hours"


def _link(place: str, words: str, address: Callable[[str], str] | None = None) -> str:
    # the server's root is the course's folder; a browser resolves this relative to the start notebook's address
    leads = address(place) if address else f"../{place}"
    if not leads:
        return f"{escape(words)} <small><code>{escape(place)}</code></small>"
    # JupyterLab's colour, VS Code's, else the text's own, which can be read in the dark as well
    colour = (
        "text-decoration: underline; color: var(--jp-content-link-color, var(--vscode-textLink-foreground, inherit))"
    )
    return f'<a href="{escape(leads)}" style="{colour}">{escape(words)}</a>'


def _said(stop: outline.LabStop, grades: Grades | None) -> str:
    """How far one is with a lab, in a few words."""
    if grades is None:
        return "begun" if stop.file.exists() else "not begun"
    quick = "quick: not for marks"
    if (grades.best, grades.best_quick) != (grades.score, grades.quick):
        last = f"last {grades.score:g}" + (f", {quick}" if grades.quick and not grades.best_quick else "")
        return f"best {grades.best:g} of {grades.most:g} points ({last})" + (f", {quick}" if grades.best_quick else "")
    if not grades.measured:
        return "graded: no points on this machine"
    said = f"{grades.score:g} of {grades.most:g} points"
    if grades.measured < grades.most:
        said += f" ({grades.measured:g} can be measured here)"
    return said + (f", {quick}" if grades.quick else "")


def _upcoming(known: Known) -> outline.LabStop | None:
    """The first lab of the core path that has no grade."""
    return next((stop for stop in outline.lab_stops() if stop.core and known[stop.name] is None), None)


def _next(known: Known, link: Callable[[str, str], str] = lambda _, words: words) -> str:
    """What comes next on the core path, with the lessons before it, and how long that takes."""
    upcoming = _upcoming(known)
    if upcoming is None:
        return "The core path is done."
    lessons: list[outline.Lesson] = []  # since the core lab before
    for stop in (stop for phase in outline.PHASES for stop in phase.stops):
        if stop is upcoming:
            break
        if isinstance(stop, outline.Lesson):
            lessons.append(stop)
        elif stop.core:
            lessons = []
    name = link(upcoming.place, upcoming.name) if upcoming.file.exists() else upcoming.name
    said = f"Next on the core path: {name} · {upcoming.declared.title} (about {upcoming.minutes} min)"
    if lessons:
        read = ", ".join(f"{link(lesson.place, lesson.title)} ({lesson.minutes} min)" for lesson in lessons)
        said += f" · Before it, read {read}."
    return said


def _summary(known: Known) -> str:
    stops = [stop for stop in outline.lab_stops() if stop.core]
    core = [known[stop.name] for stop in stops]
    points = sum(grades.best for grades in core if grades)
    left = sum(stop.minutes for stop in stops if not known[stop.name])
    return (
        f"Core path: {len(core) - core.count(None)} of {len(core)} labs graded, {points:g} points"
        f"{f', about {left / 60:.1f} hours of labs left' if left else ''}. All labs: "
        f"{sum(grades is not None for grades in known.values())} of {len(known)} graded. Best grades count. Run this cell again after a lab."
    )
