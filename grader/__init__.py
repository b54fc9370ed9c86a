"""The course's grader. In a notebook: `import grader; lab = grader.lab("2a_workers")`."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def lab(name: str, device: str = "auto", quick: bool = False) -> Any:
    """The lab `name`, for use in a notebook (see `grader.frontends.notebook.NotebookLab`). Registers %%submission."""
    from grader.frontends.notebook import NotebookLab

    return NotebookLab(name, device=device, quick=quick)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext grader`: registers %%submission before there is a lab."""
    from grader.frontends.magic import install

    install(shell)
