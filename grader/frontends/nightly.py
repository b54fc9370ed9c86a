"""`grader nightly`: execute and grade everything, and say what failed or got slower."""

import argparse
import contextlib
import math
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader import labs
from grader.errors import UserError
from grader.frontends.pool import add_pool, check_confined, open_pool, prepare_data
from grader.grading.forms import choose_device
from grader.nightly import judging, measuring, parts, report
from grader.nightly import night as nights
from grader.nightly.history import History
from grader.nightly.night import Night
from grader.nightly.parts import Part
from grader.version import version

KINDS = ",".join(parts.KINDS)
Share = tuple[int, int]  # the I-th of N


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=nightly, kept="finished parts are kept, and the same command goes on with the rest")
    sub.epilog = (
        "Exit status: 0 if everything works. 1 if something failed. 2 for unusable input. 3 if something is slower than the noise of the last "
        "nights. 4 if parts are missing, which the same command makes. You can stop it at any time, and the same command goes on."
    )
    sub.add_argument("--quick", action="store_true", help="small lessons and short measurements")
    folder = "folder of the nights (default: work/nightly)"
    sub.add_argument("--out", type=Path, default=Path("work/nightly"), help=folder)
    history = "the file with one line for each night (default: OUT/history.jsonl)"
    sub.add_argument("--history", type=Path, metavar="FILE", help=history)
    name = "name of the night's folder below OUT (default: the unfinished night, or the time)"
    sub.add_argument("--night", metavar="NAME", help=name)
    which = "only these labs (default: all). Lessons stay, unless --kinds leaves them out"
    sub.add_argument("--labs", default="", metavar="NAME,...", help=which)
    words = "only these lessons, such as 2_data or 2_data/3_overlap"
    sub.add_argument("--lessons", default="", metavar="NAME,...", help=words)
    sub.add_argument("--kinds", default=KINDS, metavar="KIND,...", help=f"only these kinds of parts (default: {KINDS})")
    words = "grade only the I-th of N shares of the adversaries"
    sub.add_argument("--adversaries", default="1/1", metavar="I/N", help=words)
    sub.add_argument("--shard", default="1/1", metavar="I/N", help="make only the I-th of N shares of the parts")
    now = "for now, make only parts of these kinds, labs or lessons of the night"
    sub.add_argument("--now", default="", metavar="KIND,LAB,...", help=now)
    until = "begin no part that would take longer than M minutes from now, judging by earlier nights"
    sub.add_argument("--minutes", type=float, metavar="M", help=until)
    only = "make nothing. Write the report of the finished parts, and close the night"
    sub.add_argument("--report", action="store_true", help=only)
    accept = '"grade LAB solution" has changed on purpose. Compare it only with nights from now on'
    sub.add_argument("--accept", metavar="PART", help=accept)
    add_pool(sub)


def nightly(options: argparse.Namespace) -> int:
    """Exit status: 4 where parts are missing, else 1 for a failure, 3 where something is slower, 0."""
    history = History(options.history or options.out / "history.jsonl")
    if options.accept:
        _accept(history, options.accept)
        return 0
    shares = _share("--shard", options.shard), _share("--adversaries", options.adversaries)
    there = options.out / _name(options.night) if options.night is not None else None
    night = _reported(options, history, there) if options.report else _measured(options, history, there, *shares)
    assessed = judging.assess(night)
    report.close(night, assessed)
    report.folder_index(options.out)
    print(report.markdown(night, assessed))
    print(f"The page: {night.folder / 'index.html'}")
    if judging.finished(night, assessed):
        return {parts.FAILED: 1, parts.SLOWER: 3}.get(assessed.worst(), 0)
    missing = sum(outcome.status == parts.MISSING for outcome in assessed.outcomes)
    again = len(judging.again(night, assessed))
    goes = "the command that made the others" if options.report else "the same command"
    goes = "the command without --now" if options.now else goes
    print(f"{missing} parts are missing, and {again} need another measurement. Go on with {goes}.", file=sys.stderr)
    return 4


