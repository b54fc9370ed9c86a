"""What `grader diagnose` tells of each stream of a GPU, and of how long kernels are: for the page and as JSON."""

import dataclasses
from typing import Any

from grader import web_page
from grader.trace import Analysis
from grader.trace.streams import Class, Stream, histogram, streams
from grader.trace.words import milliseconds, plain_number

MOST = 16  # streams on the page
HEAD = ("GPU", "stream", "work", "busy", "idle: not launched", "idle: held", "idle: between", "queued", "queue empty")
WORDS = (
    "Times are per step. Not launched: what ran next was not launched when the stream ran dry. Held: queued work waited for an event, "
    "another stream or another GPU. Between: short pauses between queued work. Queued: work launched and not begun, on average."
)


def as_json(a: Analysis) -> dict[str, Any]:
    """Times in ns per step."""
    return {
        "streams": [dataclasses.asdict(one) for one in streams(a.trace, a.steps)],
        "kernel_lengths": [dataclasses.asdict(one) for one in histogram(a.trace, a.steps)],
    }


def as_html(a: Analysis) -> str:
    """ "" for a trace without GPU work."""
    found, lengths = streams(a.trace, a.steps), [one for one in histogram(a.trace, a.steps) if one.count]
    parts = []
    if found:
        parts += [web_page.table(HEAD, map(_row, found[:MOST])), f'<p class="sp-note">{WORDS}</p>']
    if lengths:
        head = ("kernels that take", "per step", "their time")
        rows = [(_range(one), plain_number(one.count), milliseconds(one.ns)) for one in lengths]
        parts.append(web_page.table(head, rows))
    return web_page.section("Streams, queue and length of kernels", *parts)


def _row(one: Stream) -> tuple[str, ...]:
    idle = (one.idle_host_ns, one.idle_held_ns, one.idle_change_ns)
    names = (str(number) if number >= 0 else "?" for number in (one.device, one.stream))
    queue = ("?", "?")
    if one.queue_mean is not None and one.empty_share is not None:
        queue = (plain_number(one.queue_mean), f"{one.empty_share:.0%}")
    return (*names, plain_number(one.events), milliseconds(one.busy_ns), *map(milliseconds, idle), *queue)


def _range(one: Class) -> str:
    if one.to_ns is None:
        return f"{milliseconds(one.from_ns)} or more"
    return (
        f"{milliseconds(one.from_ns)} to {milliseconds(one.to_ns)}"
        if one.from_ns
        else f"less than {milliseconds(one.to_ns)}"
    )
