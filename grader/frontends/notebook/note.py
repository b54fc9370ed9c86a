"""What a notebook shows, as HTML and as plain text: one output a call, which is written over without widgets, so no bar remains."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import zip_longest
from typing import Any

from grader import web_page
from grader.frontends import report
from grader.frontends.silence import PREPARED, Silence
from grader.result import Result
from grader.safe_text import clean, prose_to_html, rough_time, to_html

WORD = 10  # characters: a text of so many, such as a number, is not broken


def shell() -> Any:
    """The running IPython, or None."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


class Output:
    """One output, which each `show` writes over. A terminal prints them all, one after the other."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, page: str, text: str) -> None:
        if shell() is None:
            print(text)
            return
        from IPython.display import display

        data = {"text/html": page, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class ProgressBar:
    """Progress in an output. It moves only when it is told, between measurements: drawing keeps a core of this very machine busy."""

    def __init__(self, output: Output, after: str = "") -> None:
        """after: what stands below the bar."""
        self._output, self.began, self._share, self._after = output, time.monotonic(), 0.0, after
        self._silence = Silence(self._explain, "Interrupting the kernel (the square)")

    def __call__(self, share: float, what: str) -> None:
        if share <= PREPARED or not self._share:
            self.began = time.monotonic()
        seconds = time.monotonic() - self.began
        left = f", about {rough_time(seconds / share * (1 - share))} left" if seconds > 3 and 0.1 < share < 1 else ""
        self._share = share
        self._silence.after(what, lambda: self._show(f"{what}{left}"))

    def close(self) -> None:
        """Say nothing more."""
        self._silence.after("")

    def _explain(self, what: str, meaning: str) -> None:
        self._show(f"{what}. {meaning}")

    def _show(self, said: str) -> None:
        said = said[:1].upper() + said[1:]
        bar = f'<progress max="1" value="{self._share:.3f}" aria-label="{escape(said)}" style="width: 100%; height: 12px"></progress>'
        after = [self._after] if self._after else []
        note = Note("", [said], picture=bar, after=after, line=f"[{100 * self._share:3.0f}%] {said}", live=True)
        note.show(self._output)


@dataclass(frozen=True)
class Below:
    """What stands below a row of a table, across its columns. whole: the same in full, where the pointer rests on it."""

    text: str
    whole: str = ""

    def html(self, columns: int) -> str:
        title = f' title="{to_html(self.whole)}"' if self.whole else ""
        style = "padding-left: 18px; padding-bottom: 5px; font-size: 12px; color: #4b5563; overflow-wrap: anywhere"
        return f'<tr><td colspan="{columns}" style="{style}"{title}>{escape(self.text)}</td></tr>'


class Head(tuple[str, ...]):
    """The names of a table's columns, in its first row."""


Row = tuple[str, ...]  # as many texts in each row of a table
Table = Sequence[Row | Below]


@dataclass
class Note:
    """One thing to show, as HTML and as text, in the order of its fields but for the picture, which stands above the tables."""

    title: str
    lines: list[str] = field(default_factory=list)
    tables: Sequence[Table] = ()
    picture: str = ""  # HTML
    after: list[str] = field(default_factory=list)
    printed: str = ""  # by the submission
    line: str = ""  # the whole text, where one line says it all
    page: str = ""  # the whole HTML, where it is a report's
    live: bool = False  # it changes while one waits: a screen reader says so

    def show(self, output: Output | None = None) -> None:
        (output or Output()).show(self.html(), self.text())

    def html(self) -> str:
        if self.page:
            return self.page
        parts = [web_page.heading(prose_to_html(self.title), above=web_page.IN_NOTEBOOK)] if self.title else []
        live = ' role="status"' if self.live else ""
        parts += [f'<p style="white-space: pre-wrap"{live}>{prose_to_html(line)}</p>' for line in self.lines]
        parts += [self.picture, *(table_html(rows) for rows in self.tables if rows)]
        parts += [f'<p class="sp-note">{prose_to_html(line)}</p>' for line in self.after]
        if self.printed:
            parts.append(report.output_html(self.printed))
        return web_page.paper("\n".join(parts))

    def text(self) -> str:
        if self.line:
            return self.line
        rows = [row for rows in self.tables for row in table_text(rows)]
        lines = [self.title, *self.lines, *rows, *self.after]
        if self.printed:
            lines += [f"{report.output_title(self.printed)}:", clean(self.printed, 1000, tail=True)]
        return "\n".join(lines).strip("\n")


def table_html(rows: Table) -> str:
    """The first text of a row is its name."""
    columns = len(_full(rows)[0])
    lines = [row.html(columns) if isinstance(row, Below) else _row_html(row) for row in rows]
    return f'<div class="sp-wide"><table class="sp-table">{"".join(lines)}</table></div>'


def _row_html(row: Row) -> str:
    scopes = ["col"] * len(row) if isinstance(row, Head) else ["row"]
    cells = [_cell(text, scope) for text, scope in zip_longest(row, scopes, fillvalue="")]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(text: str, scope: str) -> str:
    shown = f"<code>{escape(text)}</code>" if text.startswith(("lab.", "%%", '"')) else escape(text)
    kind = ' class="sp-short"' if len(text) <= WORD else ""
    return f'<th scope="{scope}"{kind}>{shown}</th>' if scope and text else f"<td{kind}>{shown}</td>"


def table_text(rows: Table) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*_full(rows), strict=True)]
    lines = []
    for row in rows:
        if isinstance(row, Below):
            lines.append(f"      {row.text}")
        else:
            lines.append("  " + "  ".join(f"{t:{w}}" for t, w in zip(row, widths, strict=True)).rstrip())
    return lines


def _full(rows: Table) -> list[Row]:
    return [row for row in rows if not isinstance(row, Below)]


class ReportNote(Note):
    """A grade's report, with lines above and below."""

    def __init__(self, result: Result, lines: list[str], after: list[str]) -> None:
        super().__init__("", lines, after=after)
        self.result = result

    def html(self) -> str:
        below = "".join(f'<p class="sp-note">{escape(line)}</p>' for line in self.after)
        return report.html(self.result, said=self.lines, below=below)

    def text(self) -> str:
        return "\n".join([*self.lines, report.text(self.result), *self.after])
