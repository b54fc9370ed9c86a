"""The commands for a class: `grader class`, `grader pool keys`, `grader pool start`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from grader import labs
from grader.errors import UserError
from grader.frontends.options import add_cores, add_unconfined
from grader.safe_text import clean

RESULTS, GRADEBOOK = "measured", "gradebook.db"  # beside the submissions


def add_class(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=grade_class, kept="what is graded is kept, and the same command goes on with the rest")
    sub.epilog = "Exit status: 0, 1 where grades are missing that the next run makes, 2 for unusable input."
    sub.add_argument("release", type=Path, help="folder with the released labs (labs)")
    sub.add_argument("submitted", type=Path, help="folder with the submissions: STUDENT/LAB/LAB.ipynb")
    sub.add_argument(
        "--lab", type=labs.full, action="append", default=[], help="only this one; can be given several times"
    )
    sub.add_argument("--results", type=Path, help=f"folder for the results (default: {RESULTS} beside SUBMITTED)")
    sub.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="WHAT",
        help="grade anew: STUDENT/LAB, all of a STUDENT, or all of a LAB",
    )
    sub.add_argument("--quick", action="store_true", help="fewer and shorter measurements; the results say so")
    sub.add_argument("--limit", type=float, metavar="S", help="seconds after which a grade has failed (default: 900)")
    add_unconfined(sub)
    add_pool(sub)


def add_pool_parts(sub: argparse.ArgumentParser) -> None:
    """The two commands of `grader pool`: keys, start."""
    parts = sub.add_subparsers(required=True, metavar="WHAT")
    keys = parts.add_parser("keys", help="make a pool's certificates, and one for each user")
    keys.set_defaults(run=make_keys)
    keys.add_argument("folder", type=Path, metavar="DIR")
    keys.add_argument("--user", action="append", default=[], metavar="NAME", help="can be given several times")
    keys.add_argument("--users", type=argparse.FileType(), metavar="FILE", help="one name a line")
    start = parts.add_parser("start", help="start scheduler, workers and the front door for submissions")
    start.set_defaults(run=start_pool)
    start.add_argument("--keys", type=Path, metavar="DIR", required=True, help="the pool's certificates")
    start.add_argument(
        "--door", default="127.0.0.1:8787", metavar="HOST:PORT", help="for users (default: 127.0.0.1:8787)"
    )
    start.add_argument(
        "--scheduler",
        default="127.0.0.1:8786",
        metavar="HOST:PORT",
        help="for the pool's machines (default: 127.0.0.1:8786)",
    )
    start.add_argument("--join", metavar="ADDRESS", help="only workers, for a pool that runs at tls://HOST:PORT")
    start.add_argument("--at-once", type=int, default=2, metavar="N", help="grades of one user at once (default: 2)")
    start.add_argument(
        "--an-hour", type=int, default=20, metavar="N", help="grades of one user in an hour (default: 20)"
    )
    add_device(start)


def add_device(sub: argparse.ArgumentParser) -> None:
    """The options that say which devices of this machine."""
    sub.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: GPUs if there are any")
    sub.add_argument("--on", metavar="N,N", help="numbers of the GPUs of this machine to use (default: all)")
    sub.add_argument("--workers", type=int, default=1, metavar="N", help="without GPUs: grades at once (default: 1)")
    add_cores(sub, "shared by all workers of this machine (default: all)")


def add_pool(sub: argparse.ArgumentParser) -> None:
    """The options that say where to grade."""
    add_device(sub)
    sub.add_argument(
        "--gpus-each",
        type=int,
        default=1,
        metavar="N",
        help="GPUs of this machine that a worker has: as many as the lab trains on (default: 1)",
    )
    sub.add_argument("--cluster", metavar="ADDRESS", help="a pool that runs already: tls://HOST:PORT, with --keys")
    sub.add_argument("--keys", type=Path, metavar="DIR", help="the pool's certificates (`grader pool keys`)")
    sub.add_argument("--slurm", type=int, metavar="N", help="N SLURM jobs, a worker each")
    sub.add_argument(
        "--sbatch", action="append", default=[], metavar="LINE", help='a directive for sbatch: --sbatch="--gres=gpu:1"'
    )


def open_pool(options: argparse.Namespace, on_one_core: int = 1) -> Any:
    """The pool that the options ask for: a context manager. on_one_core: on this machine's CPU, so many workers in place of
    each."""
    from grader.classroom import pool

    if (options.cluster is not None) + (options.slurm is not None) + (options.on is not None) > 1:
        raise UserError("--cluster, --slurm and --on each say where to grade: give one of them.")
    if options.cores is not None and (options.cluster or options.slurm is not None):
        raise UserError("--cores is for workers on this machine; the others' machines have theirs.")
    if options.cluster:
        return pool.at_address(options.cluster, options.device, options.keys)
    if options.slurm is not None:
        return pool.slurm(options.slurm, options.device, options.sbatch)
    return pool.embedded(
        options.device, _chosen(options), on_one_core * max(1, options.workers), gpus_each=max(1, options.gpus_each)
    )


def _chosen(options: argparse.Namespace) -> list[int] | None:
    try:
        return None if options.on is None else [int(n) for n in options.on.split(",")]
    except ValueError:
        raise UserError(f"--on {options.on}: give numbers of GPUs, as in --on 0,1.") from None


class ClassProgress:
    """A bar with time left on a terminal; else a line for each grade."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._began, self._made, self._all = time.monotonic(), 0, 0

    def begin(self, count: int) -> None:
        from tqdm import tqdm

        self._all, self._began = count, time.monotonic()
        form = "{desc} {bar} {n_fmt}/{total_fmt}, {remaining} left {postfix}"
        self._bar = tqdm(total=count, desc="class", bar_format=form, leave=False, disable=None, smoothing=0.1)

    def done(self, who: str, record: dict[str, Any]) -> None:
        from grader.classroom.coordinator import time_left
        from grader.classroom.store import FAILED

        self._made += 1
        result = record.get("result", {})
        what = (
            f"failed to grade: {record[FAILED]}"
            if FAILED in record
            else f"{result['score']:g}/{result['measured_max']:g}"
        )
        who, what = clean(who), clean(what)  # a terminal obeys control characters
        if self._bar is None or self._bar.disable:
            left = time_left(self._began, self._made, self._all - self._made)
            line = f"{self._made}/{self._all} {who}: {what}, {record['seconds']:.0f} s; about {left / 60:.0f} min left"
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.set_postfix_str(f"({who}: {what})")
            self._bar.update()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def grade_class(options: argparse.Namespace) -> int:
    from grader.classroom import summary
    from grader.classroom.coordinator import LIMIT_S, grade_all
    from grader.classroom.store import Store
    from grader.classroom.submissions import Job, misplaced, no_plain_files, read_class

    everyone = read_class(options.release, options.submitted, options.lab)
    course = options.submitted.absolute().parent  # also where `submitted` is a link: nbgrader's files lie beside it
    store = Store(options.results or course / RESULTS)
    jobs = {
        (one.student, one.lab): Job(
            one.lab, one.submission, options.device, options.quick, allow_unconfined=options.allow_unconfined
        )
        for one in everyone
        if one.submission
    }
    again = [*_again(options.again, jobs), *filter(store.failed, jobs.values())]
    names = {job.digest: f"{student} {lab}" for (student, lab), job in reversed(jobs.items())}
    opening = open_pool(options)  # unusable options are said before anything is done
    if not options.cluster and options.slurm is None:
        _confined_here(options.allow_unconfined)
        _prepare({job.lab for job in jobs.values()}, options.device)
    different = len({job.digest for job in jobs.values()})

    with opening as pool, contextlib.closing(ClassProgress()) as progress:

        def begun(count: int) -> None:
            said = (
                f"{len(everyone)} handed in; of {different} different ones that can be graded {count} are measured now"
            )
            print(said, file=sys.stderr, flush=True)
            if count and (blind := pool.uncalibrated(sorted({job.lab for job in jobs.values()}))):
                said = "not calibrated on this kind of machine: all points are for the lab's minimum gain, until it is"
                print(f"{', '.join(blind)}: {said} (`grader calibrate LAB --for-class`)", file=sys.stderr, flush=True)
            progress.begin(count)

        grade_all(
            jobs.values(),
            pool,
            store,
            again=again,
            limit_s=options.limit or LIMIT_S,
            begun=begun,
            done=lambda job, record: progress.done(names[job.digest], record),
        )
    records = {
        who: (found := store.all_of(job)) and (store.failed(job) or store.final(job) or found[-1])
        for who, job in jobs.items()
    }
    made = summary.rows(everyone, records)
    also = {
        "Not where a submission lies, so not graded": misplaced(options.submitted),
        "Links and other things that are no files: delete them before nbgrader reads or copies what they lead to": (
            no_plain_files(options.submitted)
        ),
        "In the gradebook with other points": summary.stale(course / GRADEBOOK, made),
        "Nothing handed in, of who is in the gradebook (the export says 0)": summary.absent(course / GRADEBOOK, made),
    }
    name = "-".join(["summary", *options.lab])  # that of all labs stays as it is
    files = summary.write(made, store.folder, also, name)  # first: whoever reads the text may close it
    print(summary.text(made, also))
    print("\nThe summary as files:", *(f"  {path}" for path in files), sep="\n")
    return int(any(row.status in summary.UNFINISHED for row in made))


