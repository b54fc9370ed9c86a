"""`grader diagnose` of several ranks of one job: one verdict, and the ranks side by side; as text, as JSON, and as a page.

>>> found = diagnose_job.job_of(["trace-rank0.json.gz", "trace-rank1.json.gz"])
>>> print(diagnose_job.text("my job", found))"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grader import web_page
from grader.errors import UserError
from grader.frontends.delivery import names_of
from grader.frontends.diagnosis_facts import advice
from grader.result import json_value
from grader.safe_text import at_both_ends, clean, hanging, painter, prose_to_html, size_text, to_html, wrap
from grader.trace import Analysis, Trace, TraceError, analyse, packed, read
from grader.trace.annotate import Track, annotate
from grader.trace.collectives import exchanges
from grader.trace.intervals import Intervals
from grader.trace.job import Exchange, Job, job
from grader.trace.job_files import NotOneJob
from grader.trace.job_words import RANK_IN_NAME, SHARE_WORDS, exchange, listed, names
from grader.trace.links import SMALL
from grader.trace.pieces import Damaged, TooLarge
from grader.trace.rank import EXPOSED, SHARES, WAITING, Rank, rank_of
from grader.trace.words import counted, milliseconds, plain_number
from grader.web_page import section

ENDINGS = (".json", ".json.gz", ".json.bz2", ".json.xz", ".json.zst", ".json.zip")
LOOKED_AT = 1 << 20  # bytes of a file in a folder
MOST_RANKS, MOST_EXCHANGES = 16, 6  # on the screen
MOST_ON_PAGE = 64
COLUMNS = (*SHARES[:4], WAITING, EXPOSED, "other")
HEADS = {WAITING: "waits", EXPOSED: "exchange", "computing": "computes"}
TWO = {
    True: "Read as ranks of one job. --before-after compares two traces instead.",
    False: "Read as before and after a change. --job reads them as ranks of one job.",
}
MOST_LEVELS = 4  # of folders: of a run, of its machines, of their ranks, ...
FOOT = (
    "A rank waits in a collective until the last one has come. Bandwidths are those of nccl-tests: size over time, and that times what "
    "each link must carry. Times of an exchange begin when the last rank has come. Shares are of a step without the profiler where that was given."
)


# ---------------------------------------------------------------- reading


def traces_of(paths: Sequence[str]) -> list[str]:
    """The files to read: for a folder those in it that look like traces, or those in the folders below. Raises UserError."""
    found: list[str] = []
    for path in paths:
        folder = Path(path)
        if not folder.is_dir():
            found.append(path)
            continue
        try:
            inside = _in_folder(folder)
        except OSError as error:
            raise UserError(f"{clean(path)} cannot be read: {error.strerror}.") from None
        if not inside:
            raise UserError(f"{clean(path)} holds no trace: no file ends in .json or .json.gz.")
        found += inside
    return found


def _in_folder(folder: Path, levels: int = MOST_LEVELS) -> list[str]:
    """Those in the folder itself, else those below it."""
    files = (file for file in folder.iterdir() if file.name.endswith(ENDINGS) and file.is_file())
    found = sorted(str(file) for file in files if _looks_like_a_trace(file))
    if found or not levels:
        return found
    return [file for below in sorted(folder.iterdir()) if below.is_dir() for file in _in_folder(below, levels - 1)]


def _looks_like_a_trace(file: Path) -> bool:
    """By its first megabyte: a folder holds other JSON as well."""
    try:
        with file.open("rb") as raw:
            head = b""
            for block in packed.unpacked(raw.fileno(), os.fstat(raw.fileno()).st_size, LOOKED_AT * 2):
                head += block
                if len(head) >= LOOKED_AT:
                    break
    except (OSError, TraceError, TooLarge, Damaged):
        return True  # reading it says what is wrong
    return not head.strip() or any(sign in head for sign in (b'"traceEvents"', b'"ph"', b'"schemaVersion"'))


def are_ranks(first: Trace, second: Trace, files: Sequence[str]) -> bool:
    """Whether two traces are of different ranks of one job, not of one process before and after a change."""
    if first.rank is not None and second.rank is not None:
        return first.rank != second.rank and first.world_size == second.world_size and (first.world_size or 0) > 1
    named = [RANK_IN_NAME.findall(name) for name in names_of(files)]
    return all(named) and named[0] != named[1] and exchanges(first) and exchanges(second)


def job_of(
    paths: Sequence[str | Path],
    steps_ns: Sequence[float | None] | None = None,
    traces: Sequence[Trace] = (),
    lenient: bool = False,
    check: Callable[[Analysis, str], None] | None = None,
    waits_ns: Sequence[float | None] | None = None,
) -> Job:
    """One trace in memory at a time. steps_ns, waits_ns: of each, as `analyse` takes them. traces: those that were read already.
    lenient: files that are no traces are noted and left out. check: may refuse the length of a step. Raises UserError."""
    skipped: list[str] = []
    called = names_of(paths)
    lengths = list(steps_ns) if steps_ns else [None] * len(paths)
    try:
        files = list(zip(map(Path, paths), called, lengths, waits_ns or [None] * len(paths), strict=True))
        found = job(_ranks(files, list(traces), skipped, lenient, check))
    except NotOneJob as error:
        raise UserError(
            f"these files are not of ranks of one job: {clean(str(error))}. Give those of one job, or a trace alone."
        ) from None
    return dataclasses.replace(found, notes=[*found.notes, *skipped])


def _ranks(
    files: list[tuple[Path, str, float | None, float | None]],
    traces: list[Trace],
    skipped: list[str],
    lenient: bool,
    check: Callable[[Analysis, str], None] | None,
) -> Iterator[Rank]:
    made = 0
    for path, name, step_ns, wait_ns in files:
        try:
            trace = traces.pop(0) if traces else read(path.resolve())
        except (TraceError, OSError, RuntimeError) as error:
            why = str(getattr(error, "strerror", None) or error)
            if not lenient:
                raise UserError(clean(why if name in why else f"{path}: {why}")) from None
            skipped.append(f"{name} is left out: {why}")
            continue
        made += 1
        analysis = analyse(trace, step_ns, wait_ns=wait_ns)
        if check is not None:
            check(analysis, str(path))
        rank = rank_of(analysis, name)
        del trace, analysis
        yield rank
    if not made:
        raise UserError("no file is a trace: " + clean("; ".join(skipped)))


def annotate_all(paths: Sequence[str | Path], found: Job, folder: Path) -> None:
    """Copies of the ranks' traces in this folder, with tracks. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, name in zip(paths, names_of(paths), strict=True):
            for rank, waits in zip(found.ranks, found.waits, strict=True):
                if rank.file == name:
                    _annotated(Path(path).resolve(), rank, waits, folder / name.replace("/", "_"))
    except OSError as error:
        raise UserError(f"--annotate {clean(str(folder))}: {error.strerror}.") from None


