"""Text from learners, traces and files, made safe to print in a terminal and to put into a page; numbers as words.

`clean` leaves no control or escape characters and no flood; `to_html` escapes what it leaves."""

import csv
import io
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from html import escape
from itertools import islice
from typing import Any

WHOLE = 3_000  # characters: honest text is shorter and shown whole; a flood is cut, and the cut is said
LONG = 100_000  # of what may list a whole class

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and its kin: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
)
# C0 and C1 controls, and the signs that reorder text (a way to make a line read differently)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# with the signs that East Asian keyboards write, which Excel takes for the same
_BEGINS_FORMULA = "(?=\\s*[=+@\uff1d\uff0b\uff20\uff0d-]|\t)"
_FORMULA, _MARKED = (re.compile(f"(^|;){mark}{_BEGINS_FORMULA}") for mark in ("", "'"))
_SURROGATES = re.compile(
    "[\ud800-\udfff]"
)  # lone ones, which UTF-8 cannot encode: bytes of a file's name that are no UTF-8


def clean(value: Any, limit: int = WHOLE, tail: bool = False) -> str:
    """Plain printable text. Of more than `limit` characters the beginning is kept (the end with `tail`), and it says so."""
    text = value if isinstance(value, str) else inline(value)
    raw = 8 * limit + 4096  # bounds the work on a megabyte, and leaves room for what is taken out below
    size = len(text)
    cut = size > raw
    text = (text[-raw:] if tail else text[:raw]) if cut else text
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    # A progress bar rewrites its line: keep what was left standing.
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text)).expandtabs(4).strip("\n")
    if len(text) <= limit and not cut:
        return text
    if tail:
        return f"[cut: the end of {size:,} characters]\n{text[-limit:]}"
    return f"{text[:limit]} [cut: {size:,} characters]"


def beginning(text: str, limit: int) -> str:
    """At most so many characters, and of more how many they were."""
    return text if len(text) <= limit else f"{text[:limit]} [cut: {len(text):,} characters]"


def number(value: float) -> str:
    """Four significant digits; integers stay whole."""
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else "more than 1e15"
    if not math.isfinite(value):
        return str(value)
    short = float(f"{value:.4g}")
    if short == 0 or 1e-3 <= abs(short) < 1e7:
        return f"{short:.10f}".rstrip("0").rstrip(".")
    return f"{short:.4g}"


def rounded(value: float, digits: int) -> str:
    """So many significant digits; no zeros at the end."""
    return number(float(f"{value:.{digits}g}"))


def inline(value: Any, depth: int = 0) -> str:
    """A JSON value on one line, long and deep ones shortened."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str):
        return clean(value)
    if depth == 3:
        return "(more, in the result file)"
    items = 40 if depth == 0 else 10
    if isinstance(value, dict):
        parts = [f"{key_words(k)} {inline(v, depth + 1)}" for k, v in islice(value.items(), items)]
    elif isinstance(value, list | tuple):
        parts = [inline(v, depth + 1) for v in value[:items]]
    else:
        return f"({type(value).__name__})"
    if len(value) > items:
        parts.append(f"{len(value) - items} more, in the result file")
    joined = ", ".join(parts)
    return f"({joined})" if depth else joined


def one_line(value: Any) -> str:
    """`clean`, with a blank for any white space."""
    return " ".join(clean(value).split())


def painter(colour: bool) -> Callable[[str, str], str]:
    """What puts a terminal's code around words, or leaves them as they are: paint("✗ FAIL", "31")."""
    return lambda words, code: f"\x1b[{code}m{words}\x1b[0m" if colour else words


def key_words(key: Any) -> str:
    """A JSON key as words."""
    return str(key)[:80].replace("_", " ")


def cores_text(count: Any) -> str:
    """ "1 core", "8 cores" """
    return f"{count} core{'s' * (count != 1)}"


def size_text(size: float) -> str:
    """Bytes: "12.3 GB", "4.5 KB" """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if abs(size) >= 0.9995 * unit:  # what three digits round to it
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} bytes"


def times(factor: float) -> str:
    """A speed-up: "2.10x", "12.3x", "123x"."""
    digits = 2 if factor < 10 else 1 if factor < 100 else 0
    return f"{factor:.{digits}f}x"


def rough_time(seconds: float) -> str:
    """For what is to come: "25 s", in fives, and from 90 s on "2 min"."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(5, 5 * round(seconds / 5))} s"


def plausible(value: Any) -> float | None:
    """A speed-up or a time as a float, or None. Beyond a million either way it is nonsense, not a measurement."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 1e-6 < value < 1e6 else None


def no_formula(text: str) -> str:
    """Marked as text where a spreadsheet would take it for a formula: also behind a semicolon, at which some of them part a line."""
    return _FORMULA.sub(r"\1'", text)


def as_it_was(text: str) -> str:
    """What `no_formula` marked."""
    return _MARKED.sub(r"\1", text)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV; a cell of None is empty."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def tell(text: str) -> None:
    """Print on standard error, at once, what a terminal only shows: names of files and texts of errors stand in it."""
    print(clean(text, LONG), file=sys.stderr, flush=True)


def to_html(value: Any, limit: int = WHOLE, tail: bool = False) -> str:
    """`clean`, with markup escaped."""
    return escape(clean(value, limit, tail))


def prose_to_html(value: Any, limit: int = WHOLE) -> str:
    """Escaped text in which `backticks` and calls of a lab show as code."""
    found = re.compile(r"`([^`\n]+)`|\b(lab\.\w+\([^()\n]*\))")
    return found.sub(lambda match: f"<code>{match[1] or match[2]}</code>", to_html(value, limit))


def hanging(head: str, value: Any, width: int) -> list[str]:
    """`wrap` behind `head`, with as many blanks before all further lines."""
    first, *rest = wrap(value, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]


def at_both_ends(left: Any, right: Any, width: int) -> list[str]:
    """Two texts at both ends of a line, or on lines of their own where they do not fit."""
    left, right = one_line(left), one_line(right)
    if len(left) + 2 + len(right) <= width:
        return [left.ljust(width - len(right)) + right]
    return [*wrap(left, width), *(line.rjust(width) for line in wrap(right, width))]


def wrap(value: Any, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns, the text's own line breaks kept; at least one, so that a title can be taken from it."""
    wrapped: list[str] = []
    for line in clean(value, 2 * WHOLE).splitlines():
        wrapped += textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent)
    return wrapped or [""]