def _confined_here(allow_unconfined: bool) -> None:
    """Say what keeps submissions in on this machine. Raises RuntimeError where they could reach files, unless allowed."""
    from grader.grading.gate import UNCONFINED
    from grader.sandbox.probe import confinement

    found = confinement()
    for line in found.lines():
        print(f"confinement  {line}", file=sys.stderr)
    if not found.files and not allow_unconfined:
        raise RuntimeError(UNCONFINED)


def _prepare(names: set[str], device: str) -> None:
    """Make the labs' data once, before several workers of this machine do."""
    from grader import labs
    from grader.grading.forms import choose_form, prepared
    from grader.labs.lab import Lab

    for lab in map(labs.get, sorted(names)):
        form = choose_form(lab, device)
        if isinstance(lab, Lab) and form in lab.forms:
            prepared(lab.forms[form])


def _again(named: list[str], jobs: dict[tuple[str, str], Any]) -> list[Any]:
    found = []
    for what in named:
        chosen = [job for (student, lab), job in jobs.items() if what in (student, lab, f"{student}/{lab}")]
        if not chosen:
            raise UserError(f"--again {what}: there is no such submission. Give STUDENT/LAB, STUDENT or LAB.")
        found += chosen
    return found


# ---------------------------------------------------------------- a pool that lasts


