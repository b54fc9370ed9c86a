"""The content hash of what decides a grade: a result is kept, and compared, under the code that made it."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import grader
from grader import data

PACKAGE = Path(grader.__file__).parent
ROOMS = ("checks", "grading", "kinds", "measure", "sandbox", "trace", "workloads")  # they decide grades, all of them
PATTERNS = ("*.py", "labs/*.py", *(f"{room}/**/*.py" for room in ROOMS))  # front ends and the like only carry grades
APART = ("safe_text.py", "web_page.py")  # how pages are written


@functools.cache
def version() -> str:
    """The grader's version, with a hash of the code that decides grades: between releases it changes as well."""
    return f"{grader.__version__}+{_hash(deciding())}"


@functools.cache
def definition(lab: str) -> str:
    """A hash of a lab's own files: declaration, starter, reference curves."""
    return _hash(path for path in (PACKAGE / "labs" / lab).iterdir() if path.suffix in (".py", ".json"))


def deciding() -> set[Path]:
    """The files of `version`: what every grade depends on, but for the definition of its lab."""
    own = {path for pattern in PATTERNS for path in PACKAGE.glob(pattern) if path.name not in APART}
    return own | {path for folder in data.__path__ for path in Path(folder).glob("*.py")}


def _hash(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        total.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return total.hexdigest()[:12]
