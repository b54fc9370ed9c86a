"""`grader class`: every submission of a class, measured on a pool, and the summary of all marks."""

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

from grader import labs
from grader.classroom import marks, summary
from grader.classroom.coordinator import LIMIT_S, grade_all, time_left
from grader.classroom.store import FAILED, Store
from grader.classroom.submissions import HandedIn, Job, Task, misplaced, no_plain_files, read_class
from grader.errors import UserError
from grader.frontends.options import add_unconfined
from grader.frontends.pool import add_pool, check_confined, open_pool, prepare_data
from grader.progress import bar
from grader.result import write_text
from grader.safe_text import clean, rough_time, tell

RESULTS, GRADEBOOK = "measured", "gradebook.db"  # beside the submissions
LINKS = "These are links or other things that aren't plain files. Delete them before nbgrader reads or copies what they lead to"


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=grade_class, kept="finished grades are kept, and the same command goes on with the rest")
    sub.epilog = (
        "Also: `grader class collect ZIP` unpacks what Moodle and Canvas pack, `grader class marks` writes what they import, and "
        "`grader class feedback` packs the students' pages for them. "
        "Exit status: 0 if all grades are there. 1 if some are missing, which the next run makes. 2 for unusable input."
    )
    add_class(sub, None)
    again = "grade again. WHAT is STUDENT/LAB, a STUDENT or a LAB"
    sub.add_argument("--again", action="append", default=[], metavar="WHAT", help=again)
    words = "take fewer and shorter measurements. The results are marked as quick"
    sub.add_argument("--quick", action="store_true", help=words)
    sub.add_argument("--limit", type=float, metavar="S", help="seconds after which a grade has failed (default: 900)")
    add_unconfined(sub)
    add_pool(sub)


def add_class(sub: argparse.ArgumentParser, nargs: str | None = "?") -> None:
    """The folders of a class, which may be left out with "?", and which labs of it."""
    usual = "default" if nargs else "usually"
    for name, folder, what in (
        ("release", "labs", "the released labs"),
        ("submitted", "submitted", "STUDENT/LAB/LAB.ipynb"),
    ):
        help = f"folder with {what} ({usual}: {folder})"
        sub.add_argument(name, type=Path, nargs=nargs, default=Path(folder), help=help)
    several = "only this lab. You can give it several times"
    sub.add_argument("--lab", type=labs.full, action="append", default=[], help=several)
    sub.add_argument("--results", type=Path, help=f"folder with the results (default: {RESULTS} beside SUBMITTED)")


