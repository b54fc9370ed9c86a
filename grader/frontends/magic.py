"""%%submission: the cell runs as usual, and its source is remembered.

An input transformer makes a comment of the magic's line, so errors, line numbers, `await` and the value of the last line are those
of an ordinary cell. Which cell it was comes from the events around its execution."""

import json
import os
from typing import Any

from grader.submission import MAGIC, is_submission


class Recorder:
    """The notebook, as far as it was executed: the latest source of every cell.

    A cell is known by the id that JupyterLab and VS Code send. nbclient, papermill and the terminal send none: there the source is the
    id, what was run last comes last, and a submission cell that failed is forgotten, because nothing would ever replace it."""

    def __init__(self) -> None:
        self._cells: dict[str, str] = {}

    @property
    def cells(self) -> list[str]:
        """In the order of first execution, but submission cells in that of the notebook, as in class, where its file holds
        all of them: a helper may have been inserted above the cell that uses it."""
        place = {cell_id: number for number, cell_id in enumerate(_saved_ids())}
        submitted = [key for key, source in self._cells.items() if is_submission(source)]
        if not all(key in place for key in submitted):
            return list(self._cells.values())
        in_order = iter(sorted(submitted, key=place.__getitem__))
        return [self._cells[next(in_order) if key in submitted else key] for key in self._cells]

    def record(self, source: str, cell_id: str | None = None) -> None:
        if not cell_id:
            self._cells.pop(source, None)
        self._cells[cell_id or source] = source  # a known id keeps its place

    def before(self, info: Any) -> None:
        """IPython's pre_run_cell. Before, not after: also a cell that fails is what the learner submits."""
        for deleted in (getattr(info, "cell_meta", None) or {}).get("deletedCells") or ():  # JupyterLab says so
            self._cells.pop(deleted, None)
        if info.store_history:
            self.record(info.raw_cell, getattr(info, "cell_id", None))

    def after(self, result: Any) -> None:
        """IPython's post_run_cell."""
        info = result.info
        if info and not result.success and not getattr(info, "cell_id", None) and is_submission(info.raw_cell):
            self._cells.pop(info.raw_cell, None)


def install(shell: Any) -> Recorder:
    """Make %%submission known to a running IPython; only the first call does anything."""
    recorder = getattr(shell, "_submission_recorder", None)
    if recorder is None:
        recorder = shell._submission_recorder = Recorder()
        for source in shell.history_manager.input_hist_raw:
            if source and not is_submission(source):  # submission cells failed: there was no such magic
                recorder.record(source)
        shell.input_transformers_cleanup.append(_comment_out)
        shell.events.register("pre_run_cell", recorder.before)
        shell.events.register("post_run_cell", recorder.after)
        shell.register_magic_function(_magic(shell, recorder), "cell", "submission")
    return recorder


def _saved_ids() -> list[str]:
    """The ids of the notebook's cells as it was saved last (JupyterLab: every two minutes); none where no server tells its file."""
    try:
        with open(os.environ["JPY_SESSION_NAME"], encoding="utf-8") as file:
            return [cell["id"] for cell in json.load(file)["cells"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _comment_out(lines: list[str]) -> list[str]:
    if not is_submission("".join(lines)):
        return lines
    first = next(i for i, line in enumerate(lines) if line.strip())
    return [*lines[:first], "# " + lines[first].lstrip(), *lines[first + 1 :]]


def _magic(shell: Any, recorder: Recorder) -> Any:
    """For the list of magics, for completion and help; a cell itself never gets here (see above)."""

    def submission(line: str, cell: str) -> None:
        """Run this cell as usual, and make it part of your submission.

        All cells that begin with %%submission are, in the order of the notebook, what `lab.check()` grades, and nothing else
        is: imports and helpers belong in them. Running a cell again after a change replaces its earlier text."""
        recorder.record(f"{MAGIC}\n{cell}")
        shell.run_cell(cell)

    return submission
