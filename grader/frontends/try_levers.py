"""`grader try -- COMMAND`: what each lever would give a training command, measured, and the ladder of those that paid."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import machine, web_page
from grader.errors import UserError
from grader.frontends.delivery import check_targets, deliver
from grader.frontends.options import add_command, add_json, command_of, span
from grader.frontends.terminal import Terminal
from grader.measure import decision
from grader.own import trying
from grader.own.running import MUCH_LOST
from grader.own.trying import Lever, Rung, Tried, try_levers
from grader.paths import temporary
from grader.result import json_value
from grader.safe_text import clean, one_line, prose_to_html, to_html, wrap
from grader.trace.words import counted

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
    words = "how long everything together may take (default: 10m)"
    add("--budget", metavar="10m", type=span, default=600.0, help=words)
    words = f"some levers: {', '.join(dict.fromkeys(each.name for each in trying.levers(8, [0])))}"
    add("--only", metavar="NAMES", default="", help=words)
    add(
        "--in-copy", action="store_true", help="run each time in a new copy of this folder, which is deleted afterwards"
    )
    add("--html", metavar="FILE", help="write a page with the ladder's picture")
    add_json(parser, "everything")


def run(options: argparse.Namespace) -> int:
    """Exit status 0. Raises UserError for a command that cannot be measured."""
    command = command_of(options, "try")
    check_targets(options)
    chosen = _chosen(options.only)
    temporary()  # no room is said before anything starts
    progress = Terminal("grader try")
    asked = {"at_step": options.at_step, "step": options.step}
    place = copy_of_here if options.in_copy else None
    found = try_levers(command, chosen, budget_s=options.budget, options=asked, place=place, progress=progress)
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


@contextlib.contextmanager
def copy_of_here() -> Iterator[Path]:
    """Of this folder, for one run: what it wrote, such as a checkpoint to go on from, is not there for the next one."""
    here = Path.cwd()
    size = sum(path.stat().st_size for path in here.rglob("*") if path.is_file() and not path.is_symlink())
    if size > COPIED:
        raise UserError(
            f"--in-copy would copy {size / 1e9:.1f} GB. Start it in the script's own folder, and keep the data elsewhere."
        )
    with tempfile.TemporaryDirectory(prefix="grader-try-", dir=temporary()) as folder:
        target = Path(folder) / "here"
        shutil.copytree(here, target, symlinks=True, ignore=_not_copied)
        yield target


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Git's own files, and pipes and sockets, which can't be."""
    paths = [Path(folder, name) for name in names]
    return [p.name for p in paths if p.name == ".git" or not (p.is_symlink() or p.is_file() or p.is_dir())]


# ---------------------------------------------------------------- what is said


def as_json(command: list[str], found: Tried) -> dict[str, Any]:
    """Times in seconds, memory in bytes."""
    return json_value({"command": command, **dataclasses.asdict(found)})


def text(found: Tried, width: int = 100) -> str:
    longest = max((len(rung.title) for rung in [*found.alone, *found.ladder]), default=0)
    names = max(28, longest)
    lines = [
        _as_it_is(found),
        "",
        f"{'lever alone':<{names}} {'ms per step':>11} {'gain':>7}  {'90% interval':<14} {'memory':>8}  verdict",
    ]
    for rung in _alone(found):
        lines += wrap(_row(rung, names), width) if rung.why_not else [_row(rung, names)]
        if not rung.why_not and (mark := _mark(rung)):
            lines += wrap(mark, width, "    ")
    if len(found.ladder) > 1:
        lines += ["", LADDER]
        lines += [_row(rung, names) for rung in found.ladder]
    if found.ladder:
        lines += ["", *wrap(f"{_whole(found)} Write:", width)]
        lines += [line for write in found.ladder[-1].to_write for line in wrap(f"- {write}", width)]
    else:
        lines += ["", _nothing(found)]
    for note in _notes(found):
        lines += ["", *wrap(note, width)]
    lines.append(_took(found))
    return "\n".join(line.rstrip() for line in lines)


ONCE = ", of one run"
LADDER = "the ladder, where each rung adds to the one before"
NOTHING = "No lever is certain to make it faster. `grader run` says what holds it back."
UNMEASURED = "No lever was measured. `grader run` says what holds it back."


def _alone(found: Tried) -> list[Rung]:
    """The largest gain first, and what was not measured last."""
    return sorted(found.alone, key=lambda rung: -(rung.gain.factor if rung.gain else 0))


def _as_it_is(found: Tried) -> str:
    base = found.baseline
    peak = f", {base.peak / 1e9:.2f} GB of GPU memory at its peak" if base.peak else ""
    return f"as it is: {1000 * base.mean_s:.4g} ms per step, {counted(len(base.step_s), 'run{s}')}{peak}"


def _whole(found: Tried) -> str:
    """What the ladder comes to."""
    top = found.ladder[-1]
    what = "all of them together make" if len(top.levers) > 1 else f"{top.title} makes"
    factor = math.prod(rung.gain.factor for rung in found.ladder if rung.gain)  # as their rows say
    return f"{what} it {factor:.2f} times as fast."


