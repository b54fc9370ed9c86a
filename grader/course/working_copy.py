"""A learner's own copy of a lab."""

from __future__ import annotations

import shutil
from pathlib import Path

from grader import labs, paths
from grader.errors import UserError


def start(name: str) -> Path:
    """Copy a lab's released folder to work/, and return the notebook's path. A notebook that is there stays as it is; where
    only the notebook is gone, everything else in the folder stays. Raises UserError where the copy cannot be made."""
    lab = labs.get(name).name
    source, notebook = paths.REPOSITORY / "labs" / lab, paths.working_copy(lab)
    target = notebook.parent
    if not source.is_dir():
        raise UserError(f"{source} is missing. Run `make release`, or get the course anew.")
    try:
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            partial = target.with_name(f".{lab}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(source, partial)
            partial.rename(target)
        elif not notebook.exists():
            partial = notebook.with_name(f".{lab}.partial")
            shutil.copyfile(source / notebook.name, partial)
            partial.rename(notebook)
    except OSError as error:
        raise UserError(
            f"{notebook} cannot be made: {error.strerror}. Use a copy of the course in a folder that is yours to write to."
        ) from None
    return notebook
