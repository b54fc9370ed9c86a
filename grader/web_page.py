"""A page that needs nothing from elsewhere: its style, its frame, its pictures. It runs no script and loads nothing."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from grader.errors import not_installed
from grader.safe_text import to_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart with every common form of colour blindness. A colour never stands alone: a sign and
# a word always say the same.
BLACK, GREY, GREEN, ORANGE, VERMILION, PURPLE = "#1b1f23", "#6b7280", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
PICTURE_BYTES = 90_000  # of a picture as base64, so that a report with two stays under 300 KB

# Every rule behind the report's own class: JupyterLab's themes colour tables, code and pre of outputs (with
# ".jp-ThemedContainer .jp-RenderedHTMLCommon :not(pre) > code", which only the class named three times outranks); nbgrader's
# pages take the triangle of a summary away and frame every picture in red. The report keeps its light paper in dark themes, where its pictures would otherwise be
# unreadable.
CSS = """
.speed-report { color-scheme: light; background: #fff; color: #1b1f23; border: 1px solid #d0d7de; border-radius: 6px;
  padding: 16px 20px 10px; max-width: 880px; box-sizing: border-box; text-align: left;
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
.speed-report * { box-sizing: border-box; }
.speed-report div, .speed-report span, .speed-report p, .speed-report summary { color: #1b1f23; }
.speed-report p { margin: 2px 0; padding: 0; }
.speed-report.speed-report.speed-report code, .speed-report.speed-report.speed-report pre { color: #1b1f23;
  font: 12.5px/1.4 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: rgba(27, 31, 35, .07); border: 0; border-radius: 3px; padding: 0 2px; overflow-wrap: break-word; }
.speed-report.speed-report.speed-report pre { padding: 8px 10px; margin: 6px 0; max-height: 24em; overflow: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; word-break: normal; }
.speed-report .sp-head { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: baseline;
  gap: 0 20px; }
.speed-report .sp-title { font-size: 20px; font-weight: 600; overflow-wrap: anywhere; }
.speed-report .sp-score { font-size: 20px; font-weight: 600; white-space: nowrap; }
.speed-report .sp-bar { display: flex; gap: 3px; height: 8px; margin: 8px 0 6px; }
.speed-report .sp-bar span { display: block; background: #e5e7eb; border-radius: 2px; min-width: 3px;
  overflow: hidden; }
.speed-report .sp-bar span.sp-hatch { background: repeating-linear-gradient(135deg, #c3c9d0 0 3px, #fff 3px 7px); }
.speed-report .sp-bar i { display: block; height: 100%; }
.speed-report .sp-say { border-left: 3px solid #6b7280; padding-left: 9px; margin: 5px 0; font-weight: 600; }
.speed-report .sp-fatal { border: 1px solid #D55E00; border-left-width: 6px; border-radius: 4px; background: #fdf3ec;
  padding: 9px 12px; margin: 10px 0; }
.speed-report .sp-fatal .sp-what { white-space: pre-wrap; overflow-wrap: anywhere; }
.speed-report .sp-warning { border-left: 3px solid #E69F00; padding-left: 9px; margin: 5px 0; overflow-wrap: anywhere; }
.speed-report .sp-section { margin: 14px 0 4px; padding-top: 10px; border-top: 1px solid #e5e7eb; }
.speed-report .sp-big { font-weight: 600; }
.speed-report .sp-note { color: #4b5563; font-size: 13px; }
.speed-report .sp-wide { overflow-x: auto; }
.speed-report img.sp-picture { display: block; width: 100%; max-width: 780px; min-width: 480px; height: auto; margin: 6px 0;
  background: #fff; border: 0; }
.speed-report.speed-report.speed-report .sp-table { display: table; table-layout: auto; border-collapse: collapse; border: 0;
  margin: 8px 0; width: auto; max-width: 100%; font-size: 13px; color: #1b1f23; }
.speed-report.speed-report.speed-report .sp-table tr { background: none; border: 0; }
.speed-report.speed-report.speed-report .sp-table :is(th, td) { padding: 1px 18px 1px 0; border: 0; background: none;
  color: #1b1f23; font-weight: normal; text-align: left; vertical-align: top; white-space: normal; overflow-wrap: break-word;
  max-width: none; }
.speed-report.speed-report.speed-report .sp-table :is(th, td):last-child { padding-right: 0; }
.speed-report.speed-report.speed-report .sp-table th[scope=col] { color: #4b5563; }
.speed-report.speed-report.speed-report :is(th, td).sp-short { white-space: nowrap; }
.speed-report .sp-check { display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 9px 0 9px 10px;
  margin: 6px 0; border-left: 4px solid; }
.speed-report .sp-status { flex: 0 0 150px; font-weight: 600; white-space: nowrap; font-size: 13px; line-height: 20px; }
.speed-report .sp-status span { display: inline-block; width: 20px; height: 20px; line-height: 20px;
  border-radius: 10px; margin-right: 7px; text-align: center; color: #fff; font-weight: 700; }
.speed-report .sp-points { white-space: nowrap; text-align: right;
  font-variant-numeric: tabular-nums; }
.speed-report .sp-body { flex: 1 1 340px; min-width: 0; overflow-wrap: anywhere; }
.speed-report .sp-name { display: flex; justify-content: space-between; gap: 14px; font-weight: 600; }
.speed-report .sp-hint { background: #eef6fb; border-radius: 4px; padding: 4px 9px; margin: 5px 0; }
.speed-report details { margin: 4px 0 0; padding: 0; background: none; border: 0; }
.speed-report summary { display: list-item; cursor: pointer; color: #0072B2; font-size: 13px;
  font-weight: normal; background: none; }
.speed-report.speed-report.speed-report .sp-rows { display: grid; grid-template-columns: minmax(90px, max-content) 1fr; gap: 2px 14px;
  margin: 5px 0; font-size: 12.5px; }
.speed-report.speed-report.speed-report :is(dt, dd) { margin: 0; padding: 0; font-weight: normal; color: #1b1f23;
  overflow-wrap: anywhere; white-space: pre-wrap; font-variant-numeric: tabular-nums; }
.speed-report.speed-report.speed-report dt { color: #4b5563; max-width: 230px; }
.speed-report .sp-foot { margin-top: 12px; padding-top: 7px; border-top: 1px solid #e5e7eb; color: #4b5563;
  font-size: 12px; overflow-wrap: anywhere; }
@media print { .speed-report pre { max-height: none; } }
"""

# Belt and braces: should anything slip through the escaping, a standalone page still runs no script and loads nothing.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title></head>
<body style="margin: 24px auto; max-width: 880px; padding: 0 8px; background: #f6f8fa">
{body}
</body></html>
"""


IN_NOTEBOOK = 2  # levels that a notebook's own headings take above those of an output; a page by itself begins with 1


def _level(level: int) -> str:
    # no h1: JupyterLab would style it, and list it with the notebook's own
    return f'role="heading" aria-level="{level}"'


def paper(body: str, css: str = "") -> str:
    """The frame that all styles are bound to, for a notebook's output; `css` is added to the page's own."""
    # The two "ignore" classes keep MathJax, which JupyterLab and nbconvert run over outputs, away from dollar signs.
    return f'<div class="speed-report tex2jax_ignore mathjax_ignore"><style>{CSS}{css}</style>\n{body}</div>'


def page(title: str, body: str, css: str = "") -> str:
    """`paper` as a file of its own. `title` is plain text, `body` HTML."""
    return _PAGE.format(title=to_html(title), body=paper(body, css))


def heading(title: str, right: str = "", above: int = 0) -> str:
    """A page's first line, with a word at its right end; both are HTML. above: here and below, levels of headings above the page's."""
    score = f'<div class="sp-score">{right}</div>' if right else ""
    return f'<div class="sp-head"><div class="sp-title" {_level(above + 1)}>{title}</div>{score}</div>'


def sub_heading(title: str, above: int = 0) -> str:
    """A heading of HTML within a page."""
    return f"<div {_level(above + 2)}>{title}</div>"


def section(title: str, *parts: str, above: int = 0) -> str:
    """HTML below a line and a title of plain text, which may be empty; "" where there is no HTML."""
    inner = "".join(parts)
    head = f'<p class="sp-big" {_level(above + 2)}>{to_html(title)}</p>' if title else ""
    return f'<div class="sp-section">{head}{inner}</div>' if inner else ""


def folded(summary: str, inner: str, opened: bool = False, of: str = "") -> str:
    """HTML that a click on the summary, plain text, opens. of: which one of several, for a screen reader."""
    name = f' aria-label="{to_html(f"{summary}: {of}")}"' if of else ""
    return f"<details{' open' if opened else ''}><summary{name}>{to_html(summary)}</summary>{inner}</details>"


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what is said of them, plain texts, in two columns."""
    cells = "".join(f"<dt>{to_html(name)}</dt><dd>{to_html(said)}</dd>" for name, said in rows)
    return f'<dl class="sp-rows">{cells}</dl>'


TABLES = """
.speed-report table { border-collapse: collapse; font-size: 13px; }
.speed-report td, .speed-report th { text-align: left; vertical-align: top; padding: 2px 12px 2px 0;
  border-bottom: 1px solid #e5e7eb; }
"""


SHORT = 22  # characters: what is no longer stays on one line


def table(head: Iterable[str], rows: Iterable[Sequence[str]], numbers_right: bool = False) -> str:
    """For a page whose `css` has TABLES, of HTML. numbers_right: a cell that holds a number is of class "n". Wide ones scroll."""
    lines = [f"<tr>{''.join(f'<th scope=col>{to_html(name)}</th>' for name in head)}</tr>"]
    for row in rows:
        cells = (f"<td{_kind(cell, numbers_right)}>{cell}</td>" for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="sp-wide"><table>{"".join(lines)}</table></div>'


def _kind(cell: str, numbers_right: bool) -> str:
    kinds = ["sp-short"] * (len(re.sub("<[^>]*>", "", cell)) <= SHORT)
    kinds += ["n"] * (numbers_right and bool(re.fullmatch("[0-9.,%]+", cell)))
    return f' class="{" ".join(kinds)}"' if kinds else ""


def items(lines: Iterable[str]) -> str:
    """A list with a point before each piece of HTML."""
    return f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


def image(draw: Callable[[], Figure], alt: str) -> str:
    """`draw()`'s figure as an <img>: SVG, or PNG where a crowded SVG would be too large. Drawn from matplotlib's defaults, whatever
    style the learner's kernel has. A picture that cannot be drawn costs the picture, never the report."""
    try:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams["svg.hashsalt"] = "report"  # the same result gives the same bytes
            matplotlib.rcParams["text.parse_math"] = False  # a dollar sign in a name is a dollar sign
            figure = draw()
            for kind, dpi in (("svg", 72), ("png", 150), ("png", 100), ("png", 60)):
                buffer = io.BytesIO()
                metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
                figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
                if kind == "png":
                    buffer = with_palette(buffer, 64)  # nothing that one could see is lost
                data = base64.b64encode(buffer.getvalue()).decode()
                if len(data) <= PICTURE_BYTES:
                    source = f"data:image/{kind.replace('svg', 'svg+xml')};base64,{data}"
                    picture = f'<img class="sp-picture" src="{source}" alt="{escape(alt)}">'
                    return f'<div class="sp-wide">{picture}</div>'
        return '<p class="sp-note">A picture was too large to show.</p>'
    except ModuleNotFoundError as error:
        return f'<p class="sp-note">A picture is missing here. {to_html(not_installed(str(error.name)))}</p>'
    except Exception as error:
        return f'<p class="sp-note">A picture could not be drawn: {to_html(repr(error))}</p>'


def with_palette(png: io.BytesIO, colors: int) -> io.BytesIO:
    """The same picture with so many colours at most, up to 256: a third of the bytes. One that has no more keeps each pixel."""
    from PIL import Image

    smaller = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(colors).save(smaller, "png", optimize=True)
    return smaller