def _annotated(path: Path, rank: Rank, waits: Intervals, target: Path) -> None:
    if target.exists() and target.samefile(path):
        raise UserError("--annotate needs another folder than that of the traces.")
    trace = read(path)
    zero = rank.zero - trace.base_ns
    start, end = waits[0] + zero, waits[1] + zero
    label = np.zeros(len(start), int)
    track = Track("waits for other ranks", start, end, label, ["waits for other ranks"])
    annotate(path, target, analyse(trace), [track])


# ---------------------------------------------------------------- JSON


def as_json(name: str, found: Job) -> dict[str, Any]:
    """Names that end in _ms are milliseconds per step, in _s seconds; bandwidths are bytes per second. What traces cannot tell is null."""
    offsets = [None if np.isnan(offset) else offset / 1e6 for offset in found.offset_ns]
    ranks = [
        {
            "rank": rank.rank,
            "trace": rank.file,
            "host": rank.host,
            "device": rank.device,
            "complete": rank.complete,
            "reasons": rank.reasons,
            "step_ms": _ms(rank.step_ns),
            "parts_ms": {part: ns / 1e6 for part, ns in found.parts[r].items()},
            "waits_ms": found.wait_ns[r] / 1e6,
            "makes_others_wait_ms": found.caused_ns[r] / 1e6,
            "last_share": found.last[r],
            "clock_ahead_ms": offsets[r],
            "straggler": r in found.stragglers,
            "diagnosis": {name: getattr(rank.diagnosis, name) for name in ("cause", "confidence", "text")},
        }
        for r, rank in enumerate(found.ranks)
    ]
    waited = {id(e): ns for e, ns in found.waited_in}
    return json_value(
        {
            "job": name,
            "cause": found.cause,
            "confidence": found.confidence,
            "text": found.text,
            "stragglers": [found.ranks[r].rank for r in found.stragglers],
            "why_ms": {reason: ns / 1e6 for reason, ns in found.why.items()},
            "slower": found.slower,
            "step_ms": _ms(found.step_ns),
            "what_if_step_ms": _ms(found.what_if_ns),
            "steps_compared": found.labels,
            "missing_ranks": found.missing,
            "notes": found.notes,
            "what_to_try": found.what_to_try,
            "lesson": found.lesson,
            "teaches": found.teaches,
            "ranks": ranks,
            "collectives": [_exchange_json(e, waited.get(id(e), 0.0)) for e in found.exchanges],
        }
    )


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _exchange_json(e: Exchange, by_stragglers: float) -> dict[str, Any]:
    row = dataclasses.asdict(e)
    times = {"wait_ms": row.pop("wait_ns") / 1e6, "exchange_ms": row.pop("ns") / 1e6}
    row["algorithm_bandwidth"], row["bus_bandwidth"] = row.pop("algorithm"), row.pop("bus")
    return {**row, **times, "waits_for_stragglers_ms": by_stragglers / 1e6, "bytes": e.bytes if e.bytes >= 0 else None}


