"""A learner's submission: the %%submission cells of a notebook, as text. Nothing here is ever executed in this process."""

import ast
import contextlib
import json
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader import paths
from grader.errors import UserError
from grader.labs.lab import AnyLab

MAGIC = "%%submission"
NOT_FIRST = f"{MAGIC} must be the first line of its cell. Move what stands above it."
MAX_NOTEBOOK = 64 << 20  # bytes
MAX_SOURCE = 1 << 20
MOST_CELLS = 2000
NAMED = "submission cell"  # how a cell is called, with its number
_TEXT_OF_DATABRICKS = re.compile(r"%md(?:-sandbox)?(?:[ \t]*\n|[ \t]+|$)")
COMPLETE = {"cause", "gain"}  # what a prediction must say

Prediction = tuple[tuple[str, Any], ...]  # the arguments of lab.predict(...), sorted by name


@dataclass(frozen=True)
class Submission:
    source: str  # the module that the grader runs
    starts: tuple[int, ...] = ()  # first line in the module of each cell
    elsewhere: tuple[str, ...] = ()  # names that other cells define
    prediction: Prediction | None = None
    student: str = ""  # whose it is, where nbgrader says so

    def where(self, line: int | None) -> str:
        """'submission cell 1, line 3' for a line of the module, or ''. Counted are cells with the magic, as other numbers change."""
        before = [start for start in self.starts if line is not None and start <= line]
        if line is None or not before:
            return ""
        return f"{NAMED} {len(before)}, line {line - before[-1] + 2}"  # the magic is line 1 of its cell

    def locate(self, traceback: str) -> str:
        """A traceback with the lines of the module said as lines of the notebook's cells."""
        line = re.compile(r'File ".*/submission\.py", line (\d+)')
        return line.sub(lambda match: self.where(int(match[1])) or match[0], traceback)


def read_notebook(path: str | Path) -> Submission:
    """The submission in a notebook file. Raises UserError for a file that is no notebook or has no usable submission."""
    return from_cells(code_cells(load_notebook(path), str(path)), str(path))


def load_notebook(path: str | Path) -> Any:
    """The JSON of a notebook file. Raises UserError for a file that cannot be read or holds no JSON."""
    path = Path(path)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
            raise UserError(f"{path} is not a plain file. Give the path of a notebook (.ipynb).")
        if info.st_size > MAX_NOTEBOOK:
            raise UserError(f"{path} is larger than {MAX_NOTEBOOK >> 20} MB. Clear its outputs and try again.")
        data = path.read_bytes()
        return parsed(data)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Give the path of a notebook (.ipynb).") from None
    except (ValueError, RecursionError) as error:
        why = no_json(data) or f"its JSON is broken ({error})"
        raise UserError(f"{path} is not a notebook, because {why}. Restore it from a copy, or start again.") from None


def parsed(data: bytes) -> Any:
    """The JSON of a notebook file, its cells as nbformat 4 has them. Raises ValueError and RecursionError for what is no JSON."""
    notebook = json.loads(decoded(data))
    if not isinstance(notebook, dict):
        return notebook
    cells, sheets = notebook.get("cells"), notebook.get("worksheets")
    if not isinstance(cells, list) and isinstance(sheets, list):  # nbformat 2 and 3
        of_sheets = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
        cells = [cell for each in of_sheets if isinstance(each, list) for cell in each]
    return {**notebook, "cells": [_of_today(cell) for cell in cells]} if isinstance(cells, list) else notebook


def _of_today(cell: Any) -> Any:
    """A cell as nbformat 4 has it: before, code was called otherwise, and headings were cells. Databricks' text is code: %md."""
    if not isinstance(cell, dict):
        return cell
    source = cell.get("source", cell.get("input", ""))
    text = "".join(source) if isinstance(source, list) and all(isinstance(line, str) for line in source) else source
    if isinstance(text, str) and (marked := _TEXT_OF_DATABRICKS.match(text)):
        return {**cell, "cell_type": "markdown", "source": text[marked.end() :]}
    if cell.get("cell_type") == "heading" and isinstance(level := cell.get("level", 1), int):
        return {**cell, "cell_type": "markdown", "source": f"{'#' * min(level, 6)} {text}"}
    return {**cell, "source": source} if "input" in cell else cell


def no_json(data: bytes) -> str:
    """What a file is that was meant to be a notebook, in words after "because"; "" where nothing is known of it."""
    begin = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if not data.strip(b"\0 \t\r\n"):
        return "it is empty"
    if b"\n<<<<<<< " in data:
        return "git left both sides of a conflict in it"
    known = ((b"<", "it is a web page"), (b"%PDF", "it is a PDF"), (b"PK", "it is a ZIP archive"))
    return next((what for magic, what in known if begin.startswith(magic)), "")


def decoded(data: bytes) -> str:
    """The text of a file as editors write it: UTF-8 and UTF-16, with and without a mark, else as Windows writes Western text."""
    for encoding in (json.detect_encoding(data), "utf-8", "cp1252"):  # the first knows the marks
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding)
    return data.decode("latin-1")


def code_cells(notebook: Any, name: str) -> list[str]:
    """The sources of the code cells of a notebook's JSON. Raises UserError for another form and for more than one should parse."""
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UserError(f"{name} is not a notebook, because it has no list of cells.")
    if len(cells) > MOST_CELLS:
        raise UserError(f"{name} has more than {MOST_CELLS:,} cells.")
    code = []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise UserError(f"{name} is not a notebook, because the source of a cell is not text.")
        code.append(source)
    _check_size(code, name)
    return code


