"""Make `labs/` from `solutions/`: `python -m grader.frontends.release`, which writes the solutions' generated cells anew first.

The steps of `nbgrader generate_assignment`, but in a temporary course and without the gradebook of a running class."""

import logging
import shutil
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import SaveCells
from traitlets.config import PyFileConfigLoader

from grader.errors import UserError
from grader.frontends.lab_page import refresh
from grader.paths import REPOSITORY
from grader.result import write_bytes

# what is no part of a lab: what Jupyter and Python leave, and what a lab keeps of whoever works on it
IGNORED = (
    ".ipynb_checkpoints",
    "__pycache__",
    "prediction.json",
    "mystery.json",
    "report-*.json",
    "report-*.html",
    "attempts-*.json",
)


def release(target: Path = REPOSITORY / "labs", course: Path = REPOSITORY) -> list[Path]:
    """Make `course`/solutions into `target`, remove what none makes, return the changed files. UserError for a missing notebook."""
    changed = []
    with tempfile.TemporaryDirectory() as temporary:
        made = _generate(course, Path(temporary))
        names = _files(made)
        for name in sorted(names):
            new, old = made / name, target / name
            if not old.is_file() or new.read_bytes() != old.read_bytes():
                write_bytes(old, new.read_bytes())
                changed.append(old)
        for name in sorted(_files(target) - names):
            (target / name).unlink()
            changed.append(target / name)
    return changed


def _generate(course: Path, temporary: Path) -> Path:
    shutil.copytree(course / "solutions", temporary / "solutions", ignore=shutil.ignore_patterns(*IGNORED))
    refresh(temporary / "solutions")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.root = str(temporary.resolve())
    config.GenerateAssignment.no_database = True
    config.GenerateAssignment.preprocessors.remove(SaveCells)
    made = temporary / config.CourseDirectory.release_directory
    made.mkdir()
    for solution in sorted((temporary / "solutions").iterdir()):
        if not (solution / f"{solution.name}.ipynb").is_file():
            raise UserError(f"solutions/{solution.name} lacks {solution.name}.ipynb: add it, or remove the folder.")
        place = CourseDirectory(config=config, assignment_id=solution.name)
        GenerateAssignment(coursedir=place, config=config).start()
    return made


def _files(folder: Path) -> set[Path]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if not any(fnmatch(part, each) for part in path.parts for each in IGNORED)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # nbgrader says in its log what went wrong
    try:
        changed = [*refresh(REPOSITORY / "solutions"), *release()]
    except UserError as error:
        sys.exit(str(error))
    for path in changed:
        print(path.relative_to(REPOSITORY), "" if path.exists() else "(removed)")
    print(f"{len(changed)} files changed.")
