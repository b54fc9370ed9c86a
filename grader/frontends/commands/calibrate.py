"""`grader calibrate`: what the solutions gain on this machine."""

import argparse
import contextlib
import os
import sys

from grader import calibrate, labs, machine
from grader.errors import UserError
from grader.frontends.options import add_device, add_lab, add_size
from grader.frontends.terminal import Terminal
from grader.grading.forms import choose_form, fitted, own_cores
from grader.labs.lab import Lab
from grader.measure import calibration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.set_defaults(run=run, kept="finished labs are kept, an unfinished one is not")
    add_lab(parser, default="all that this machine can grade")
    words = "measure with the cores that a worker of `grader class` has here. Several workers share the machine's cores"
    add("--for-class", action="store_true", help=words)
    words = "how many workers --for-class has without GPUs (default: 1)"
    add("--workers", type=int, default=1, metavar="N", help=words)
    words = "for maintainers: measure how far honest forms end from each other, and store it in the lab"
    add("--spread", action="store_true", help=words)
    words = "for maintainers: make long runs of so many steps, which show where the training leads, and store them in the lab. A stopped run continues"
    add("--outcome", type=int, metavar="STEPS", help=words)
    words = "seeds for --spread and --outcome (default: 3). --outcome takes 3 or more, and its band is less than half as wide with 5"
    add("--seeds", type=int, metavar="N", default=3, help=words)
    add_size(parser)
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    named = [options.lab] if options.lab else labs.NAMES
    chosen = [lab for lab in map(labs.get, named) if isinstance(lab, Lab)]
    if not chosen:
        raise UserError(f"{options.lab} has no gain to calibrate. It is about measuring, not about a faster loop.")
    _say_how_long(chosen, options)
    failed = []
    with _as_a_worker(options) if options.for_class else contextlib.nullcontext():
        for lab in chosen:
            try:
                with own_cores(lab, options.device):
                    _calibrate_lab(lab, options)
            except calibrate.Busy:
                raise  # as long as the others run, it is no use for the next labs either
            except UserError as error:
                if options.lab:
                    raise
                print(f"{lab.name}: {error}")
                failed.append(lab.name)
    if failed:
        raise UserError(
            f"Not calibrated: {', '.join(failed)}. The others are kept. Go on with `grader calibrate {failed[0]}`."
        )


def _say_how_long(chosen: list[Lab], options: argparse.Namespace) -> None:
    """Before it begins: that nothing else may run, and until when."""
    if options.outcome is not None or options.spread:
        return
    count = sum(calibrate.calibrated(lab, choose_form(lab, options.device)) for lab in chosen)
    if count:
        labs_, long = (
            ("1 lab", "1 to 3 minutes") if count == 1 else (f"{count} labs", f"{count} to {3 * count} minutes")
        )
        print(f"{labs_}, about {long}. Nothing else may run here meanwhile.", file=sys.stderr)


def _as_a_worker(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Give this process the GPU and the cores of a worker of `grader class`: a gain holds for a number of cores."""
    from grader.classroom import pool, worker  # here: they import dask

    gpus = labs.get(options.lab).ranks("cuda") if options.lab else 1
    environment = pool.environments(options.device, cpu_workers=max(1, options.workers), gpus_each=gpus)[0]
    cores = environment.pop(worker.CORES)
    os.environ.update(environment)
    print(f"measured as a worker of `grader class` does, on cores {cores}", file=sys.stderr)
    return machine.kept_on(machine.parse(cores), "those of a worker of `grader class`")


def _calibrate_lab(lab: Lab, options: argparse.Namespace) -> None:
    """What the options ask for, of one lab; of one among all of them only where there is something to measure."""
    form = choose_form(lab, options.device)
    lab = lab.sized(options.form) if options.form else fitted(lab, form)[0]
    if form not in lab.forms and not options.lab:
        print(f"{lab.name}: needs an NVIDIA GPU, left out")
    elif options.outcome is not None:
        if lab.outcome or options.lab:
            steps, seeds = options.outcome, options.seeds
            for line in calibrate.measure_outcome(lab, options.device, steps, seeds, Terminal(lab.name)):
                print(f"{lab.name}: {line}")
    elif options.spread:
        spread = calibrate.measure_spread(lab, options.device, options.seeds, progress=Terminal(lab.name))
        print(f"{lab.name}: spread written to {calibrate.store_spread(lab, form, spread)}")
    elif not calibrate.calibrated(lab, form) and not options.lab:
        print(f"{lab.name}: nothing to calibrate here")
    else:
        entry = calibrate.measure_gain(lab, options.device, Terminal(lab.name))
        path = calibration.store_gain(lab, form, entry)
        low, high = entry["interval"]
        print(f"{lab.name}: the solution gains {entry['gain']:.2f}x here ({low:.2f} to {high:.2f}). Kept in {path}")
