"""What a class handed in, and what makes one grade different from another."""

import contextlib
import functools
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from grader import labs
from grader.classroom.cells import explanation, grade_id, lab_of, of_another_release, places, text_of
from grader.errors import UserError
from grader.measure.blocks import Plan
from grader.submission import MAX_NOTEBOOK, Submission, code_cells, from_cells, load_notebook
from grader.version import definition, version

LINK = "The notebook is a link to another file, which is not graded. Hand in the notebook itself."


@dataclass(frozen=True)
class Job:
    """One grade to be made. plan: what is measured, if not the usual; repeat: tells apart grades of the same submission."""

    lab: str
    submission: Submission
    device: str = "auto"
    quick: bool = False
    plan: Plan | None = None
    repeat: int = 0
    allow_unconfined: bool = False

    @functools.cached_property
    def digest(self) -> str:
        """The content hash: equal for two jobs when they ask for the same measurement, on whatever machine."""
        what = {
            "source": self.submission.source,
            "prediction": self.submission.prediction,
            "student": self.submission.student if labs.get(self.lab).personal else None,
            "definition": definition(self.lab),
            "version": version(),
            "quick": self.quick,
            "plan": asdict(self.plan) if self.plan else None,
            "repeat": self.repeat,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class Call:
    """A function of the course's own, "module:name", that a worker calls where else it makes a grade: what it returns is the record's
    "result". lab: the folder of the result; content: whatever it reads, as text. The front door takes in nothing but jobs."""

    lab: str
    function: str
    arguments: dict[str, Any]
    content: str = ""
    device: str = "auto"
    repeat: int = 0

    @functools.cached_property
    def digest(self) -> str:
        what = asdict(self) | {"version": version()}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"content": ""})


Task = Job | Call  # what a pool makes


# ---------------------------------------------------------------- a class on disk


@dataclass(frozen=True)
class HandedIn:
    """One student's notebook of one lab: its submission, or what is wrong with it."""

    student: str
    lab: str
    submission: Submission | None
    problem: str = ""
    explained: str = ""  # `cells.BESIDE` where the explanation does not stand in its cell
    other_release: bool = False  # whether the notebook is of another release of the lab
    closed: bool = False  # whether this machine does not let us read it, which is no student's fault


def read_class(release: Path, submitted: Path, only: Iterable[str] = ()) -> list[HandedIn]:
    """All SUBMITTED/STUDENT/LAB/LAB.ipynb for the labs of RELEASE (`only` some), by student and lab. UserError for other folders."""
    for folder, what in ((release, "the released labs"), (submitted, "the submissions")):
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder. Give the folder with {what}.")
    if submitted.resolve() == release.resolve().parent:
        raise UserError(
            f"{submitted} holds the labs themselves. Give the folder `submitted`, which holds STUDENT/LAB/LAB.ipynb."
        )
    chosen = [labs.get(name).name for name in only]
    released = {
        name: _released(path)
        for name in labs.NAMES
        if (path := release / name / f"{name}.ipynb").exists() and name in (chosen or labs.NAMES)
    }
    if not released or set(chosen) - released.keys():
        missing = ", ".join(sorted(set(chosen) - released.keys())) or "LAB/LAB.ipynb of any lab"
        raise UserError(f"{release} does not hold {missing}. Give the folder with the released labs, usually `labs`.")
    found: list[HandedIn] = []
    closed: list[HandedIn] = []
    for student in sorted(path for path in submitted.iterdir() if path.is_dir() and not _hidden(path.name)):
        for lab, notebook in released.items():
            if (told := _handed_in(student, lab)) is not False:
                (found if told else closed).append(_read(student, lab, notebook))
    handed_in = {
        one.lab for one in found
    } or released  # what is in a closed folder nobody knows: not all labs of the course
    found += [one for one in closed if one.lab in handed_in]
    if not found:
        raise UserError(f"{submitted} holds no submission. A submission lies at STUDENT/LAB/LAB.ipynb.")
    return sorted(found, key=lambda one: one.student)  # and by lab, as they were found


def _hidden(name: str) -> bool:
    """Whether programs leave such folders and files, and nobody hands them in."""
    return name.startswith((".", "__MACOSX"))


def _released(path: Path) -> dict[str, Any]:
    """A released notebook. Raises UserError for one that `restored` cannot use."""
    notebook = load_notebook(path)
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) and "cell_type" in cell for cell in cells):
        raise UserError(
            f"{path} is damaged. It is not a notebook as it was released. In the course's folder, `nbgrader "
            f"generate_assignment {path.stem} --force` makes it again."
        )
    return notebook