# ---------------------------------------------------------------- text


def text(name: str, found: Job, width: int = 100, colour: bool = False) -> str:
    width, paint = max(width, 60), painter(colour)
    lines = [*(paint(line, "1") for line in at_both_ends(name, _about(found), width)), "─" * width]
    if broken := _broken(found):
        lines += [paint(line, "33") for line in wrap(broken, width)]
    for note in found.notes:
        lines += wrap(f"note: {note}", width)
    lines += [paint(line, "1") for line in wrap(verdict(found), width)]
    lines += ["", *_ranks_text(found, width, paint)]
    if found.exchanges:
        lines += ["", paint("Collectives, times of one call", "1")]
        lines += [
            line for e in found.exchanges[:MOST_EXCHANGES] for line in hanging("- ", said_of(e, found.step_ns), width)
        ]
    if ways := advice(found):
        lines += ["", paint("What to try", "1"), *(line for way in ways for line in hanging("- ", way, width))]
    return "\n".join(line.rstrip() for line in lines)


def _about(found: Job) -> str:
    devices = sorted({rank.device or "no GPU" for rank in found.ranks})
    compared = f", {counted(len(found.labels), 'step{s}')} compared" if found.labels else ""
    return f"{counted(len(found.ranks), 'rank{s}')}, {listed(devices)}{compared}"


def _broken(found: Job) -> str:
    """What the traces of some ranks lack."""
    rows = [f"rank {rank.rank}: {'; '.join(rank.reasons)}" for rank in found.ranks if not rank.complete]
    return "incomplete: " + "; ".join(rows) if rows else ""


def verdict(found: Job) -> str:
    return f"{found.text} (confidence {found.confidence:.0%})" if found.cause else found.text


def _shown(found: Job, most: int) -> list[int]:
    """Positions of the ranks to show: all, or those to blame and the first ones."""
    order = dict.fromkeys([*found.stragglers[:most], *range(len(found.ranks))])
    return sorted(list(order)[:most])


def _used(found: Job) -> list[str]:
    """The columns that say something."""
    least = 0.005 * (found.step_ns or 0.0)
    return [name for name in COLUMNS if name == WAITING or any(parts[name] > least for parts in found.parts)]