def _nothing(found: Tried) -> str:
    """What is said where no lever is known to pay."""
    return NOTHING if any(rung.gain for rung in found.alone) else UNMEASURED


def _notes(found: Tried) -> list[str]:
    """What must be known of all of it."""
    notes = []
    if not found.baseline.losses:
        notes.append(
            "No losses of this job were seen, so we can't tell whether a lever changes the training. Compare the losses yourself before you keep one."
        )
    elif not found.comparable:
        notes.append(
            "Two unchanged runs have different losses from the first steps on, so losses can't be compared. Is a seed missing?"
        )
    lost = max((share for rung in [found.baseline, *found.alone, *found.ladder] for share in rung.lost), default=0.0)
    if lost > MUCH_LOST:
        allowed = " The intervals allow for that." if any(rung.gain for rung in found.alone) else ""
        notes.append(
            f"Other programs used the processor for up to {lost:.0%} of a run's time.{allowed} Repeat it on a quiet machine."
        )
    if not found.complete:
        enough = f"A run took up to {found.longest_s:.0f} s here, so give it about --budget {math.ceil(found.needed_s / 60)}m."
        notes.append(f"The budget was spent before everything was measured. {enough}")
    return notes


def _took(found: Tried) -> str:
    return f"{counted(found.runs, 'run{s}')}, {found.seconds:.0f} s"


def _row(rung: Rung, names: int) -> str:
    if rung.why_not:
        return f"{rung.title:<{names}} not measured: {one_line(rung.why_not)}"
    ms, gain, interval, peak, said = _cells(rung)
    return f"{rung.title:<{names}} {ms:>11} {gain:>7}  {interval:<14} {peak:>8}  {said}"


def _cells(rung: Rung) -> tuple[str, str, str, str, str]:
    """Of a rung that was measured: ms per step, gain, interval, memory, verdict."""
    gain = rung.gain
    assert gain is not None
    interval = f"{gain.lower:.2f} to {gain.upper:.2f}" if math.isfinite(gain.noise) else "one run"
    peak = f"{rung.peak / 1e9:.1f} GB" if rung.peak else ""
    said = f"{MARKS[rung.said]} {rung.said}" + (ONCE if len(rung.step_s) == 1 else "")
    return f"{1000 * rung.mean_s:.4g}", f"{gain.factor:.2f}x", interval, peak, said


def _mark(rung: Rung) -> str:
    """What must be known beside the speed; "" where nothing must."""
    if rung.apart is None or rung.apart <= trying.ROUNDING:
        return ""
    if rung.broken:
        return "its first losses are no numbers any longer, but NaN or infinite. Don't keep it."
    return f"its first losses differ from the unchanged job's by {rung.apart:.1%}, which is more than rounding. Check this before you keep it."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def page(command: list[str], found: Tried) -> str:
    shown = [rung for rung in [*found.alone, *found.ladder[1:]] if rung.gain and not rung.why_not]
    parts = [web_page.heading("What each lever gives")]
    parts += [
        f"<p><code>{to_html(' '.join(command))}</code></p>",
        f'<p class="sp-note">{to_html(_sentence(_as_it_is(found)))}</p>',
    ]
    parts += [f'<p class="sp-warning">{to_html(note)}</p>' for note in _notes(found)]
    marked = [rung for rung in found.alone if _mark(rung)]
    parts += [f'<p class="sp-warning"><b>{to_html(rung.title)}:</b> {_mark(rung)}</p>' for rung in marked]
    if found.ladder:
        write = web_page.items(f"<code>{to_html(line)}</code>" for line in found.ladder[-1].to_write)
        parts.append(f'<p class="sp-say">{to_html(_sentence(_whole(found)))} Write:</p>{write}')
    else:
        parts.append(f'<p class="sp-say">{prose_to_html(_nothing(found))}</p>')
    if shown:
        measured = [rung for rung in _alone(found) if not rung.why_not]
        words = "Milliseconds per step: unchanged, with each lever alone, and up the ladder"
        picture = web_page.image(lambda: draw(found.baseline, shown), words)
        parts += [picture, web_page.section("Each lever alone", _table(measured))]
    if len(found.ladder) > 1:
        parts.append(web_page.section(_sentence(LADDER), _table(found.ladder)))
    missing = [(rung.title, one_line(rung.why_not)) for rung in found.alone if rung.why_not]
    parts.append(web_page.section("Not measured", web_page.pairs(missing) if missing else ""))
    parts.append(f'<div class="sp-foot">{_took(found)}</div>')
    return web_page.page("grader try", "\n".join(parts), web_page.TABLES)


def _table(rungs: list[Rung]) -> str:
    head = ["lever", "ms per step", "gain", "90% interval", "memory", "verdict", "what to write"]
    rows = []
    for rung in rungs:
        *numbers, said = _cells(rung)
        verdict = said.removesuffix(ONCE)  # which the interval says
        rows.append([*map(to_html, (rung.title, *numbers, verdict)), f"<code>{to_html(rung.to_write[-1])}</code>"])
    return web_page.table(head, rows)


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
