"""Options that several commands take."""

from __future__ import annotations

import argparse

from grader import labs


def add_lab(parser: argparse.ArgumentParser, default: str = "") -> None:
    """The argument LAB; default: what its absence means, where it may be left out."""
    said = f" (default: {default})" if default else ""
    help = f"its name or its number: 2a_workers, 2a{said}"
    parser.add_argument("lab", type=labs.full, nargs="?" if default else None, help=help)


def add_device(parser: argparse.ArgumentParser) -> None:
    """What a command measures on: --device and --cores."""
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: the GPU if there is one"
    )
    add_cores(parser)


def add_cores(parser: argparse.ArgumentParser, default: str = "default: its GPU's share, without a GPU all") -> None:
    parser.add_argument("--cores", metavar="N", help=f"so many of this machine's cores, 8, or these, 0-3,8; {default}")


def add_unconfined(parser: argparse.ArgumentParser) -> None:
    words = "grade where file access cannot be confined: for code that you trust"
    parser.add_argument("--allow-unconfined", action="store_true", help=words)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", metavar="FILE", help=f"write {what} as JSON; - prints it, and only it")