def _ranks_text(found: Job, width: int, paint: Any) -> list[str]:
    columns, shown = _used(found), _shown(found, MOST_RANKS)
    if 27 + 9 * len(columns) > width:
        columns = columns[: (width - 27) // 9]
    more = f" ({len(shown)} of {len(found.ranks)}; all: --json)" if len(shown) < len(found.ranks) else ""
    lines = [paint(f"What each rank does with a step, in ms{more}", "1")]
    lines.append(f"{'rank':>5} {'step':>6}" + "".join(f" {HEADS.get(name, name):>8}" for name in columns) + "  last")
    for r in shown:
        cells = "".join(f" {plain_number(found.parts[r][name] / 1e6):>8}" for name in columns)
        late = f"{found.last[r]:.0%}" if found.exchanges else ""
        mark = " <- late" if r in found.stragglers else ""
        row = (
            f"{found.ranks[r].rank!s:>5} {plain_number((found.ranks[r].step_ns or 0) / 1e6):>6}{cells} {late:>5}{mark}"
        )
        lines.append(paint(row, "1") if mark else row)
    return [*lines, "last: the share of the collectives to which a rank came last"] if found.exchanges else lines


def said_of(e: Exchange, step_ns: float | None) -> str:
    """One kind of collective: how often, how long the ranks wait in it, how fast it is."""
    share = (
        f", {e.wait_ns * e.count / step_ns:.0%} of the step"
        if step_ns and e.wait_ns * e.count >= 0.005 * step_ns
        else ""
    )
    text = f"{exchange(e)}, {e.members} ranks, {plain_number(e.count)} per step. Waiting {milliseconds(e.wait_ns)}{share}, then {milliseconds(e.ns)}"
    if rate := _rate(e):
        text += f". {rate}"
    return f"{text}."


def _rate(e: Exchange) -> str:
    if e.algorithm is None:
        return ""
    text = f"{size_text(e.algorithm)}/s"
    if e.bus is not None:
        text += f", on the bus {size_text(e.bus)}/s"
    if 0 <= e.bytes < SMALL:
        return f"{text}, too small to be limited by the link"
    if e.link and e.bus:
        text += f", {e.bus / e.link.peak:.0%} of {e.link.name}'s {size_text(e.link.peak)}/s ({e.link.source})"
    return text


# ---------------------------------------------------------------- page


def page(name: str, found: Job, above: str = "") -> str:
    """One self-contained page: no scripts, nothing to load. above: HTML."""
    body = [above, web_page.heading(to_html(name), to_html(found.cause or "no cause named"))]
    body.append(f'<p class="sp-note">{to_html(_about(found))}</p>')
    body += [f'<p class="sp-warning">{to_html(line)}</p>' for line in (_broken(found), *found.notes) if line]
    body.append(f'<p class="sp-big">{to_html(verdict(found))}</p>')
    if ways := advice(found):
        body.append(f"<p><b>What to try</b></p>{web_page.items(map(prose_to_html, ways))}")
    body.append(
        section(
            "Where the ranks' time goes",
            web_page.image(lambda: _draw(found), _bars_in_words(found)),
            _ranks_html(found),
        )
    )
    if found.waited_in:
        rows = [(exchange(e), f"{milliseconds(ns)} per step and rank") for e, ns in found.waited_in]
        body.append(section(f"Where the others wait for {names(found, found.stragglers)}", web_page.pairs(rows)))
    if found.exchanges:
        cells = [[to_html(cell) for cell in _cells(e)] for e in found.exchanges]
        head = ("collective", "ranks", "per step", "waiting", "exchange", "bandwidth")
        body.append(section("Collectives, times of one call", web_page.table(head, cells)))
    each = [(f"rank {rank.rank}", rank.diagnosis.text or "nothing") for rank in found.ranks[:MOST_ON_PAGE]]
    body.append(section("", web_page.folded("Each rank seen alone", web_page.pairs(each))))
    body.append(f'<div class="sp-foot">{FOOT}</div>')
    return web_page.page(f"Diagnosis of {name}", "\n".join(body), web_page.TABLES)


def _cells(e: Exchange) -> list[str]:
    narrow = [exchange(e), str(e.members), plain_number(e.count), milliseconds(e.wait_ns), milliseconds(e.ns)]
    return [*(cell.replace(" ", "\u00a0") for cell in narrow), _rate(e)]  # a number stays with its unit


def _draw(found: Job) -> Any:
    from grader.trace.job_picture import draw_job  # matplotlib is loaded where a picture is drawn

    return draw_job(found)


def _bars_in_words(found: Job) -> str:
    rows = []
    for rank, parts in zip(found.ranks[:MOST_ON_PAGE], found.parts, strict=False):
        said = (f"{SHARE_WORDS[name]} {parts[name] / 1e6:.3g} ms" for name in SHARES if parts[name] >= 5e3)
        rows.append(f"rank {rank.rank}: {', '.join(said)}")
    return "A bar for each rank. " + "; ".join(rows)


def _ranks_html(found: Job) -> str:
    columns, shown = _used(found), _shown(found, MOST_ON_PAGE)
    hosts = any(rank.host for rank in found.ranks)
    head = (
        "rank",
        "step, ms",
        *(HEADS.get(name, name) for name in columns),
        "comes last",
        "others wait, ms",
        *(["machine"] if hosts else []),
    )
    rows = []
    for r in shown:
        rank = found.ranks[r]
        numbers = [plain_number(found.parts[r][name] / 1e6) for name in columns]
        cells = [str(rank.rank), plain_number((rank.step_ns or 0) / 1e6), *numbers, f"{found.last[r]:.0%}"]
        cells += [plain_number(found.caused_ns[r] / 1e6), *([rank.host or ""] if hosts else [])]
        rows.append([f"<b>{to_html(cell)}</b>" if r in found.stragglers else to_html(cell) for cell in cells])
    return web_page.table(head, rows, numbers_right=True)
