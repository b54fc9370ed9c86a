"""Errors that are written for the person who gets them."""


class UserError(Exception):
    """Something the user gave cannot be used. The message says what happened, where, what to do; it is shown without traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [str(self)]


class JobError(Exception):
    """The file with a job of one's own is at fault, and neither loop (see `grader.own.job`). The message is a whole sentence."""


# What comes of a file that holds other things than it should; the last of a number of 400 digits
DAMAGED = (KeyError, TypeError, ValueError, OverflowError)

# What the small install leaves out (pyproject.toml), by the extra that brings it; everything else is in "course".
_EXTRAS = {
    "torch": {"torch", "torchvision"},
    "class": {
        "nbgrader",
        "nbconvert",
        "nbformat",
        "papermill",
        "jinja2",
        "bleach",
        "distributed",
        "cryptography",
        "yaml",
    },
}


def not_installed(*names: str) -> str:
    """Which packages are missing, and how to install them."""
    packages = [name.partition(".")[0] for name in names]
    found = {next((extra for extra, its in _EXTRAS.items() if name in its), "course") for name in packages}
    said = f"The package {packages[0]} is" if len(packages) == 1 else f"The packages {', '.join(packages)} are"
    return f'{said} not installed: pip install "pytorch-speed-course[{",".join(sorted(found))}]"'