def _accept(history: History, part: str) -> None:
    """Compare a part only with nights from now on."""
    if part not in {name for entry in history.nights() for name in entry["parts"]}:
        raise UserError(
            f"No night has a part called {part!r}. Parts are called 'grade 2a_workers solution', for example."
        )
    history.accept(part)
    print(f"{part} is only compared with nights from now on.")


def _reported(options: argparse.Namespace, history: History, folder: Path | None) -> Night:
    """The night that --report is about: the named one, else the unfinished one."""
    folder = folder or nights.unfinished(options.out, {"grader": version()}, history)
    if folder is None:
        raise UserError(f"No unfinished night of this grader lies in {options.out}. Name one with --night.")
    return _open(options, folder, nights.read(folder), history)[0]


def _measured(
    options: argparse.Namespace, history: History, folder: Path | None, shard: Share, adversaries: Share
) -> Night:
    """The named night, the unfinished one or a new one, with what was missing measured."""
    until = time.monotonic() + 60 * options.minutes if options.minutes is not None else math.inf
    elsewhere = options.cluster is not None or options.slurm is not None
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(open_pool(options)) if elsewhere else None
        device = next(iter(pool.workers().values()))["form"] if pool else choose_device(options.device)
        select: dict[str, Any] = {name: _names(getattr(options, name)) for name in ("kinds", "labs", "lessons")}
        manifest = nights.describe(device, options.quick, select | {"adversaries": list(adversaries)})
        folder = folder or nights.unfinished(options.out, manifest, history)
        folder = folder or options.out / datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        night, now, subjects = _open(options, folder, manifest, history)
        if pool is None:
            check_confined(allow_unconfined=False)
            mine = measuring.chosen(night.parts, now, subjects)
            prepare_data({part.subject for part in mine if part.kind != "lesson"}, device)
        # on a CPU the corpus is about waiting for a drive: with four on a core, that core is just busy
        busy = set(parts.KINDS) - {"adversary"}
        stages = [(busy, 1), ({"adversary"}, 4)] if device == "cpu" and not elsewhere else [(set(parts.KINDS), 1)]
        for kinds, on_one_core in stages:
            kinds &= now
            if not measuring.chosen(night.parts, kinds, subjects):
                continue
            with contextlib.nullcontext(pool) if pool else open_pool(options, on_one_core) as opened:
                measuring.measure(night, opened, shard, until, kinds, subjects)
    return night


def _open(
    options: argparse.Namespace, folder: Path, manifest: dict[str, Any], history: History
) -> tuple[Night, set[str], set[str]]:
    """The night in `folder`, and of which kinds, labs and lessons parts are made now."""
    made = parts.planned(manifest, here=not options.report)
    now, subjects = _now(options.now, made)
    night = nights.open_night(folder, manifest, made, history)
    print(f"night {night.name}: {len(made)} parts, in {folder}", file=sys.stderr, flush=True)
    return night, now, subjects


def _now(text: str, made: list[Part]) -> tuple[set[str], set[str]]:
    """The kinds and the labs and lessons that --now names, all where it names none."""
    named, known = set(_names(text)), {part.subject for part in made}
    if unknown := named - {*parts.KINDS, *known}:
        raise UserError(
            f"--now {', '.join(sorted(unknown))}: the kinds are {', '.join(parts.KINDS)}; else it takes labs and lessons of "
            "this night by name."
        )
    kinds, subjects = named & set(parts.KINDS) or set(parts.KINDS), named & known
    if named and not measuring.chosen(made, kinds, subjects):
        raise UserError(
            f"--now {text} leaves nothing. No part of this night has these kinds and these labs or lessons."
        )
    return kinds, subjects


def _names(text: str) -> list[str]:
    return [labs.full(name) for name in text.split(",") if name]


def _name(text: str) -> str:
    if not text or text.startswith(".") or not all(c.isalnum() or c in "-_." for c in text):
        raise UserError(f"--night {text!r} is no name. A name has letters, digits, '-', '_' and '.'.")
    return text


def _share(option: str, text: str) -> Share:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise UserError(f"{option} {text!r} is no share. Give I/N, as in 1/3, 2/3 and 3/3.")
    return int(number), int(count)
