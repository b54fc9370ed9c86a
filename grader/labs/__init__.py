"""The labs, in the order of the course."""

from __future__ import annotations

import importlib
from pathlib import Path

from grader.errors import UserError
from grader.labs.lab import AnyLab, Lab

NAMES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/lab.py")))


def get(name: str) -> AnyLab:
    """The lab called `name`. Raises UserError for an unknown one."""
    if name not in NAMES:
        raise UserError(f"There is no lab {name!r}. The labs are: {', '.join(NAMES)}.")
    return importlib.import_module(f"grader.labs.{name}.lab").LAB


def full(name: str) -> str:
    """The lab's name where its number is given, "2a_workers" for "2a"; everything else as it is."""
    return next((each for each in NAMES if each.partition("_")[0] == name), name)


def loops() -> tuple[str, ...]:
    """The names of those that are training loops to make faster."""
    return tuple(name for name in NAMES if isinstance(get(name), Lab))