def _check_size(cells: list[str], name: str) -> None:
    if sum(map(len, cells)) > MAX_SOURCE:  # a megabyte of code takes a gigabyte to parse
        raise UserError(f"{name} has more than {MAX_SOURCE >> 20} MB of code in its cells.")


def from_cells(cells: Iterable[str], name: str = "The notebook") -> Submission:
    """The %%submission cells as one module. Raises UserError where there are none, one cannot be parsed, or they are too large."""
    cells = list(cells)
    _check_size(cells, name)
    parts: list[str] = []
    starts: list[int] = []
    elsewhere: list[str] = []
    prediction: Prediction | None = None
    switches: dict[str, None] = {}  # of `from __future__ import ...`, in order
    lines = 0
    misplaced = False
    for cell in cells:
        text = cell.replace("\r\n", "\n").replace("\r", "\n")  # Python takes all three for the end of a line
        if is_submission(text):
            body = _from_first_line(text).partition("\n")[2]
            _parse(body, f"{name}, {NAMED} {len(starts) + 1}")
            body = _without_future(body, switches).rstrip("\n")
            starts.append(lines + 2)
            parts.append(f"# {NAMED} {len(starts)}\n{body}\n\n")
            lines += parts[-1].count("\n")
        else:
            misplaced |= is_misplaced(text)
            elsewhere += defined(text)
            if not prediction or not dict(prediction).keys() >= COMPLETE:  # the first complete one counts
                prediction = predicted_in(text) or prediction
    if not starts:
        raise UserError(
            f"{name} has no submission, because no cell begins with {MAGIC}. "
            + (NOT_FIRST if misplaced else "Put what you hand in into such a cell.")
        )
    source = "".join(parts)
    if switches:  # they stand before everything else in a module
        source = f"from __future__ import {', '.join(switches)}\n{source}"
        starts = [line + 1 for line in starts]
    return Submission(source, tuple(starts), tuple(elsewhere), prediction)


def _without_future(body: str, switches: dict[str, None]) -> str:
    """A cell with `pass` for its `from __future__ import ...`, whose names go to `switches`; its lines keep their numbers."""
    written = body.split("\n")
    lines = list(written)
    for node in ast.parse(body).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # the cell's docstring
        if not isinstance(node, ast.ImportFrom) or node.module != "__future__":
            break  # behind anything else they are an error, in a cell as in a module
        switches |= dict.fromkeys(alias.name for alias in node.names)
        last = node.end_lineno or node.lineno
        rest = written[last - 1].encode()[node.end_col_offset :].decode()  # an offset counts bytes
        lines[node.lineno - 1 : last] = ["" for _ in range(node.lineno, last)] + [f"pass{rest}"]
    return "\n".join(lines)


def is_submission(cell_source: str) -> bool:
    first = _from_first_line(cell_source).partition("\n")[0].split()
    return bool(first) and first[0] == MAGIC


def is_misplaced(cell_source: str) -> bool:
    """Whether a cell has the magic below its first line, as under a %%time, where it counts for nothing."""
    return not is_submission(cell_source) and bool(re.search(rf"^{MAGIC}\b", cell_source, re.MULTILINE))


def _from_first_line(cell_source: str) -> str:
    """Without the blank lines above, which IPython ignores as well."""
    return re.sub(r"\A\s*\n", "", cell_source)


def _parse(source: str, where: str) -> None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        line = (error.lineno or 0) + 1  # the magic's own line
        text = (error.text or "").strip()
        ipythons = text[:1] in ("%", "!", "?") or text[-1:] == "?"
        advice = " IPython magics, shell commands and help cannot be part of a submission." if ipythons else ""
        # Python's words for a block
        said = re.sub(r"on line (\d+)", lambda match: f"on line {int(match[1]) + 1}", error.msg)
        raise UserError(f"{where}, line {line}: syntax error: {said}: {text!r}.{advice}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{where} cannot be read as Python: {str(error) or type(error).__name__}.") from None


def _tree(source: str) -> ast.Module | None:
    """The parsed cell without its magics, or None when it is not Python."""
    lines = ("" if line.lstrip()[:1] in ("%", "!") else line for line in source.split("\n"))
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defined(source: str) -> list[str]:
    """Names that a cell defines at its top level."""
    names: list[str] = []
    for node in getattr(_tree(source), "body", []):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)]
    return names


def predicted_in(source: str) -> Prediction | None:
    """The literal arguments of the first call `....predict(cause=..., gain=..., device=...)` that has any; `...` is none."""
    tree = _tree(source)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "predict":
            prediction = {}
            for keyword in node.keywords:
                with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                    value = ast.literal_eval(keyword.value)
                    if keyword.arg and _fits(keyword.arg, value):
                        prediction[keyword.arg] = value
            if prediction:
                return tuple(sorted(prediction.items()))
    return None


def _fits(name: str, value: Any) -> bool:
    """Whether a prediction's argument can have this value."""
    if name == "cause":
        return isinstance(value, str) and value.isprintable()
    if name == "gain":
        return isinstance(value, int | float) and 0 < value < 1e6
    return name == "device" and value in ("cuda", "cpu")


def same_code(one: str, other: str) -> bool:
    """Whether two modules are the same for Python: comments and layout aside."""
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def solution(lab: AnyLab) -> Submission:
    """The reference solution. Raises UserError where it is not part of this copy of the course."""
    path = paths.course() / "solutions" / lab.name / f"{lab.name}.ipynb"
    if not path.exists():
        raise UserError(f"The solution of {lab.name} is not part of this copy of the course ({path}).")
    return read_notebook(path)