def misplaced(submitted: Path) -> list[str]:
    """Notebooks below SUBMITTED that are not at STUDENT/LAB/LAB.ipynb, which nobody grades; and how to put them there."""
    places = {(name, f"{name}.ipynb") for name in labs.NAMES}
    found = [Path(entry.path).relative_to(submitted) for entry in _below(submitted) if entry.name.endswith(".ipynb")]
    lost = [path for path in found if path.parts[1:] not in places and not any(map(_hidden, path.parts))]
    return [f"{path}{_move(submitted, path)}" for path in lost]


def _move(submitted: Path, path: Path) -> str:
    """The command that puts a notebook in its place."""
    try:
        what = (submitted / path).lstat()  # neither a link nor a pipe, which could be read without an end
        plain = stat.S_ISREG(what.st_mode) and what.st_size <= MAX_NOTEBOOK and len(path.parts) > 1
        lab = lab_of((submitted / path).read_bytes(), path.name) if plain else ""
    except OSError:
        lab = ""
    place = Path(path.parts[0]) / lab / f"{lab}.ipynb"
    if not lab or os.path.lexists(submitted / place):
        return ""
    old, new, folder = (shlex.quote(str(submitted / each)) for each in (path, place, place.parent))
    made = "" if (submitted / place).parent.exists() else f"mkdir -p {folder} && "
    return f": {made}mv {old} {new}"


def no_plain_files(submitted: Path) -> list[str]:
    """Links, pipes and the like below SUBMITTED. nbgrader reads and copies whatever they lead to."""
    return [
        os.path.relpath(each.path, submitted) for each in _below(submitted) if not each.is_file(follow_symlinks=False)
    ]


def _below(folder: Path) -> list[os.DirEntry]:
    """All that is no folder, however deep it lies, by path. Follows no links; leaves out what cannot be read."""
    found, folders = [], [os.fspath(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    found.append(entry)
    return sorted(found, key=lambda entry: entry.path)


def _handed_in(student: Path, lab: str) -> bool | None:
    """Whether there is something at the place of a student's notebook, though it may not be readable; None where nobody can tell."""
    try:
        (student / lab / f"{lab}.ipynb").lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return True


def is_link(student: Path, lab: str) -> bool:
    """Whether what lies at the place of a student's notebook lies elsewhere: the solution, say, or somebody else's."""
    place = os.path.join(lab, f"{lab}.ipynb")
    return os.path.realpath(student / place) != os.path.join(os.path.realpath(student), place)


def _read(student: Path, lab: str, released: Any) -> HandedIn:
    explained, other = "", False
    try:
        if not student.name.isprintable():  # nor can the gradebook hold it: unpacked from another system's archive, say
            raise UserError(
                "The name of the student's folder can't be read as text. Rename the folder. nbgrader may stop there, and grade nobody after it."
            )
        if is_link(student, lab):
            raise UserError(LINK)
        notebook = load_notebook(student / lab / f"{lab}.ipynb")
        explained, other = explanation(notebook, released), of_another_release(notebook, released)
        submission = replace(submission_in(restored(notebook, released)), student=student.name)
        return HandedIn(student.name, lab, submission, explained=explained, other_release=other)
    except UserError as error:
        return HandedIn(student.name, lab, None, str(error), explained, other, _closed(student / lab / f"{lab}.ipynb"))
    except Exception as error:  # one notebook, whatever it is, ends no class
        why = f"The notebook cannot be read ({type(error).__name__}: {error})."
        return HandedIn(student.name, lab, None, why, explained, other)


def _closed(path: Path) -> bool:
    """Whether this machine does not let us read a file."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def submission_in(notebook: Any) -> Submission:
    """The submission in a student's notebook (its JSON), for `grader class` and `nbgrader autograde`. Raises UserError without one."""
    name = "The notebook"
    return from_cells(code_cells(notebook, name), name)


def restored(notebook: Any, released: Any) -> Any:
    """The notebook as `nbgrader autograde` grades it: a cell that was released has its type, and its text where that is not a
    learner's to change. Of several copies the last one that was changed is the cell; the others are plain ones."""
    known = {name: cell for cell in released["cells"] if (name := grade_id(cell)) is not None}
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        return notebook  # said by whoever reads its cells
    cells = list(notebook["cells"])
    at = places(cells, {name: text_of(cell) for name, cell in known.items()})
    for name, index in at.items():
        original, its = known[name], known[name]["metadata"]["nbgrader"]
        fixed = its.get("locked") or (its.get("grade") and not its.get("solution"))
        source = original if fixed else cells[index]
        cells[index] = {"cell_type": original["cell_type"], "source": source.get("source", "")}
    return {"cells": cells}
