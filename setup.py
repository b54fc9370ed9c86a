"""What a wheel holds besides code: the course's data as grader/data, its notebooks, labs and solutions as grader/shipped
(grader.paths). In a checkout they lie beside the package. Everything else about the build stands in pyproject.toml."""

import json
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATA = ("*.py", "traces/*.json", "traces/*.json.gz", "measured/calibration.json", "measured/*/*/ladder.json")
COURSE = ("notebooks/**/*.ipynb", "notebooks/figures/*", "labs/*/*", "solutions/*/*.ipynb")


class WithCourse(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for place, folder, patterns in (("", Path("data"), DATA), ("shipped", Path("."), COURSE)):
            for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
                if path.is_file() and ".ipynb_checkpoints" not in path.parts:
                    self._ship(path, Path(self.build_lib, "grader", place, path))

    def _ship(self, path: Path, target: Path) -> None:
        self.mkpath(str(target.parent))
        if (
            path.parts[0] == "solutions"
        ):  # a grade trains the reference beside a submission, and needs no more than that
            target.write_text(
                json.dumps(_submission_of(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8"
            )
        else:
            self.copy_file(str(path), str(target))


def _submission_of(notebook: dict) -> dict:
    """The notebook with nothing but its %%submission cells: no answers to its questions."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return notebook | {"cells": [cell for cell in code if "".join(cell["source"]).startswith("%%submission")]}


setup(cmdclass={"build_py": WithCourse})
