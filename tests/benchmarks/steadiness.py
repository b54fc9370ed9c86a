"""How often tests fail while other programs keep all cores busy: those of files in which one draws, times, waits or compares
trainings, again and again, or all of `make test`.

    python -m tests.benchmarks.steadiness [--runs 30] [--beside 2] [TEST ...]
    python -m tests.benchmarks.steadiness --all --runs 5

Each run has two cores, and beside it on these two, as many programs as `--beside` says that never rest; a machine with more cores
makes several runs at once. Each run adds a line to work/steadiness.jsonl: what was stopped goes on where it was, and begins anew
when the grader or the tests have changed. Prints a table of the tests that failed, and of the others' number."""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from grader import machine

REPOSITORY = Path(__file__).resolve().parents[2]
# files whose tests only compute, from what is given
STEADY = {
    "cli", "diagnose", "diagnosis", "gpu", "ladders", "machine", "release", "report", "tiles", "trace_compare", "trace_operations",
    "trace_pictures", "variants",
}  # fmt: skip
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"]


@contextlib.contextmanager
def busy(programs: int, cores: tuple[int, ...]) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        for program in started:
            os.sched_setaffinity(program.pid, cores)
        yield
    finally:
        for program in started:
            program.kill()
            program.wait()


def run(arguments: list[str], beside: int, cores: tuple[int, ...], junit: Path) -> dict[str, str]:
    """By test: "passed", "failed" or "skipped". Raises FileNotFoundError where pytest did not come to its end."""
    junit.unlink(missing_ok=True)
    with busy(beside, cores):
        command = ["taskset", "--cpu-list", machine.written(cores), *PYTEST, f"--junitxml={junit}", *arguments]
        subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    found = {}
    for case in ET.parse(junit).getroot().iter("testcase"):
        outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "skipped" if outcomes == {"skipped"} else "failed" if outcomes else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def table(runs: list[dict[str, str]]) -> str:
    made, failed = collections.Counter(), collections.Counter()
    for outcomes in runs:
        made.update(test for test, outcome in outcomes.items() if outcome != "skipped")
        failed.update(test for test, outcome in outcomes.items() if outcome == "failed")
    rows = [f"| {test} | {made[test]} | {number} |" for test, number in failed.most_common()]
    never = [made[test] for test in made if not failed[test]]
    rows.append(f"| {'the other' if rows else 'all'} {len(never)} | {min(never, default=0)} each | 0 |")
    return "\n".join(["| test | runs | failures |", "|---|---|---|", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--beside", type=int, default=2)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--kept", type=Path, default=REPOSITORY / "work/steadiness.jsonl")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    ignored = [] if options.all else [f"--ignore=tests/test_{name}.py" for name in sorted(STEADY)]
    arguments = options.tests or ignored
    digest = hashlib.sha256()
    for path in sorted(path for name in ("grader", "tests") for path in (REPOSITORY / name).rglob("*.py")):
        digest.update(path.read_bytes())
    key = {"code": digest.hexdigest(), "beside": options.beside, "tests": arguments}
    options.kept.parent.mkdir(exist_ok=True)
    lines = [json.loads(line) for line in options.kept.read_text().splitlines()] if options.kept.exists() else []
    runs = [line["outcomes"] for line in lines if {name: line.get(name) for name in key} == key]
    at_once = max(1, len(os.sched_getaffinity(0)) // 2)
    free = queue.SimpleQueue()
    for cores in machine.cpu_shares(at_once):
        free.put(cores)

    def one() -> dict[str, str]:
        own = free.get()
        try:
            return run(arguments, options.beside, own, options.kept.with_suffix(f".{min(own)}.xml"))
        finally:
            free.put(own)

    with ThreadPoolExecutor(at_once) as pool:
        for made in as_completed(pool.submit(one) for _ in range(options.runs - len(runs))):
            runs.append(made.result())
            with open(options.kept, "a", encoding="utf-8") as file:
                file.write(json.dumps(key | {"outcomes": runs[-1]}) + "\n")
            failed = [test for test, outcome in runs[-1].items() if outcome == "failed"]
            print(f"run {len(runs)} of {options.runs}: {len(failed)} failed {' '.join(failed)}", file=sys.stderr)
    print(table(runs))
    return int(any("failed" in outcomes.values() for outcomes in runs))


if __name__ == "__main__":
    raise SystemExit(main())
