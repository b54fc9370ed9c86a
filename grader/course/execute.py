"""Executes notebooks on this machine and keeps their outputs."""

import base64
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import papermill
from papermill.exceptions import PapermillExecutionError
from PIL import Image

from grader.result import write_text
from grader.web_page import with_palette

TIMES = ("execution", "papermill")  # metadata that differs from run to run and says nothing
NO_BARS = "import os; os.environ['TQDM_DISABLE'] = '1'"  # read when tqdm is imported
PNG = "image/png"
WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(path: Path, quick: bool = False, progress: bool = False) -> nbformat.NotebookNode:
    """Run a lesson in its folder. Returns it with its outputs, else as written. Raises PapermillExecutionError of a cell that failed."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        run(path, target, {"quick": True} if quick else {}, path.parent, progress=progress)
        notebook = nbformat.read(target, as_version=4)
    return clean(notebook, nbformat.read(path, as_version=4))


def run(
    path: Path,
    target: Path,
    parameters: dict[str, Any],
    folder: Path,
    cell_limit_s: float = 600,
    progress: bool = False,
) -> None:
    """Execute a notebook in `folder` and write it to `target`, as far as it came; then raises what papermill or nbclient raised."""
    papermill.execute_notebook(
        path,
        target,
        parameters=parameters,
        cwd=folder,
        kernel_name="python3",
        progress_bar=progress,
        execution_timeout=cell_limit_s,
        # the kernel's own remarks, and bars of what is made on the way, are not the reader's business
        extra_arguments=["--log-level=ERROR", f"--IPKernelApp.exec_lines={NO_BARS}"],
    )


def clean(executed: nbformat.NotebookNode, written: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook as it was written, with the outputs of the executed one."""
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    for number, cell in enumerate((c for c in written.cells if c.cell_type == "code"), 1):
        cell.outputs = _joined(outputs[cell.id])
        cell.execution_count = number
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
            if PNG in output.get("data", {}):
                output.data[PNG] = _smaller(output.data[PNG])
        for name in TIMES:
            cell.metadata.pop(name, None)
    return written


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """What was printed in one go as one output, however the messages were cut."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if WIDGET in output.get("data", {}):
            continue  # dead without its kernel, and its state is large; what is shown beside it stays
        last = joined[-1] if joined else None
        if output.output_type == "stream" and last and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def _smaller(picture: str) -> str:
    """The same pixels in fewer bytes, of a picture in base64: charts have few colours. One of many is left as it is."""
    png = io.BytesIO(base64.b64decode(picture))
    with Image.open(png) as image:
        few = image.getcolors(256) is not None
    return base64.b64encode(with_palette(png, 256).getvalue()).decode() if few else picture


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook so that a diff of it can be read; a file that is there is replaced when the new one is complete."""
    write_text(path, nbformat.writes(notebook).rstrip("\n") + "\n")


def reason(error: Exception) -> str:
    """Which cell failed, and why, in one line."""
    if isinstance(error, PapermillExecutionError):
        first = error.source.strip().splitlines()[0] if error.source.strip() else ""
        said = f"{error.ename}: {error.evalue}".splitlines()[0]
        return f"cell {error.exec_count} ({first}): " + re.sub(r"\x1b\[[0-9;]*m", "", said)
    return f"{type(error).__name__}: {error}"
