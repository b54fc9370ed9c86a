"""The command `grader`: which commands there are, and what their errors come to."""

import argparse
import contextlib
import errno
import io
import os
import pkgutil
import sys
from collections.abc import Iterable

from grader.errors import UserError, not_installed
from grader.safe_text import tell

BEGIN = (
    "Begin with `grader course FOLDER` for the lessons and labs, or with `grader run -- COMMAND` for a job of your own."
)
ROOM, FOLDER = "Free some space there, or write to another disk.", "A file has this name, and a folder is needed there."
OWN = "Choose a place that is yours to read and to write."
ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ROOM),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), FOLDER),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OWN),
}
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
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by a service: what is opened next would get its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
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
        tell(f"grader: {error}")
        return 2
    except ModuleNotFoundError as error:
        name = error.name or "grader"
        if name.partition(".")[0] == "grader":
            raise  # no package is missing: a bug
        tell(f"grader: {not_installed(name)}")
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
        advice = ADVICE.get(error.errno or 0, "")
        what = error.strerror or str(error) or type(error).__name__
        tell(f"grader: {where}{what}{advice and f'. {advice}'}")
        return 2
    except RuntimeError as error:
        tell(f"grader: {error}")
        return 1


def _on_cores(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """On those that the options ask for."""
    if (asked := getattr(options, "cores", None)) is None:
        return contextlib.nullcontext()
    from grader import machine  # here: it takes longer to import than `grader --help` to run

    return machine.kept_on(machine.asked_cores(asked), machine.ASKED)


class _Parser(argparse.ArgumentParser):
    """Says of an option that isn't there which command lacks it, and which of its options was meant."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        options, unknown = super().parse_known_args(args, namespace)
        for word in (word.partition("=")[0] for word in unknown if word.startswith("-")):
            self.error(f"there is no option {word}.{_meant(word, self._option_string_actions)}")
        return options, unknown


def _meant(word: str, names: Iterable[str], likeness: float = 0.6) -> str:
    import difflib  # here: hardly a call needs it

    close = difflib.get_close_matches(word, names, 1, likeness)
    return f" Did you mean {close[0]}?" if close else ""


def _misspelt(arguments: list[str]) -> str:
    """What to say if the first words are no command; "" if they may be one."""
    first, second = [*arguments, "", ""][:2]
    if not first.startswith("-") and first not in COMMANDS:
        return f"there is no command {first}.{_meant(first, COMMANDS)} `grader --help` lists them."
    if first != "class" or second.startswith("-") or f"class {second}" in BELOW or os.path.exists(second):
        return ""
    meant = _meant(second, [name.split()[1] for name in BELOW], 0.75)
    return meant and f"there is no command class {second}, and no folder {second}.{meant}"


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The options of the command that these name. Ends the program with a message where they cannot be understood."""
    said = "Is it really faster? Grades PyTorch training loops."
    parser = _Parser(prog="grader", description=said, epilog=BEGIN)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    if arguments and (wrong := _misspelt(arguments)):
        parser.error(wrong)
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
