"""The command `grader nightly`."""

from __future__ import annotations

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
from grader.frontends import classroom

KINDS = "lesson,solution,grade,adversary"


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=nightly, kept="what is done is kept, and the same command goes on with the rest")
    sub.epilog = (
        "Exit status: 4 parts are missing that the same command makes; else 1 something failed, 3 something is slower than the "
        "noise of the last nights, 0 everything works; 2 for unusable input. Whenever it is stopped, the same command goes on."
    )
    sub.add_argument("--quick", action="store_true", help="small lessons, short measurements")
    sub.add_argument(
        "--out", type=Path, default=Path("work/nightly"), help="folder of the nights (default: work/nightly)"
    )
    sub.add_argument(
        "--history", type=Path, metavar="FILE", help="all nights, a line each (default: OUT/history.jsonl)"
    )
    sub.add_argument(
        "--night", metavar="NAME", help="its folder below OUT (default: the unfinished one, else the time)"
    )
    sub.add_argument(
        "--labs", default="", metavar="NAME,...", help="only these (default: all); lessons stay, but for --kinds"
    )
    sub.add_argument("--lessons", default="", metavar="NAME,...", help="only these: 2_data or 2_data/3_overlap")
    sub.add_argument("--kinds", default=KINDS, metavar="KIND,...", help=f"only these (default: {KINDS})")
    sub.add_argument("--adversaries", default="1/1", metavar="I/N", help="grade only the I-th of N shares of them")
    sub.add_argument("--shard", default="1/1", metavar="I/N", help="make only the I-th of N shares of the parts")
    sub.add_argument(
        "--now",
        default="",
        metavar="KIND,LAB,...",
        help="make only parts of these kinds, of these labs and lessons, now, of a night that has others as well",
    )
    sub.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="begin no part that would end later than in so many minutes, as far as earlier nights and pieces tell",
    )
    sub.add_argument(
        "--report",
        action="store_true",
        help="make nothing; write the report of what is there, and close it. What the night consists of, its folder says",
    )
    sub.add_argument(
        "--accept", metavar="PART", help='"grade LAB solution" is as it should be: compare only with nights from now on'
    )
    classroom.add_pool(sub)


def nightly(options: argparse.Namespace) -> int:
    from grader.grading.forms import choose_device
    from grader.nightly import judging, measuring, parts, report
    from grader.nightly import night as nights
    from grader.nightly.history import History
    from grader.version import version

    until = time.monotonic() + 60 * options.minutes if options.minutes is not None else math.inf
    history = History(options.history or options.out / "history.jsonl")
    if options.accept:
        known = {name for entry in history.nights() for name in entry["parts"]}
        if options.accept not in known:
            raise UserError(
                f"No night has a part called {options.accept!r}. One is called, say, 'grade 2a_workers solution'."
            )
        history.accept(options.accept)
        print(f"{options.accept} is compared with nights from now on only.")
        return 0
    shard, name = _share("--shard", options.shard), _name(options.night)
    adversaries = _share("--adversaries", options.adversaries)
    elsewhere = options.cluster is not None or options.slurm is not None
    with contextlib.ExitStack() as stack:
        pool = None
        if options.report:
            folder = options.out / name if name else nights.unfinished(options.out, {"grader": version()}, history)
            if folder is None:
                raise UserError(f"No unfinished night of this grader lies in {options.out}. Name one with --night.")
            told = nights.read(folder)
        else:
            if elsewhere:
                pool = stack.enter_context(classroom.open_pool(options))
                device = next(iter(pool.workers().values()))["form"]
            else:
                device = choose_device(options.device)
            select: dict[str, Any] = {name: _names(getattr(options, name)) for name in ("kinds", "labs", "lessons")}
            told = nights.describe(device, options.quick, select | {"adversaries": list(adversaries)})
            folder = options.out / name if name else nights.unfinished(options.out, told, history)
            folder = folder or options.out / datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        made, device = parts.planned(told, here=not options.report), told["device"]
        now, subjects = _now(options.now, made)
        night = nights.open_night(folder, told, made, history)
        print(f"night {night.name}: {len(made)} parts, in {folder}", file=sys.stderr, flush=True)
        if not options.report:
            if pool is None:
                classroom._confined_here(allow_unconfined=False)
                mine = measuring.chosen(made, now, subjects)
                classroom._prepare({part.subject for part in mine if part.kind != "lesson"}, device)
            # on a CPU the corpus is about waiting for a drive: with four on a core, that core is just busy
            busy = set(parts.KINDS) - {"adversary"}
            stages = [(busy, 1), ({"adversary"}, 4)] if device == "cpu" and not elsewhere else [(set(parts.KINDS), 1)]
            for kinds, on_one_core in stages:
                kinds &= now
                if not measuring.chosen(made, kinds, subjects):
                    continue
                with contextlib.nullcontext(pool) if pool else classroom.open_pool(options, on_one_core) as opened:
                    measuring.measure(night, opened, shard, until, kinds, subjects)
    found = judging.assess(night)
    report.close(night, found)
    report.folder_index(options.out)
    print(report.markdown(night, found))
    print(f"The page: {folder / 'index.html'}")
    done = judging.finished(night, found)
    if not done:
        missing = sum(each.status == parts.MISSING for each in found.outcomes)
        again = len(judging.again(night, found))
        goes = "the command that made the others" if options.report else "the same command"
        goes = "the command without --now" if options.now else goes
        print(f"{missing} parts are missing, {again} are to be measured again: {goes} goes on.", file=sys.stderr)
        return 4
    return {parts.FAILED: 1, parts.SLOWER: 3}.get(found.worst(), 0)


def _now(text: str, made: list[Any]) -> tuple[set[str], set[str]]:
    """The kinds and the labs and lessons that --now names, all where it names none."""
    from grader.nightly import measuring, parts

    named, known = set(_names(text)), {part.subject for part in made}
    if unknown := named - {*parts.KINDS, *known}:
        raise UserError(
            f"--now {', '.join(sorted(unknown))}: the kinds are {', '.join(parts.KINDS)}; else it takes labs and lessons of "
            "this night by name."
        )
    kinds, subjects = named & set(parts.KINDS) or set(parts.KINDS), named & known
    if named and not measuring.chosen(made, kinds, subjects):
        raise UserError(f"--now {text}: nothing of this night is of these kinds and of these labs or lessons as well.")
    return kinds, subjects


def _names(text: str) -> list[str]:
    return [labs.full(name) for name in text.split(",") if name]


def _name(text: str | None) -> str:
    if text is None:
        return ""
    if not text or text.startswith(".") or not all(c.isalnum() or c in "-_." for c in text):
        raise UserError(f"--night {text!r}: letters, digits, '-', '_' and '.' make a name.")
    return text


def _share(option: str, text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise UserError(f"{option} {text!r}: give I/N, as in 1/3, 2/3 and 3/3.")
    return int(number), int(count)
