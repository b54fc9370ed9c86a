"""`grader try -- COMMAND`: what each lever would give a training command, measured, and the ladder of those that paid."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import machine, web_page
from grader.errors import UserError
from grader.frontends.delivery import check_targets, deliver
from grader.frontends.options import add_command, add_json, command_of, duration
from grader.frontends.terminal import Terminal
from grader.measure import decision
from grader.own import trying
from grader.own.trying import Lever, Rung, Tried, try_levers
from grader.paths import temporary
from grader.result import json_value
from grader.safe_text import clean, one_line, to_html, wrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COPIED = 2 << 30  # bytes of a working folder
MARKS = {decision.FASTER: "✓", decision.SLOWER: "✗", decision.EQUAL: "=", decision.UNKNOWN: "?"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.usage = "grader try [options] -- COMMAND ..."
    parser.epilog = (
        "Each lever is a small patch from outside. It runs in a fresh process of the same command, which ends once its steps are timed. Your "
        "files stay unchanged, but your script may write files itself. --in-copy keeps these apart. Exit status: 0 if it measured, 2 if not."
    )
    add = parser.add_argument
    add_command(parser, "time")
    add(
        "--budget",
        metavar="10m",
        type=duration,
        default=600.0,
        help="how long everything together may take (default: 10m)",
    )
    add(
        "--only",
        metavar="NAMES",
        default="",
        help=f"some levers: {', '.join(dict.fromkeys(each.name for each in trying.levers(8, [0])))}",
    )
    add("--in-copy", action="store_true", help="run in a copy of this folder, which is deleted afterwards")
    add("--html", metavar="FILE", help="write a page with the ladder's picture")
    add_json(parser, "everything")


def run(options: argparse.Namespace) -> int:
    """Exit status 0. Raises UserError for a command that cannot be measured."""
    command = command_of(options, "try")
    check_targets(options)
    chosen = _chosen(options.only)
    progress = Terminal("grader try")
    with tempfile.TemporaryDirectory(prefix="grader-try-", dir=temporary()) as copy:
        folder = _copied(Path(copy) / "here") if options.in_copy else None
        asked = {"at_step": options.at_step, "step": options.step}
        found = try_levers(command, chosen, budget_s=options.budget, options=asked, cwd=folder, progress=progress)
    deliver(
        options,
        page=lambda: page(command, found),
        data=lambda: as_json(command, found),
        text=lambda width, colour: text(found, width),
    )
    return 0


def _chosen(only: str) -> list[Lever]:
    cores = len(os.sched_getaffinity(0))
    near = sorted(machine.share(1)[0]) if machine.has_gpu() else []
    found = trying.levers(cores, near if len(near) < cores else [])
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    names = list(dict.fromkeys(lever.name for lever in found))
    if unknown := [name for name in wanted if name not in names]:
        raise UserError(f"--only {clean(', '.join(unknown))} names no lever. The levers here: {', '.join(names)}.")
    return [lever for lever in found if not wanted or lever.name in wanted]


def _copied(target: Path) -> Path:
    here = Path.cwd()
    size = sum(path.stat().st_size for path in here.rglob("*") if path.is_file() and not path.is_symlink())
    if size > COPIED:
        raise UserError(
            f"--in-copy would copy {size / 1e9:.1f} GB. Start it in the script's own folder, and keep the data elsewhere."
        )
    shutil.copytree(here, target, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    return target


# ---------------------------------------------------------------- what is said


def as_json(command: list[str], found: Tried) -> dict[str, Any]:
    """Times in seconds, memory in bytes."""
    return json_value({"command": command, **dataclasses.asdict(found)})


def text(found: Tried, width: int = 100) -> str:
    base = found.baseline
    lines = [f"as it is: {_ms(base)} per step, {len(base.step_s)} runs{_memory(base)}", ""]
    lines.append(f"{'lever alone':<28} {'ms per step':>11} {'gain':>7}  {'90% interval':<14} {'memory':>8}  verdict")
    for rung in sorted(found.alone, key=lambda rung: -(rung.gain.factor if rung.gain else 0)):
        lines += wrap(_row(rung), width) if rung.why_not else [_row(rung), *_marks(rung, width)]
    paid = found.ladder
    if len(paid) > 1:
        lines += ["", "the ladder, where each rung adds to the one before"]
        lines += [_row(rung) for rung in paid]
    if paid:
        whole = base.mean_s / paid[-1].mean_s
        what = "all of them together make" if len(paid[-1].levers) > 1 else f"{paid[-1].title} makes"
        lines += ["", *wrap(f"{what} it {whole:.2f} times as fast. Write:", width)]
        lines += [line for lever in paid[-1].levers for line in wrap(f"- {lever.write}", width)]
    else:
        lines += ["", "No lever made it faster. `grader run` says what holds it back."]
    if not found.comparable:
        lines += [
            "",
            *wrap(
                "Two unchanged runs have different losses from the first steps on, so losses can't be compared. Is a seed missing?",
                width,
            ),
        ]
    if not found.complete:
        lines += ["", "The budget was spent before everything was measured. --budget gives more."]
    lines.append(f"{found.runs} runs, {found.seconds:.0f} s")
    return "\n".join(line.rstrip() for line in lines)


def _row(rung: Rung) -> str:
    if rung.why_not:
        return f"{rung.title:<28} not measured: {one_line(rung.why_not)}"
    gain = rung.gain
    assert gain is not None
    shown = _interval(gain)
    peak = f"{rung.peak / 1e9:.1f} GB" if rung.peak else ""
    said = f"{MARKS[rung.said]} {rung.said}" + (", of one run" if len(rung.step_s) == 1 else "")
    return f"{rung.title:<28} {1000 * rung.mean_s:>11.4g} {gain.factor:>6.2f}x  {shown:<14} {peak:>8}  {said}"


def _interval(gain: decision.Gain) -> str:
    return f"{gain.lower:.2f} to {gain.upper:.2f}" if math.isfinite(gain.noise) else "one run"


def _marks(rung: Rung, width: int) -> list[str]:
    """What must be known beside the speed."""
    if rung.apart is None or rung.apart <= trying.ROUNDING:
        return []
    words = f"its first losses differ from the unchanged job's by {rung.apart:.1%}, which is more than rounding. Check this before you keep it."
    return wrap(words, width, "    ")


def _ms(rung: Rung) -> str:
    return f"{1000 * rung.mean_s:.4g} ms"


def _memory(rung: Rung) -> str:
    return f", {rung.peak / 1e9:.2f} GB of GPU memory at its peak" if rung.peak else ""


def page(command: list[str], found: Tried) -> str:
    """The same as a page, with a picture."""
    rows = []
    for rung in [*found.alone, *found.ladder[1:]]:
        cells = [to_html(rung.title)]
        if rung.why_not or rung.gain is None:
            cells += ["", "", to_html(f"not measured: {one_line(rung.why_not)}"), ""]
        else:
            interval = f"{rung.gain.factor:.2f}x ({_interval(rung.gain)})"
            cells += [
                f"{1000 * rung.mean_s:.4g} ms",
                interval,
                to_html(rung.said),
                f"<code>{to_html(rung.levers[-1].write)}</code>",
            ]
        rows.append(cells)
    shown = [rung for rung in [*found.alone, *found.ladder[1:]] if rung.gain and not rung.why_not]
    picture = web_page.image(
        lambda: draw(found.baseline, shown),
        "Milliseconds per step: unchanged, with each lever alone, and up the ladder",
    )
    body = web_page.heading(to_html("What each lever gives"), to_html(_ms(found.baseline)))
    body += f"<p><code>{to_html(' '.join(command))}</code></p>" + picture
    body += web_page.section("", web_page.table(["lever", "per step", "gain", "verdict", "what to write"], rows))
    return web_page.page("grader try", body, web_page.TABLES)


def draw(baseline: Rung, rungs: list[Rung]) -> Figure:
    """A bar a lever, its runs as dots, the job as it is as a line."""
    from matplotlib.figure import Figure  # here: the small install does without, and it takes longer than --help

    figure = Figure(figsize=(8, 0.9 + 0.3 * len(rungs)), layout="constrained")
    axes = figure.subplots()
    colours = {decision.FASTER: web_page.GREEN, decision.SLOWER: web_page.VERMILION}
    rungs = sorted(rungs, key=lambda rung: rung.mean_s, reverse=True)
    names = [f"{MARKS[rung.said]} {rung.title}" for rung in rungs]
    axes.barh(
        names, [1000 * rung.mean_s for rung in rungs], color=[colours.get(rung.said, "#9aa3ad") for rung in rungs]
    )
    for y, rung in enumerate(rungs):
        axes.plot(
            [1000 * seconds for seconds in rung.step_s], [y] * len(rung.step_s), "o", color=web_page.BLACK, markersize=3
        )
    axes.axvline(1000 * baseline.mean_s, color=web_page.BLACK, linestyle="--", linewidth=1)
    axes.set_xlabel("milliseconds per step (dashed: unchanged)")
    axes.set_xlim(left=0)
    return figure
