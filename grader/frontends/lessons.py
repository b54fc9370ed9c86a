"""Execute the lessons on this machine and keep their outputs: `python -m grader.frontends.lessons [NOTEBOOK ...]`."""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
from papermill.exceptions import PapermillExecutionError
from PIL import Image

from grader.frontends.report import with_palette

REPOSITORY = Path(__file__).resolve().parents[2]
TIMES = ("execution", "papermill")  # metadata that differs from run to run and says nothing
NO_BARS = "import os; os.environ['TQDM_DISABLE'] = '1'"  # read when tqdm is imported
PNG = "image/png"
WIDGET = "application/vnd.jupyter.widget-view+json"


def lessons() -> list[Path]:
    """All lessons, in their order."""
    return sorted((REPOSITORY / "notebooks").glob("[0-9]_*/[0-9]*_*.ipynb"))


def execute(path: Path, quick: bool = False, progress: bool = False) -> nbformat.NotebookNode:
    """Run a lesson from top to bottom, in its folder.

    Returns it with its outputs, else as it was written: no injected cell, no times. Raises PapermillExecutionError of the
    cell that failed."""
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
    """Execute a notebook in `folder` and write it to `target` with its outputs, as far as it came. Raises
    PapermillExecutionError of the cell that failed, and nbclient's errors for one that hung or whose kernel died."""
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
    outputs = {cell.id: cell for cell in executed.cells if cell.cell_type == "code"}
    for number, cell in enumerate((c for c in written.cells if c.cell_type == "code"), 1):
        cell.outputs = _joined(outputs[cell.id].outputs)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(nbformat.writes(notebook).rstrip("\n") + "\n", encoding="utf-8")
    beside.replace(path)


def reason(error: Exception) -> str:
    """Which cell failed, and why, in one line."""
    if isinstance(error, PapermillExecutionError):
        first = error.source.strip().splitlines()[0] if error.source.strip() else ""
        said = f"{error.ename}: {error.evalue}".splitlines()[0]
        return f"cell {error.exec_count} ({first}): " + re.sub(r"\x1b\[[0-9;]*m", "", said)
    return f"{type(error).__name__}: {error}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 1 a lesson failed, 2 no such notebook."""
    parser = argparse.ArgumentParser(prog="python -m grader.frontends.lessons", description=__doc__.partition(":")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="default: all lessons")
    parser.add_argument("--quick", action="store_true", help="small sizes; without --to nothing is kept")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write there, and leave the lessons as they are")
    options = parser.parse_args(arguments)
    chosen = [path.resolve() for path in options.notebooks] or lessons()
    if missing := [str(path) for path in chosen if not path.is_file()]:
        print(f"no such notebook: {', '.join(missing)}", file=sys.stderr)
        return 2
    # kernels are children of this process: they use the package that the lessons belong to, installed or not
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    failed, began = [], time.monotonic()
    for number, path in enumerate(chosen):
        passed = time.monotonic() - began
        left = f", about {passed / number * (len(chosen) - number):.0f} s left" if number else ""
        print(f"[{number + 1}/{len(chosen)}] {path.parent.name}/{path.stem}{left}", flush=True)
        start = time.monotonic()
        try:
            notebook = execute(path, quick=options.quick, progress=sys.stderr.isatty())
        except Exception as error:  # one lesson that fails does not keep the others from being made
            failed.append(path)
            print(f"    FAILED, left as it was: {reason(error)}", flush=True)
            continue
        if options.to:
            write(notebook, options.to / path.parent.name / path.name)
        elif not options.quick:
            write(notebook, path)
        print(f"    {time.monotonic() - start:.0f} s", flush=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} lessons executed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
