"""`grader pool`: the certificates and the start of a pool that lasts; and where other commands grade, as their options say."""

import argparse
import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

from grader import labs
from grader.classroom import keys, pool
from grader.classroom.gateway import Rules
from grader.classroom.pool import Pool
from grader.classroom.serve import Place, join, serve
from grader.errors import UserError
from grader.frontends.options import add_cores
from grader.grading.forms import choose_form, prepared
from grader.grading.gate import UNCONFINED
from grader.labs.lab import Lab
from grader.result import read_file
from grader.sandbox.probe import confinement
from grader.submission import decoded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(required=True, metavar="WHAT")
    sub = parts.add_parser("keys", help="make a pool's certificates, and one for each user")
    sub.set_defaults(run=make_keys)
    sub.add_argument("folder", type=Path, metavar="DIR")
    words = "a user of the pool. You can give it several times"
    sub.add_argument("--user", action="append", default=[], metavar="NAME", help=words)
    sub.add_argument("--users", type=Path, metavar="FILE", help="a file with one name per line")
    sub = parts.add_parser("start", help="start scheduler, workers and the front door for submissions")
    sub.set_defaults(run=start)
    sub.add_argument("--keys", type=Path, metavar="DIR", required=True, help="the pool's certificates")
    for name, port, whose in (("--door", 8787, "users"), ("--scheduler", 8786, "the pool's machines")):
        place = f"127.0.0.1:{port}"
        sub.add_argument(name, default=place, metavar="HOST:PORT", help=f"address for {whose} (default: {place})")
    sub.add_argument("--join", metavar="ADDRESS", help="start only workers, for a pool that runs at tls://HOST:PORT")
    words = "most grades of one user at the same time (default: 2)"
    sub.add_argument("--at-once", type=int, default=2, metavar="N", help=words)
    words = "most grades of one user per hour (default: 20)"
    sub.add_argument("--an-hour", type=int, default=20, metavar="N", help=words)
    add_devices(sub)


def make_keys(options: argparse.Namespace) -> None:
    """Write the certificates, and say who gets which."""
    lines = decoded(read_file(options.users)).splitlines() if options.users else []
    made = keys.make_keys(options.folder, options.user + [line.strip() for line in lines if line.strip()])
    warning = "Anyone who can read pool-node.pem can run any code on the pool."
    print(f"{options.folder} holds the pool's certificates. {warning}")
    for path in made:
        print(f"  {path} is for {path.stem} alone. Hand it over and delete it here")


def start(options: argparse.Namespace) -> None:
    """Run scheduler, workers and gateway until they are stopped; with --join only workers."""
    chosen, workers = _chosen(options), max(1, options.workers)
    check_confined(allow_unconfined=False)  # what comes in at the door is nobody's trusted code
    if options.join:
        return join(options.join, options.keys, options.device, chosen, workers)
    rules = Rules(options.at_once, options.an_hour)
    serve(options.keys, _place(options.scheduler), _place(options.door), rules, options.device, chosen, workers)


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{text!r} is no HOST:PORT, such as 0.0.0.0:8787.")
    return host, int(port)


# ---------------------------------------------------------------- where a command grades


def add_devices(sub: argparse.ArgumentParser) -> None:
    words = "where to measure (default: on GPUs if there are any)"
    sub.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help=words)
    sub.add_argument("--on", metavar="N,N", help="which GPUs of this machine to use, such as 0,1 (default: all)")
    words = "how many grades at the same time, without GPUs (default: 1)"
    sub.add_argument("--workers", type=int, default=1, metavar="N", help=words)
    add_cores(sub, ". All workers of this machine share them (default: all)")


def add_pool(sub: argparse.ArgumentParser) -> None:
    add_devices(sub)
    gpus = "GPUs per worker of this machine, as many as the lab trains on (default: 1)"
    sub.add_argument("--gpus-each", type=int, default=1, metavar="N", help=gpus)
    sub.add_argument("--cluster", metavar="ADDRESS", help="a running pool, at tls://HOST:PORT. Needs --keys")
    sub.add_argument("--keys", type=Path, metavar="DIR", help="the pool's certificates (`grader pool keys`)")
    sub.add_argument("--slurm", type=int, metavar="N", help="start N SLURM jobs with one worker each")
    line = 'a directive for sbatch, such as --sbatch="--gres=gpu:1"'
    sub.add_argument("--sbatch", action="append", default=[], metavar="LINE", help=line)


def open_pool(options: argparse.Namespace, on_one_core: int = 1) -> contextlib.AbstractContextManager[Pool]:
    """The pool that the options ask for. on_one_core: on this machine's CPU, so many workers in place of each."""
    if (options.cluster is not None) + (options.slurm is not None) + (options.on is not None) > 1:
        raise UserError("--cluster, --slurm and --on each say where to grade. Give only one of them.")
    if options.cores is not None and (options.cluster or options.slurm is not None):
        raise UserError("--cores is for workers on this machine only. Leave it out here.")
    if options.cluster:
        return pool.at_address(options.cluster, options.device, options.keys)
    if options.slurm is not None:
        return pool.slurm(options.slurm, options.device, options.sbatch)
    workers = on_one_core * max(1, options.workers)
    return pool.embedded(options.device, _chosen(options), workers, gpus_each=max(1, options.gpus_each))


def _chosen(options: argparse.Namespace) -> list[int] | None:
    try:
        return None if options.on is None else [int(n) for n in options.on.split(",")]
    except ValueError:
        raise UserError(f"--on {options.on} names no GPUs. Give their numbers, as in --on 0,1.") from None


def check_confined(allow_unconfined: bool) -> None:
    """Say what keeps submissions in on this machine. Raises RuntimeError where they could reach files, unless allowed."""
    found = confinement()
    for line in found.lines():
        print(f"confinement  {line}", file=sys.stderr)
    if not found.files and not allow_unconfined:
        raise RuntimeError(UNCONFINED)


def prepare_data(names: Iterable[str], device: str) -> None:
    """Make the labs' data once, before several workers of this machine do."""
    for lab in map(labs.get, sorted(names)):
        form = choose_form(lab, device)
        if isinstance(lab, Lab) and form in lab.forms:
            prepared(lab.forms[form])
