"""`grader labs`, `course`, `start`, `hint`, `scaffold`: which labs there are; what they and the course give to begin with."""

import argparse
import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

from grader import labs, paths
from grader.course import outline
from grader.course.laying import lay
from grader.errors import UserError, not_installed
from grader.frontends.options import add_lab
from grader.grading.forms import choose_form, missing_packages
from grader.grading.half import hints_here, lacks_on
from grader.labs.lab import AnyLab
from grader.result import made_writable, write_text

HERE = {
    "traces": "graded from recorded traces",
    "cuda": "graded on the GPU",
    "cpu": "graded in its CPU form",
    None: "needs an NVIDIA GPU",
}


def add_labs(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=list_labs)
    parser.add_argument("--json", action="store_true", help="as JSON")


def add_course(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=course)
    parser.epilog = (
        "Run it again after an update. It brings what is missing or new, and what you changed stays as it is."
    )
    parser.add_argument("folder", type=Path, help="where to put the notebooks. It need not be there yet")


def add_start(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=start)
    add_lab(parser)


def add_hint(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.set_defaults(run=hint)
    add_lab(parser)
    add("check", nargs="?", help="the check's name, which a report gives below its hint")
    words = "1 is a nudge, 2 says where to look, 3 says what to do (default: 1)"
    add("--depth", type=int, choices=(1, 2, 3), default=1, help=words)


def add_scaffold(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=scaffold)
    parser.add_argument("folder", type=Path, help="where to put train.py. An existing file stays as it is")


def form_here(lab: AnyLab) -> str | None:
    """The form in which this machine can grade a lab; None for none."""
    form = choose_form(lab, "auto")
    return form if form in lab.forms else None


def list_labs(options: argparse.Namespace) -> None:
    rows = [_row(labs.get(name)) for name in labs.NAMES]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        here = HERE[row["form_here"]]
        if row["lacks"]:
            here = "needs more packages, which `grader doctor` names"
        elif row["form_here"] == "cpu" and not row["points_here"]:
            here = "needs an NVIDIA GPU. This CPU only compares the training"
        print(f"{row['name']:<16} {row['title']} ({row['points']:g} points, {here})\n{'':16} {row['goal']}")
    print("\nBegin with: grader start LAB")


def _row(lab: AnyLab) -> dict[str, Any]:
    form, lacks = form_here(lab), missing_packages(lab)
    row = {"name": lab.name, "title": lab.title, "phase": lab.phase, "goal": lab.goal, "points": lab.max_score}
    return row | {"form_here": form, "lacks": lacks, "points_here": lab.measurable(form) if form and not lacks else 0}


def course(options: argparse.Namespace) -> None:
    folder = options.folder.expanduser().absolute()
    laid = lay(folder)
    counts = {"new": laid.new, "brought up to date": laid.renewed, "yours": laid.changed, "unchanged": laid.same}
    print(f"{folder}: {', '.join(f'{len(files)} {what}' for what, files in counts.items() if files)}.")
    if laid.outdated:
        print("The course has newer ones of these. Yours stay. To get a newer one, rename yours and run this again.")
        print("\n".join(f"  {name}" for name in laid.outdated))
    needed = ("torch", "torchvision", "ipywidgets", "matplotlib", "PIL")
    if lacks := [name for name in needed if not importlib.util.find_spec(name)]:
        print(f"Lessons and labs need more. {not_installed(*lacks)}")
    print(f"Begin with: cd {shlex.quote(str(folder))} && jupyter lab notebooks/00_start_here.ipynb")


def start(options: argparse.Namespace) -> None:
    there = paths.working_copy(options.lab).exists()
    target = outline.start(options.lab)
    print(
        f"{target} is {'there already, as you left it' if there else 'yours to change'}. Open it with: jupyter lab {shlex.quote(str(target))}"
    )


def hint(options: argparse.Namespace) -> None:
    lab = labs.get(options.lab)
    hints = {check.name: check.hints for check in lab.checks if hasattr(check, "hints")}
    if options.check is None:
        raise UserError(f"Name a check of {lab.name}. It has hints for: {', '.join(hints)}.")
    if options.check not in hints:
        raise UserError(f"{lab.name} has no hints for {options.check!r}. It has them for: {', '.join(hints)}.")
    print(hints_here(hints[options.check], lacks_on(choose_form(lab, "auto")))[options.depth - 1])
    if options.depth < 3:
        print(f"More: grader hint {lab.name} {options.check} --depth {options.depth + 1}")


def scaffold(options: argparse.Namespace) -> None:
    target = options.folder / "train.py"
    if target.exists():
        raise UserError(f"{target} is there already and stays as it is. Name a different folder.")
    made_writable(options.folder)
    write_text(target, (paths.PACKAGE / "scaffold" / "train.py").read_text(encoding="utf-8"))
    print(
        f"{target} is yours to change. Its knobs are at the top, its model and data at the end. Each run leaves a folder under runs/."
    )
