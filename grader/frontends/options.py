"""Options that several commands take."""

import argparse
import os
import re
import sys

from grader.errors import UserError
from grader.safe_text import clean


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
    words = "where to measure (default: on the GPU if there is one)"
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help=words)
    add_cores(parser)


def add_size(parser: argparse.ArgumentParser) -> None:
    words = 'for maintainers: measure the lab\'s GPU form of this size, such as "small", even if it is not the largest that fits'
    parser.add_argument("--form", default="", metavar="SIZE", help=words)


def add_cores(
    parser: argparse.ArgumentParser, more: str = " (default: the GPU's share of them, or all without a GPU)"
) -> None:
    words = f"how many of this machine's cores, such as 8, or which, such as 0-3,8{more}"
    parser.add_argument("--cores", metavar="N", help=words)


def add_unconfined(parser: argparse.ArgumentParser) -> None:
    words = "also work where file access can't be confined. Only for code that you trust"
    parser.add_argument("--allow-unconfined", action="store_true", help=words)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", metavar="FILE", help=f"write {what} as JSON (- prints only the JSON)")


def add_command(parser: argparse.ArgumentParser, does: str) -> None:
    """A training command as it is, and which of its steps count. does: what is done with them, "look" or "time"."""
    add = parser.add_argument
    add("command", nargs=argparse.REMAINDER, help="the command as you type it, such as python train.py --batch 64")
    when = f"{does} from this step on (default: once steps are steady)"
    add("--at-step", metavar="N", type=_step, default=0, help=when)
    step = "the function that ends a step, called once per step, if no optimizer does"
    add("--step", metavar="MODULE:FUNCTION", default="", help=step)


def command_of(options: argparse.Namespace, name: str) -> list[str]:
    """What `add_command` took. Raises UserError for no command, a --step that is none, and where no processes can be seen."""
    if sys.platform == "linux" and not os.path.exists("/proc/self"):
        raise UserError("This system has no /proc, so a command's processes can't be seen. Mount it.")
    command: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UserError(f"Give the training command after `--`, as in: grader {name} -- python train.py")
    if options.step and not re.fullmatch(r"[\w./-]+:[\w.]+", options.step):
        raise UserError(f"--step {clean(options.step)} is no MODULE:FUNCTION, such as train:one_step.")
    return command


def _step(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is no step, such as 100")
    return int(text)


def span(text: str) -> float:
    """As `duration`, and longer than nothing."""
    if not (seconds := duration(text)):
        raise argparse.ArgumentTypeError(f"{text} is no time to wait for, such as 90s, 10m or 1h")
    return seconds


def duration(text: str) -> float:
    """Seconds, of 90s, 10m or 1h."""
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())):
        raise argparse.ArgumentTypeError(f"{text} is no time, such as 90s, 10m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]
