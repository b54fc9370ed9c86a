"""The command `grader`: which commands there are, and what their errors come to."""

import argparse
import contextlib
import errno
import io
import os
import pkgutil
import sys

from grader.errors import UserError, not_installed

BEGIN = (
    "Begin with `grader course FOLDER` for the lessons and labs, or with `grader run -- COMMAND` for a job of your own."
)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What each command is for, and the function of this package that adds its arguments. A command's module is imported only
# where that command is run: trace reader, torch and matplotlib take seconds.
COMMANDS = {
    "labs": ("list the labs", "commands.labs:add_labs"),
    "course": ("lay the notebooks down in a folder of yours", "commands.labs:add_course"),
    "start": ("make a working copy of a lab under work/", "commands.labs:add_start"),
    "grade": ("grade the submission in a notebook", "commands.grade:add_grade"),
    "hint": ("show a hint for one check of a lab", "commands.labs:add_hint"),
    "diagnose": (
        "say what holds a training loop back, from its torch.profiler trace",
        "commands.diagnose:add_arguments",
    ),
    "run": ("run a training command as it is, and say what holds it back", "run:add_arguments"),
    "try": ("measure how much faster each lever makes a training command", "try_levers:add_arguments"),
    "compare": ("measure whether one training loop of yours is faster than another", "compare:add_arguments"),
    "scaffold": (
        "copy a training script that has every knob of the course and profiles itself",
        "commands.labs:add_scaffold",
    ),
    "calibrate": (
        "measure how much the solutions gain on this machine, and keep it for later grades",
        "commands.calibrate:add_arguments",
    ),
    "doctor": ("say what this machine can grade, and what is missing", "commands.doctor:add_arguments"),
    "board": ("show your results so far as a leaderboard, by lab and machine", "board:add_arguments"),
    "demo": ("grade a lab's starter and its solution here, and show both reports", "commands.grade:add_demo"),
    "class": ("grade every submission of a class, on all GPUs of a pool", "classroom:add_arguments"),
    "pool": ("make the certificates of a lasting pool of workers, and start it", "pool:add_arguments"),
    "nightly": (
        "for maintainers: execute and grade everything, and say what failed or got slower",
        "nightly:add_arguments",
    ),
}

# commands of a command: `grader class collect`
BELOW = {
    "class collect": ("put what a class handed in where it is graded", "collect:add_arguments"),
    "class board": ("a leaderboard of those who agreed to be on it", "class_board:add_arguments"),
    "class feedback": ("pack the feedback pages for Moodle and Canvas", "feedback:add_arguments"),
    "class marks": ("write the marks, for Canvas and Moodle too", "marks:add_arguments"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 done, 1 the machine cannot do it, 2 unusable input, 3 an incomplete trace or
    a slower night, 4 an unfinished night, 130 stopped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows a "?" for a line or a tick
    options = argparse.Namespace()
    try:
        options = parsed(sys.argv[1:] if arguments is None else arguments)
        with _on_cores(options):
            status = options.run(options) or 0
        sys.stdout.flush()  # here, where it is known what to do about a reader who has gone
        return status
    except UserError as error:
        print(f"grader: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        name = error.name or "grader"
        if name.partition(".")[0] == "grader":
            raise  # no package is missing: a bug
        print(f"grader: {not_installed(name)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = getattr(options, "kept", "nothing unfinished was kept")
        print(f"\ngrader: stopped; {kept}.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough; what was to be written is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        advice = ". Free some space there, or write to another disk." if error.errno in NO_ROOM else ""
        print(f"grader: {where}{error.strerror or error or type(error).__name__}{advice}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"grader: {error}", file=sys.stderr)
        return 1


def _on_cores(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """On those that the options ask for."""
    if (asked := getattr(options, "cores", None)) is None:
        return contextlib.nullcontext()
    from grader import machine  # here: it takes longer to import than `grader --help` to run

    return machine.kept_on(machine.asked_cores(asked), machine.ASKED)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of the command that these name. Ends the program with a message where they cannot be understood."""
    said = "Is it really faster? Grades PyTorch training loops."
    parser = argparse.ArgumentParser(prog="grader", description=said, epilog=BEGIN)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    below = BELOW.get(" ".join(arguments[:2]))
    for name, (what, add_arguments) in COMMANDS.items():
        if arguments[:1] != [name]:
            commands.add_parser(name, help=what, description=what)
            continue
        if below:
            what, add_arguments = below
            name, arguments = " ".join(arguments[:2]), [" ".join(arguments[:2]), *arguments[2:]]
        command = commands.add_parser(name, help=what, description=what)
        pkgutil.resolve_name(f"grader.frontends.{add_arguments}")(command)
    return parser.parse_args(arguments or ["--help"])


if __name__ == "__main__":
    sys.exit(main())
