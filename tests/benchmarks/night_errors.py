"""How often an unchanged night is called slower, and how small a change is found: simulated, for the rule of
`grader.nightly.history.judge`.

    python -m tests.benchmarks.night_errors [--nights N]

Half of the variance is the night's own (all its repeats share it), half each run's; one run in twenty has four times the
noise. The noise is that of the grades that were measured on one H200 (torch 2.11): see each row."""

from __future__ import annotations

import argparse
import math
import random

from grader.nightly import parts
from grader.nightly.history import judge
from grader.nightly.parts import Outcome, Part

# what, sd of a run in the log (five grades of one solution), least noise of a run (the lab's, a pair's, over two)
SERIES = (
    ("3a_precision, step and gain (bound by the GPU)", 0.0013, 0.0015),
    ("2a_workers, step (bound by its data)", 0.0046, 0.010),
    ("2a_workers, gain (bound by its data)", 0.047, 0.010),
)
SLOWER = (1.0, 1.01, 1.03, 1.1, 1.25)
BEFORE = (5, 10, 20)


def found(random_: random.Random, nights: int, sd: float, least: float, slower: float) -> bool:
    """Whether one night is called slower, after so many others that were not."""

    def made(factor: float = 1.0) -> list[float]:
        night = random_.gauss(0, sd * math.sqrt(0.5))
        runs = (
            random_.gauss(0, sd * math.sqrt(0.5)) * (4 if random_.random() < 0.05 else 1) for _ in range(parts.TRIES)
        )
        return [factor * math.exp(night + run) for run in runs]

    before = [{"values": {"step_ms": made()[0]}, "noise": {"step_ms": least}} for _ in range(nights)]
    outcome = Outcome(Part("grade", "", "solution", None), parts.OK, noise={"step_ms": least})
    for value in made(slower):
        outcome.repeats.append({"step_ms": value})
        (change,) = judge(outcome, before)
        if not change.suspicious:
            return False
    return change.slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=20_000, help="simulated for each cell")
    options = parser.parse_args()
    print("| series, nights before | " + " | ".join(f"x {slower:g}" for slower in SLOWER) + " |")
    print("|---|" + "---|" * len(SLOWER))
    for what, sd, least in SERIES:
        for nights in BEFORE:
            random_ = random.Random(nights)
            cells = []
            for slower in SLOWER:
                count = options.nights if slower == 1 else options.nights // 20
                cells.append(sum(found(random_, nights, sd, least, slower) for _ in range(count)) / count)
            print(f"| {what}, {nights} | " + " | ".join(f"{share:.2%}" for share in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
