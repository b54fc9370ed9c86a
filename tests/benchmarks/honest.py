"""Honest work must not lose. Grades each lab's solution, its honest forms and what readers of the pages wrote
(`tests/variants/readers`), again and again, each time from another seed, and says what came of them.

    python -m tests.benchmarks.honest [--labs ...] [--rounds 5] [--modes quick,full] [--minutes 8] [--on 0,1] [--table]

Grades are made on all GPUs of the machine, one on each. A stopped run goes on where it was: each result is kept when it is there
(in work/honest, or beside `--out`), and one line of it in data/measured/honest/DEVICE.jsonl. The table is made of these lines: DEVICE.md beside it."""

import argparse
import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from grader import labs, machine
from grader.classroom.coordinator import grade_all
from grader.classroom.pool import embedded
from grader.classroom.store import Store, stands
from grader.classroom.submissions import Job
from grader.grading.forms import choose_form, lacking, prepared
from grader.labs.lab import Form, Lab
from grader.result import FAIL, INCONCLUSIVE, NOT_MEASURED, Result, write_text
from grader.submission import Submission, solution
from tests import variants

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "data" / "measured" / "honest"
READERS = ROOT / "tests" / "variants" / "readers"
GATES = ("parity", "logs", "outcome")  # what says that the loop does the same work


@dataclass(frozen=True)
class Work:
    """A submission to be graded. whole: a full fix, which must have all points that can be measured."""

    lab: str
    what: str
    submission: Submission
    whole: bool


def work_of(lab: Lab) -> Iterator[Work]:
    yield Work(lab.name, "solution", solution(lab), True)
    if (reader := READERS / f"{lab.name}.py").exists():
        yield Work(lab.name, "a reader's", Submission(reader.read_text(encoding="utf-8")), True)
    for what, source in variants.honest(lab.name).items():
        yield Work(lab.name, what, Submission(source), False)


def verdict(work: Work, result: Result) -> str:
    """What honest work lost, '' for nothing. A form that is no full fix may have fewer points for its speed, and no other fault."""
    if result.fatal:
        return f"did not run: {result.fatal}"
    if result.disturbed:
        return f"disturbed: {result.disturbed}"
    judged = [each for each in result.checks if each.name != "prediction" and each.status != NOT_MEASURED]
    undecided = [each for each in judged if each.status == INCONCLUSIVE]
    failed = [each for each in judged if each.status == FAIL and (work.whole or each.name in GATES)]
    return "; ".join(f"{each.status} {each.name}: {each.reason}" for each in failed + undecided)


