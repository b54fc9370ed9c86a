"""The course's grader. In a notebook: `import grader; lab = grader.lab("2a_workers")`."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def lab(name: str, device: str = "auto", quick: bool = False, **more: Any) -> Any:
    """The lab `name`, for use in a notebook (see `grader.frontends.notebook.base.NotebookLab`). Registers %%submission. more:
    what a lab of this kind takes besides."""
    from grader.frontends.notebook import open_lab

    return open_lab(name, device=device, quick=quick, **more)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext grader`: registers %%submission before there is a lab."""
    from grader.frontends.magic import install

    install(shell)
