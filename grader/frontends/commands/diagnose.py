"""The arguments of `grader diagnose`. Apart from what it does, so that its --help comes without numpy and the trace reader."""

import argparse

from grader.frontends.options import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.epilog = "Exit status: 0 for a diagnosis. 3 if the trace is incomplete. 2 for a file that is not a trace."
    words = (
        "a .json or .json.gz that torch.profiler wrote. Give two of the same loop to compare before and after a change, or those of "
        "all ranks of a job, or their folder"
    )
    parser.add_argument("trace", nargs="+", help=words)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--job", action="store_true", help="these are the ranks of one job")
    words = "these are two traces of one loop, before and after a change"
    how.add_argument("--before-after", action="store_true", help=words)
    step = "length of a step, measured without the profiler, in ms. Give it twice for two traces, and once for a job"
    parser.add_argument("--step-ms", metavar="X", action="append", default=[], help=step)
    add_json(parser, "everything")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures")
    only = (
        "diagnose only these steps, such as 3:5, 3: or :5. Both ends are included. Steps count as ProfilerStep "
        "does, or from 0"
    )
    parser.add_argument("--steps", metavar="A:B", help=only)
    tracks = "write the trace with the findings as tracks of their own, for Perfetto. For a job, name a folder"
    parser.add_argument("--annotate", metavar="FILE", help=tracks)
    words = "number of operations to look into (default: 10, or what fits on the screen)"
    parser.add_argument("--top", metavar="N", help=words)


def run(options: argparse.Namespace) -> int:
    from grader.frontends import diagnose  # here: it takes longer to import than --help to run

    return diagnose.run(options)