def line_of(work: Work, job: Job, record: dict[str, Any]) -> dict[str, Any]:
    result = Result.from_dict(record["result"])
    timed = next((each.evidence for each in result.checks if each.name == "throughput"), {})
    return {
        "lab": work.lab,
        "what": work.what,
        "mode": "quick" if job.quick else "full",
        "round": job.repeat,
        "seed": result.seed,
        "lost": verdict(work, result),
        "others": timed.get("lost_to_others"),
        "points": result.score,
        "of": result.measured_max,
        "gain": timed.get("gain"),
        "seconds": result.seconds,
        "torch": result.versions.get("torch"),
        "date": result.date,
    }


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def table(lines: list[dict[str, Any]], device: str) -> str:
    """A row for each submission and mode, and what was lost in words."""
    key = lambda line: (line["lab"], line["what"], line["mode"])  # noqa: E731
    lost = [line for line in lines if line["lost"]]
    rows = [
        f"# Honest work, graded {len(lines)} times on {device}",
        "",
        f"Made by `python -m tests.benchmarks.honest`; torch {', '.join(sorted({line['torch'] for line in lines}))}; each grade from another seed. "
        f"{len(lost)} of them lost something.",
        "",
        "| lab | work | mode | grades | lost something | points | seconds, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for (lab, what, mode), group in groupby(sorted(lines, key=key), key):
        some = list(group)
        points = sorted({f"{line['points']:g}" for line in some}, key=float)
        shown = points[0] if len(points) == 1 else f"{points[0]} to {points[-1]}"
        rows.append(
            f"| {lab} | {what} | {mode} | {len(some)} | {sum(bool(line['lost']) for line in some)} | {shown} of {some[0]['of']:g} | "
            f"{median(line['seconds'] for line in some):.0f} |"
        )
    if lost:
        rows += ["", "## What was lost", ""]
        for line in sorted(lost, key=key):
            others = f" (other programs took {line['others']:.0%})" if line["others"] else ""
            rows.append(f"- {line['lab']}, {line['what']}, {line['mode']}, seed {line['seed']}{others}: {line['lost']}")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", default=",".join(labs.loops()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", default="quick,full")
    parser.add_argument("--only", default="", help="work whose name begins so, or so: 'solution,a reader'")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--on", type=lambda text: [int(n) for n in text.split(",")], metavar="N,N")
    parser.add_argument("--out", type=Path, default=LINES)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    chosen = [labs.get(name) for name in options.labs.split(",")]
    kind = choose_form(chosen[0], options.device)
    device = machine.gpu_name() if kind == "cuda" else machine.cpu_name()
    path = options.out / f"{'-'.join(device.lower().split())}.jsonl"
    if not options.table:
        _grade(chosen, options, kind, path)
    write_text(path.with_suffix(".md"), table(read(path), device))
    print(f"table: {path.with_suffix('.md')}")


def _grade(chosen: list[Lab], options: argparse.Namespace, kind: str, path: Path) -> None:
    until = time.monotonic() + 60 * options.minutes
    by_gpus: dict[int, dict[str, tuple[Work, Job]]] = {}
    for lab in chosen:
        form_name = choose_form(lab, options.device)
        lacks = lacking(lab, form_name)
        if form_name != kind or lacks:
            print(f"{lab.name}: left out. {lacks}")
            continue
        form = lab.forms[form_name]
        if isinstance(form, Form):
            prepared(form)  # once, not by each worker
        wanted = by_gpus.setdefault(form.ranks if kind == "cuda" else 1, {})
        for work in work_of(lab):
            if work.what.startswith(tuple(options.only.split(","))):
                for mode in options.modes.split(","):
                    for n in range(options.rounds):
                        job = Job(lab.name, work.submission, options.device, quick=mode == "quick", repeat=n)
                        wanted[job.digest] = (work, job)
    there = {(line["lab"], line["what"], line["mode"], line["round"]) for line in read(path)}
    took: dict[tuple[str, bool], float] = {}

    def keep(wanted: dict[str, tuple[Work, Job]], job: Job, record: dict[str, Any]) -> None:
        if not stands(record) and "result" not in record:
            print(f"{job.lab}: not graded, {record['failed']}", flush=True)
            return
        line = line_of(wanted[job.digest][0], job, record)
        took[job.lab, job.quick] = line["seconds"] + 10
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{line['lab']}, {line['what']}, {line['mode']}: {line['points']:g} of {line['of']:g} {line['lost']}",
            flush=True,
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    store = Store(ROOT / "work" / "honest" if options.out == LINES else options.out / "results")
    for gpus, wanted in sorted(by_gpus.items()):
        todo = [
            job
            for work, job in wanted.values()
            if (work.lab, work.what, "quick" if job.quick else "full", job.repeat) not in there
        ]
        for job in todo[:]:
            if record := store.final(job, form=kind):  # graded before, and its line got lost
                keep(wanted, job, record)
                todo.remove(job)
        todo.sort(key=lambda job: job.repeat)  # a round of everything before the next one
        with embedded(options.device, options.on, gpus_each=gpus) as pool:
            grade_all(
                todo,
                pool,
                store,
                until=until,
                takes_s=lambda job: took.get((job.lab, job.quick), 60.0),
                done=functools.partial(keep, wanted),
            )


if __name__ == "__main__":
    main()
