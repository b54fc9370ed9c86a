"""The arguments of `grader diagnose`. Apart from what it does, so that its --help comes without numpy and the trace reader."""

from __future__ import annotations

import argparse

from grader.frontends.options import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.epilog = "Exit status: 0, 3 for an incomplete trace, 2 for a file that is no trace."
    parser.add_argument(
        "trace",
        nargs="+",
        help="a .json or .json.gz that torch.profiler wrote; two of the same loop, before and after a change; or a folder with, or "
        "several, of the ranks of one job",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--job", action="store_true", help="these are ranks of one job")
    how.add_argument("--before-after", action="store_true", help="these two are of one loop, before and after a change")
    step = "length of a step measured without the profiler, ms; give it twice for two traces, once for a job"
    parser.add_argument("--step-ms", metavar="X", action="append", default=[], help=step)
    add_json(parser, "everything")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures")
    only = "diagnose only the steps of these numbers, both included: 3:5, 3: or :5; ProfilerStep's numbers, else from 0"
    parser.add_argument("--steps", metavar="A:B", help=only)
    tracks = "write the trace with what was found as tracks of its own, to look at in Perfetto; of a job, a folder for all ranks"
    parser.add_argument("--annotate", metavar="FILE", help=tracks)
    parser.add_argument("--top", metavar="N", help="operations to look into (default: 10; on the screen what fits)")


def run(options: argparse.Namespace) -> int:
    from grader.frontends import diagnose  # here: it takes longer to import than --help to run

    return diagnose.run(options)
