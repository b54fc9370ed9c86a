"""`grader scaffold`: the course's training script, to begin with."""

from __future__ import annotations

import argparse
from pathlib import Path

from grader import paths
from grader.errors import UserError
from grader.result import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("folder", type=Path, help="where train.py is put; a file that is there stays")


def run(options: argparse.Namespace) -> None:
    target = options.folder / "train.py"
    if target.exists():
        raise UserError(f"{target} is there already, and stays as it is. Name another folder.")
    write_text(target, (paths.REPOSITORY / "grader" / "scaffold" / "train.py").read_text(encoding="utf-8"))
    print(
        f"{target} is yours to change. Its knobs are at its top, what it trains at its end; each run leaves a folder under runs/."
    )