class ClassProgress:
    """A bar with time left on a terminal; else a line for each grade."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._began, self._made, self._all = time.monotonic(), 0, 0

    def begin(self, count: int) -> None:
        """So many grades are to be made."""
        self._all, self._began = count, time.monotonic()
        self._bar = bar(count, "class", "{desc} {bar} {n_fmt}/{total_fmt}, {remaining} left{postfix}", smoothing=0.1)

    def done(self, who: str, record: dict[str, Any]) -> None:
        """One of them is made."""
        self._made += 1
        # without a maximum: what could be judged of this one (its prediction, say) is not the lab's
        what = f"failed to grade: {record[FAILED]}" if FAILED in record else f"{record['result']['score']:g} points"
        who, what = clean(who), clean(what)  # a terminal obeys control characters
        if self._bar is None or self._bar.disable:
            left = time_left(self._began, self._made, self._all - self._made)
            took = f"{record['seconds']:.0f} s{_left(left, self._all - self._made)}"
            tell(f"{self._made}/{self._all} {who}: {what}, {took}")
        else:
            self._bar.set_postfix_str(f"{who}: {what}")
            self._bar.update()

    def close(self) -> None:
        """Leave nothing of the bar behind."""
        if self._bar is not None:
            self._bar.close()


def _left(seconds: float, count: int) -> str:
    """How long the rest takes. A loop that hangs takes as long as it is let, whatever the others took."""
    if not count:
        return ""
    return f"; {count} left, about {rough_time(seconds)}, some minutes more where a loop hangs"


def grade_class(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 where grades are missing that the next run makes."""
    everyone = read_class(options.release, options.submitted, options.lab)
    course = options.submitted.absolute().parent  # also where `submitted` is a link: nbgrader's files lie beside it
    store = Store(options.results or course / RESULTS)
    asked = {"device": options.device, "quick": options.quick, "allow_unconfined": options.allow_unconfined}
    jobs = {(one.student, one.lab): Job(one.lab, one.submission, **asked) for one in everyone if one.submission}
    _measure(options, everyone, jobs, store)
    rows = summary.rows(everyone, {who: record(store, job) for who, job in jobs.items()})
    also = {
        "In the wrong place for a submission, so not graded": misplaced(options.submitted),
        LINKS: no_plain_files(options.submitted),
        "In the gradebook with different points": summary.stale(course / GRADEBOOK, rows),
        "In the gradebook, but nothing handed in (the export says 0)": summary.absent(course / GRADEBOOK, rows),
    }
    name = "-".join(["summary", *options.lab])  # that of all labs stays as it is
    files = summary.write(rows, store.folder, also, name)  # first: whoever reads the text may close it
    try:
        files.append(write_marks(marks.marks(rows, course / GRADEBOOK), store.folder, options.lab))
    except UserError as error:  # of the gradebook, and `grader class marks` makes them later
        tell(f"No marks were written. {error}")
    print(summary.text(rows, also))
    print("\nThe summary as files:", *(f"  {path}" for path in files), sep="\n")
    return int(any(row.status in summary.UNFINISHED for row in rows))


def write_marks(made: list[marks.Mark], folder: Path, chosen: list[str]) -> Path:
    """FOLDER/marks.csv, of some labs under their names; returns its path."""
    path = folder / f"{'-'.join(['marks', *chosen])}.csv"
    write_text(path, marks.table(made))
    return path


Jobs = dict[tuple[str, str], Job]  # by student and lab


def _measure(options: argparse.Namespace, everyone: list[HandedIn], jobs: Jobs, store: Store) -> None:
    """Make the grades that are not there yet, and those that are asked for again."""
    again = [*_again(options.again, jobs), *filter(store.failed, jobs.values())]
    names = {job.digest: f"{student} {lab}" for (student, lab), job in reversed(jobs.items())}
    chosen_labs = sorted({job.lab for job in jobs.values()})
    opening = open_pool(options)  # unusable options are said before anything is done
    if not options.cluster and options.slurm is None:
        check_confined(options.allow_unconfined)
        prepare_data(chosen_labs, options.device)
    different = len({job.digest for job in jobs.values()})

    with opening as pool, contextlib.closing(ClassProgress()) as progress:

        def starting(count: int) -> None:
            of = f"{different} different ones can be graded, {count} of these are measured now"
            tell(f"{len(everyone)} handed in, {of}")
            if count and (blind := pool.uncalibrated(chosen_labs)):
                why = "not calibrated on this kind of machine, so full points need only the lab's minimum gain"
                tell(f"{', '.join(blind)}: {why} (`grader calibrate LAB --for-class`)")
            progress.begin(count)

        def done(job: Task, record: dict[str, Any]) -> None:
            progress.done(names[job.digest], record)

        limit_s = options.limit or LIMIT_S
        grade_all(jobs.values(), pool, store, again=again, limit_s=limit_s, starting=starting, done=done)


def record(store: Store, job: Job) -> dict[str, Any] | None:
    """What came of a job; None where nothing did."""
    records = store.all_of(job)
    return (store.failed(job) or store.final(job) or records[-1]) if records else None


def _again(named: list[str], jobs: Jobs) -> list[Job]:
    """The jobs that --again names."""
    found = []
    for what in named:
        chosen = [job for (student, lab), job in jobs.items() if what in (student, lab, f"{student}/{lab}")]
        if not chosen:
            raise UserError(f"--again {what} matches no submission. Give STUDENT/LAB, STUDENT or LAB.")
        found += chosen
    return found
