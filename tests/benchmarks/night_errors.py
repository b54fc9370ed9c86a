"""How often an unchanged night is called slower, how small a change is found, and after how many nights one that creeps:
simulated, for the rule of `grader.nightly.history.judge`.

    python -m tests.benchmarks.night_errors [--nights N]

Half of the variance is the night's own (all its repeats share it), half each run's; one run in twenty has four times the
noise. The noise is that of the grades that were measured on one H200 (torch 2.11): see each row."""

import argparse
import math
import random

from grader.nightly import parts
from grader.nightly.history import Change, judge
from grader.nightly.parts import Outcome, Part

# what, sd of a run in the log (five grades of one solution), least noise of a run (the lab's, a pair's, over two)
SERIES = (
    ("3a_precision, step and gain (bound by the GPU)", 0.0013, 0.0015),
    ("2a_workers, step (bound by its data)", 0.0046, 0.010),
    ("2a_workers, gain (bound by its data)", 0.047, 0.010),
)
SLOWER = (1.0, 1.01, 1.03, 1.1, 1.25)
BEFORE = (5, 10, 20, 40)
CREEPING = (1.0, 1.001, 1.003, 1.01, 1.03)  # each night that many times as slow as the last one
MOST = 365  # nights


def runs_of_a_night(random_: random.Random, sd: float, slower: float) -> list[float]:
    night = random_.gauss(0, sd * math.sqrt(0.5))
    runs = (random_.gauss(0, sd * math.sqrt(0.5)) * (4 if random_.random() < 0.05 else 1) for _ in range(parts.TRIES))
    return [slower * math.exp(night + run) for run in runs]


def is_slower(runs: list[float], nights: list[float], least: float) -> bool:
    """Whether a night is called slower after these, oldest first."""
    told = [{"values": {"step_ms": step_ms}, "noise": {"step_ms": least}} for step_ms in nights]
    outcome = Outcome(Part("grade", "", "solution", None), parts.OK, noise={"step_ms": least})
    found: list[Change] = []
    for step_ms in runs:
        outcome.repeats.append({"step_ms": step_ms})
        found = judge(outcome, told)
        if not any(change.suspicious for change in found):
            return False
    return any(change.slower for change in found)


def found(random_: random.Random, nights: int, sd: float, least: float, slower: float) -> bool:
    """Whether one night is called slower, after so many others that were not."""
    before = [runs_of_a_night(random_, sd, 1.0)[0] for _ in range(nights)]
    return is_slower(runs_of_a_night(random_, sd, slower), before, least)


def nights_until_found(random_: random.Random, sd: float, least: float, creep: float) -> int:
    """The first night that is called slower, of those that each are a little slower than the one before; MOST if none is."""
    before: list[float] = []
    while len(before) < MOST:
        runs = runs_of_a_night(random_, sd, creep ** len(before))
        if is_slower(runs, before, least):
            break
        before.append(runs[0])
    return len(before)


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
    print("\n| series | " + " | ".join(f"x {creep:g} a night" for creep in CREEPING) + " |")
    print("|---|" + "---|" * len(CREEPING))
    for what, sd, least in SERIES:
        random_, cells = random.Random(0), []
        for creep in CREEPING:
            until = sorted(nights_until_found(random_, sd, least, creep) for _ in range(options.nights // 1000))
            shares = (until[len(until) // 20], until[len(until) // 2], until[-1 - len(until) // 20])
            cells.append(" to ".join(f"{night}{'+' * (night == MOST)}" for night in dict.fromkeys(shares)))
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
