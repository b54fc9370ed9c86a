"""A report in the forms that --html and --json ask for, and in the terminal."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grader.errors import UserError
from grader.progress import coloured
from grader.result import check_writable, write_json, write_text


def names_of(paths: Sequence[str | Path]) -> list[str]:
    """What the files are called: by their name, or as folder/name or the whole path where that says no more than one thing."""
    wholes = [Path(path) for path in paths]
    for made in (lambda path: path.name, lambda path: f"{path.absolute().parent.name}/{path.name}"):
        names = [made(path) or str(path) for path in wholes]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in wholes]


def check_targets(options: argparse.Namespace) -> None:
    """Raises UserError where --json or --html names what cannot be written: said before anything is measured."""
    for target in (options.json, options.html):
        if target not in (None, "-"):
            check_writable(target)
    if options.html == "-":
        raise UserError("--html needs the name of a file.")


def deliver(
    options: argparse.Namespace,
    page: Callable[[], str],
    data: Callable[[], dict[str, Any]],
    text: Callable[[int, bool], str],
) -> None:
    """Write what the options name; print text(columns, coloured), unless the JSON is printed."""
    if options.html:
        write_text(options.html, page())
    if options.json == "-":
        print(json.dumps(data(), indent=1, allow_nan=False))
        return
    if options.json:
        write_json(options.json, data())
    print(text(min(100, shutil.get_terminal_size((100, 40)).columns), coloured(sys.stdout)))
