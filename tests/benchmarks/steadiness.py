"""How often tests fail while other programs keep all cores busy: those of files in which one draws, times, waits or compares
trainings, again and again, or all of `make test`.

    python -m tests.benchmarks.steadiness [--runs 30] [--beside 2] [TEST ...]
    python -m tests.benchmarks.steadiness --all --runs 5

beside: how many programs run meanwhile that never rest. Each run adds a line to work/steadiness.jsonl: what was stopped goes on
where it was, and begins anew after a commit. Prints a table of the tests that failed, and of the others' number."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# files whose tests only compute, from what is given
STEADY = {
    "cli", "diagnose", "diagnosis", "gpu", "ladders", "machine", "release", "report", "tiles", "trace_compare", "trace_operations",
    "trace_pictures", "variants",
}  # fmt: skip
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"]


@contextlib.contextmanager
def busy(programs: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in started:
            program.kill()
            program.wait()


def run(arguments: list[str], junit: Path) -> dict[str, str]:
    """By test: "passed", "failed" or "skipped". Raises FileNotFoundError where pytest did not come to its end."""
    junit.unlink(missing_ok=True)
    subprocess.run([*PYTEST, f"--junitxml={junit}", *arguments], cwd=REPOSITORY, stdout=subprocess.DEVNULL)
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
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, text=True).strip()
    key = {"commit": commit, "beside": options.beside, "tests": arguments}
    options.kept.parent.mkdir(exist_ok=True)
    lines = [json.loads(line) for line in options.kept.read_text().splitlines()] if options.kept.exists() else []
    runs = [line["outcomes"] for line in lines if {name: line[name] for name in key} == key]
    with busy(options.beside):
        while len(runs) < options.runs:
            runs.append(run(arguments, options.kept.with_suffix(".xml")))
            with open(options.kept, "a", encoding="utf-8") as file:
                file.write(json.dumps(key | {"outcomes": runs[-1]}) + "\n")
            print(
                f"run {len(runs)} of {options.runs}: {list(runs[-1].values()).count('failed')} failed", file=sys.stderr
            )
    print(table(runs))
    return int(any("failed" in outcomes.values() for outcomes in runs))


if __name__ == "__main__":
    raise SystemExit(main())
