"""One notebook, executed from top to bottom in a process of its own on a worker."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from papermill.exceptions import PapermillExecutionError

from grader.course import execute as executing
from grader.paths import course
from grader.safe_text import beginning

QUOTED = 4_000  # characters of what a notebook says: no honest line has as many
# torch's remark on a machine with fewer cores than a loader has workers; those that wait for a slow drive need no cores
FEW_CORES = "This DataLoader will create"


def execute(path: str, parameters: dict[str, Any], cell_limit_s: float, in_place: bool) -> dict[str, Any]:
    """Run a notebook (a path below the course's folder); in_place: in its own folder, else in an empty one.

    Returns {"why": what went wrong, "" for nothing, "cells": [{"id", "begins", "seconds" (None: it was not reached)}],
    "notebook": text with the outputs, whatever happened}, and, of a lab that was checked, "grade": the last `lab.check()`'s
    Result. What is written to stderr, and a warning, is wrong too."""
    source = course() / path
    why = ""
    with tempfile.TemporaryDirectory() as folder:
        target, empty = Path(folder) / source.name, Path(folder) / "empty"
        empty.mkdir()
        try:
            executing.run(source, target, parameters, source.parent if in_place else empty, cell_limit_s)
        except Exception as error:  # the cell failed, its kernel died, it hung, or the notebook is none
            why = _reason(error, target)
        if not target.exists():  # nothing of it could be run
            return {"why": why, "cells": [], "notebook": source.read_text(encoding="utf-8")}
        executed = nbformat.read(target, as_version=4)
        report = empty / f"report-{source.stem}.json"
        grade = {"grade": json.loads(report.read_text(encoding="utf-8"))} if report.exists() else {}
    durations = {cell.id: cell.metadata.get("papermill", {}).get("duration") for cell in executed.cells}
    kept = executing.clean(executed, nbformat.read(source, as_version=4))
    rows = []
    for cell in (cell for cell in kept.cells if cell.cell_type == "code"):
        seconds = durations.get(cell.id)
        if seconds is None and not cell.outputs:
            cell.execution_count = None
        rows.append({"id": cell.id, "begins": _first_line(cell.source), "seconds": seconds})
    return {"why": why or _warning(kept), "cells": rows, "notebook": nbformat.writes(kept)} | grade


def _reason(error: Exception, target: Path) -> str:
    if isinstance(error, PapermillExecutionError):
        return beginning(executing.reason(error), QUOTED)
    at = ""
    if target.exists():
        for cell in nbformat.read(target, as_version=4).cells:
            if cell.metadata.get("papermill", {}).get("start_time"):  # the last one that was begun
                at = f"cell {cell.id} ({_first_line(cell.source)}): "
    said = str(error).strip().splitlines() or [""]
    return f"{at}{type(error).__name__}: {beginning(said[0], QUOTED)}"


def _warning(notebook: Any) -> str:
    """The first thing that a reader of the notebook should not see, or ""."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                return f"cell {cell.id} wrote to stderr: {beginning(output.text.strip(), QUOTED)}"
            shown = (output.get("text", ""), *(output.get("data", {}).get(k, "") for k in ("text/plain", "text/html")))
            for text in shown:
                found = [each for each in text.split("\n") if re.search(r"Warning\b", each) and FEW_CORES not in each]
                if found:
                    return f"cell {cell.id} warned: {beginning(found[0].strip(), QUOTED)}"
    return ""


def _first_line(source: str) -> str:
    return next((beginning(line.strip(), QUOTED) for line in source.splitlines() if line.strip()), "")
