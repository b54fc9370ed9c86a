"""A large class of odd students through the whole round, and whether anything of it is lost.

    python -m tests.benchmarks.odd_class --students 200 [--out DIR]

Half of them hand in by Moodle and half by Canvas. The lab is one of questions, so that three grades are made for all of them: what
is measured here is what happens around the grades. Everything that tests/test_class_odd.py says of a small class is held to it."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grader import machine

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=200)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "work" / "odd_class")
    options = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY / "tests"))  # where the tests look for each other
    import test_class_odd as odd

    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    began = time.monotonic()
    made = odd.Round(options.out, options.students // 2)
    seconds = {"all": time.monotonic() - began} | made.seconds
    checks: list[tuple[Callable, tuple]] = [
        (odd.test_who_is_not_taken_is_named_with_the_reason, ()),
        (odd.test_everybody_has_the_points_and_every_text_is_read, ()),
        (odd.test_the_class_says_who_wrote_elsewhere_and_what_could_not_be_graded, ()),
        *((odd.test_marks_go_back_to_whoever_they_are_of, (system,)) for system in odd.SYSTEMS),
    ]
    for check, arguments in checks:
        check(made, *arguments)
    everyone = made.everyone()
    report = {
        "students": len(everyone),
        "taken": sum(each.kind.points is not None for each in everyone),
        "explanations for a person": sum(each.kind.read and each.kind.points is not None for each in everyone),
        "checks that hold": len(checks),
        "seconds": {name: round(value) for name, value in seconds.items()},
        "machine": machine.facts(),
        "versions": machine.versions(),
    }
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
