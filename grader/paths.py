"""Where the course lies on this machine."""

import os
import tempfile
from pathlib import Path

from grader.errors import UserError

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parent  # of a checkout; where the package was installed from a wheel, the folder that it lies in
# Both are made by setup.py and there in a wheel only; in a checkout their contents lie beside the package.
SHIPPED = PACKAGE / "shipped"  # notebooks, labs, solutions
DATA = PACKAGE / "data" if (PACKAGE / "data").is_dir() else REPOSITORY / "data"
MARK = ".grader-course.json"  # in a folder that `grader course` made


def installed() -> bool:
    """Whether this package came from a wheel, so there is no checkout around it."""
    return SHIPPED.is_dir()


def course() -> Path:
    """Where notebooks/, labs/ and solutions/ lie as they were released."""
    return SHIPPED if installed() else REPOSITORY


def with_this_package() -> dict[str, str]:
    """This process's environment, in which another Python finds this package, whatever else of its name is installed."""
    path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def here() -> Path:
    """The working folder. Raises UserError where it was removed meanwhile, as a notebook's can be."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError(
            "The folder that this was started in is gone. In a notebook, restart the kernel. In a terminal, go to a folder "
            "that is there, and start again."
        ) from None


def laid() -> Path | None:
    """The folder at or above the working one that `grader course` made, if there is one."""
    start = here()
    return next((folder for folder in (start, *start.parents) if (folder / MARK).is_file()), None)


def learners() -> Path:
    """Where a learner works, with work/ in it: made by `grader course`, else the checkout or the working folder."""
    return laid() or (here() if installed() else REPOSITORY)


def working_copy(lab: str) -> Path:
    """The learner's own notebook of a lab; it need not be there yet."""
    return learners() / "work" / lab / f"{lab}.ipynb"


def temporary() -> Path:
    """The folder of temporary files. Raises UserError where there is none with room."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # the folders that were tried stand in its words
        raise UserError(f"{error.strerror}. Free some space there, or set TMPDIR to a folder that has some.") from None
