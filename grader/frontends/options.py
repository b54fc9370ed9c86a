"""Options that several commands take."""

from __future__ import annotations

import argparse


def _lab(name: str) -> str:
    from grader import labs  # here: it takes longer to import than --help to run

    return labs.full(name)


def add_lab(parser: argparse.ArgumentParser, default: str = "") -> None:
    """The argument LAB; default: what its absence means, where it may be left out."""
    said = f" (default: {default})" if default else ""
    help = f"the lab's name or number, such as 2a_workers or 2a{said}"
    parser.add_argument("lab", type=_lab, nargs="?" if default else None, help=help)


def add_device(parser: argparse.ArgumentParser) -> None:
    """What a command measures on: --device and --cores."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to measure (default: on the GPU if there is one)",
    )
    add_cores(parser)


def add_cores(
    parser: argparse.ArgumentParser, default: str = "default: the GPU's share of them, or all without a GPU"
) -> None:
    parser.add_argument(
        "--cores", metavar="N", help=f"how many of this machine's cores, such as 8, or which, such as 0-3,8 ({default})"
    )


def add_unconfined(parser: argparse.ArgumentParser) -> None:
    words = "also work where file access can't be confined. Only for code that you trust"
    parser.add_argument("--allow-unconfined", action="store_true", help=words)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", metavar="FILE", help=f"write {what} as JSON (- prints only the JSON)")