def make_keys(options: argparse.Namespace) -> None:
    from grader.classroom import keys

    try:
        users = options.user + [line.strip() for line in options.users or () if line.strip()]
    except UnicodeDecodeError:
        raise UserError(f"{options.users.name} is no text in UTF-8. Save it as such: one name a line.") from None
    made = keys.make_keys(options.folder, users)
    print(
        f"{options.folder} holds the pool's certificates. Whoever can read pool-node.pem can run any code on the pool."
    )
    for path in made:
        print(f"  {path} is for {path.stem} alone: hand it over and delete it here")


def start_pool(options: argparse.Namespace) -> None:
    from grader.classroom.gateway import Rules
    from grader.classroom.serve import Where, join, serve

    chosen, workers = _chosen(options), max(1, options.workers)
    _confined_here(allow_unconfined=False)  # what comes in at the door is nobody's trusted code
    if options.join:
        return join(options.join, options.keys, options.device, chosen, workers)
    where = Where(*_place(options.scheduler), *_place(options.door))
    rules = Rules(options.at_once, options.an_hour)
    tell = lambda text: print(text, flush=True)  # noqa: E731  (a service's output goes to a log)
    serve(options.keys, where, rules, options.device, chosen, workers, tell)


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{text!r}: give HOST:PORT, as in 0.0.0.0:8787.")
    return host, int(port)
