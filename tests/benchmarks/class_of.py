"""A large class through the pool, with everything killed that can be killed; and what a second GPU gains.

    python -m tests.benchmarks.class_of --students 200 [--out DIR] [--workers N]
    python -m tests.benchmarks.class_of --on 0 --on 1,2 [--quick]     # groups of GPUs, all at the same time
    python -m tests.benchmarks.class_of --gpus 1 2 [--quick]          # as many GPUs, one group after the other

The first makes a class whose submissions of lab 2a (CPU form, quick plan) are starters, halves, solutions, broken and hostile
ones, and grades it with `grader class`, while a worker and then the coordinator are killed with SIGKILL. The others grade
the same twelve submissions of 2a and 3a on each group of GPUs. A report is printed and written to DIR."""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from grader import labs, machine
from grader.calibrate import solution
from grader.classroom.coordinator import grade_all
from grader.classroom.pool import embedded
from grader.classroom.store import Store
from grader.classroom.submissions import Job
from grader.grading.forms import prepared
from grader.result import write_json
from grader.submission import MAGIC, Submission
from tests import adversaries, variants

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = "2a_workers"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int)
    parser.add_argument("--workers", type=int, default=1, help="worker processes on the CPU")
    parser.add_argument("--gpus", type=int, nargs="+", default=[])
    parser.add_argument("--on", action="append", default=[], metavar="N,N")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "work" / "class_of")
    parser.add_argument("--one-group", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.one_group:
        one_group(options.one_group, options.quick, options.out)
    elif options.students:
        return large_class(options.students, options.workers, options.out)
    elif options.on or options.gpus:
        return groups(options)
    else:
        parser.error("say what: --students, --on or --gpus")
    return 0


# ---------------------------------------------------------------- a large class


def large_class(students: int, workers: int, out: Path) -> int:
    course = out / f"class of {students}"
    shutil.rmtree(course, ignore_errors=True)
    kinds = make_class(course / "submitted", students)
    began = time.monotonic()
    first = start(course, workers)
    wait_for(course, first, students // 8)
    killed_worker = kill_worker(first)
    wait_for(course, first, students // 4)
    before = results(course)
    orphans = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    _, alive = psutil.wait_procs(orphans, timeout=20)
    second = start(course, workers)
    second.wait()
    seconds = time.monotonic() - began
    after = results(course)
    again = start(course, workers)
    again.wait()
    report = {
        "students": students,
        "kinds": {kind: list(kinds.values()).count(kind) for kind in sorted(set(kinds.values()))},
        "workers": workers,
        "seconds": round(seconds),
        "exit statuses": [second.returncode, again.returncode],
        "worker killed": killed_worker,
        "kept when the coordinator was killed": len(before),
        "processes that outlived the coordinator": len(alive),
        "kept in the end": len(after),
        "graded twice": sum(after.get(name) != stamp for name, stamp in before.items()),
        "graded by a run with nothing left to do": sum(results(course)[name] != after[name] for name in after),
        "failed to grade": sum("failed" in name for name in after),
        "machine": machine.facts(),
        "versions": machine.versions(),
    }
    write_json(course / "report.json", report)
    print(json.dumps(report, indent=1))
    bad = alive or report["graded twice"] or report["failed to grade"] or any(report["exit statuses"])
    return int(bool(bad))


def make_class(submitted: Path, students: int) -> dict[str, str]:
    """Hand in for every student; returns who handed in what. One in ten handed in the starter untouched and two in ten
    somebody else's solution; all others differ."""
    released = json.loads((REPOSITORY / "labs" / LAB / f"{LAB}.ipynb").read_text(encoding="utf-8"))
    hostile = [a for a in adversaries.corpus() if a.source and LAB in a.labs and "cpu" in a.devices]
    made = {}
    for n in range(students):
        student, sign = f"student{n:03d}", f"# by student {n}\n"
        kind = (
            "untouched",
            "copied",
            "copied",
            "solution",
            "solution",
            "starter",
            "half",
            "broken",
            "hostile",
            "hostile",
        )[n % 10]
        source = {
            "untouched": lambda: variants.starter(LAB),
            "copied": lambda sign=sign: f"{sign}\n{variants.solution(LAB)}",
            "solution": lambda n=n: variants.solution(LAB) + f"\n\nBY = {n}\n",
            "starter": lambda n=n: variants.starter(LAB) + f"\n\nBY = {n}\n",
            "half": lambda n=n: variants.half_fix(LAB) + f"\n\nBY = {n}\n",
            "broken": lambda n=n: BROKEN[n // 10 % len(BROKEN)].replace("NUMBER", str(n)),
            "hostile": lambda n=n: hostile[n % len(hostile)].source(LAB) + f"\n\nBY = {n}\n",
        }[kind]()
        notebook = json.loads(json.dumps(released))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code" and "".join(cell["source"]).startswith(MAGIC):
                cell["source"] = f"{MAGIC}\n{source}"
        path = submitted / student / LAB / f"{LAB}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
        made[student] = kind
    return made


BROKEN = (
    "def train(job):\n    raise ValueError(NUMBER)\n    yield\n",
    "def train(job)\n    yield NUMBER\n",
    "import os\n\ndef train(job):\n    os._exit(NUMBER % 100)\n    yield\n",
    "import not_installed_NUMBER\n",
    "def train(job):\n    return NUMBER\n",
)


def start(course: Path, workers: int) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "grader.frontends.cli",
        "class",
        str(REPOSITORY / "labs"),
        str(course / "submitted"),
    ]
    with open(course / "log.txt", "a") as log:
        return subprocess.Popen(
            [*command, "--quick", "--device", "cpu", "--workers", str(workers)], cwd=REPOSITORY, stderr=log
        )


def results(course: Path) -> dict[str, tuple[int, int]]:
    """The files of the results, each with what changes when it is written again."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (course / "measured").glob("*/*-*.json")
    }


def wait_for(course: Path, process: subprocess.Popen, count: int) -> None:
    while len(results(course)) < count:
        if process.poll() is not None:
            raise SystemExit(f"`grader class` ended early, see {course / 'log.txt'}")
        time.sleep(0.2)
    time.sleep(5)  # into the grades that are under way


def kill_worker(coordinator: subprocess.Popen) -> bool:
    """Kill a Dask worker with SIGKILL, one that has the process of a grade."""
    for child in psutil.Process(coordinator.pid).children():
        with contextlib.suppress(psutil.Error):
            if any("grader.classroom.process" in each.cmdline() for each in child.children()):
                child.kill()
                return True
    return False


# ---------------------------------------------------------------- groups of GPUs


def groups(options: argparse.Namespace) -> int:
    for name in ("2a_workers", "3a_precision"):
        prepared(labs.get(name).forms["cuda"])
    chosen = options.on or [",".join(map(str, range(n))) for n in options.gpus]
    running = []
    for group in chosen:
        command = [sys.executable, "-m", "tests.benchmarks.class_of", "--one-group", group, "--out", str(options.out)]
        running.append(subprocess.Popen(command + ["--quick"] * options.quick, cwd=REPOSITORY, env=os.environ))
        if not options.on:
            running[-1].wait()
    if any(process.wait() for process in running):
        return 1
    found = [json.loads((options.out / f"on-{group}.json").read_text()) for group in chosen]
    least = min(found, key=lambda each: each["workers"])
    for each in found:
        each["speed-up"] = round(least["seconds"] / each["seconds"], 3)
    write_json(options.out / "groups.json", found)
    print("\n| GPUs | submissions | seconds | speed-up | GPU seconds per submission (median) |\n|---|---|---|---|---|")
    for each in found:
        print(f"| {each['on']} | {each['made']} | {each['seconds']} | {each['speed-up']} | {each['median']} |")
    return 0


def one_group(group: str, quick: bool, out: Path) -> None:
    """Twelve submissions on one group of GPUs. What a stopped run had measured is measured again: this is a timing."""
    shutil.rmtree(out / f"store-{group}", ignore_errors=True)
    store = Store(out / f"store-{group}")
    jobs = [
        Job(name, submission, "cuda", quick=quick, repeat=n)
        for name in ("3a_precision", "2a_workers")  # the longer ones first
        for n in range(2)
        for submission in (
            Submission(variants.starter(name)),
            Submission(variants.half_fix(name)),
            solution(labs.get(name)),
        )
    ]
    began = time.monotonic()
    with embedded("cuda", [int(n) for n in group.split(",")]) as pool:
        workers = pool.workers()
        ready = time.monotonic()
        made = grade_all(jobs, pool, store, done=lambda job, record: print(_line(group, job, record), flush=True))
    seconds = time.monotonic() - ready
    records = [record for _, record in made]
    write_json(
        out / f"on-{group}.json",
        {
            "on": group,
            "workers": len(workers),
            "cores": sorted({each["cores"] for each in workers.values()}),
            "made": sum("result" in record for record in records),
            "quick": quick,
            "seconds": round(seconds, 1),
            "seconds to start": round(ready - began, 1),
            "median": median(record["seconds"] for record in records),
            "each": [[job.lab, record["seconds"], _points(record)] for job, record in made],
            "machine": machine.facts(),
            "versions": machine.versions(),
        },
    )


def _points(record: dict[str, Any]) -> Any:
    return record["result"]["score"] if "result" in record else record["failed"]


def _line(group: str, job: Job, record: dict[str, Any]) -> str:
    why = record.get("result", {}).get("disturbed") or record.get("result", {}).get("fatal") or ""
    return f"on {group}, worker {record['worker']}: {job.lab} {_points(record)}, {record['seconds']} s {why}"


if __name__ == "__main__":
    sys.exit(main())
