"""Whether the pairs of one grade are independent of each other: a loop against itself, in many short grades. Where they are,
grades scatter by no more than their pairs say, and one interval in ten misses the truth, which is 1.

Cores of a virtual machine are not equally fast, and a loop stays on the one where it is. So both loops of a pair begin on
the same core, drawn for each pair from those that are as fast as most; beside it, what comes out where any core is drawn,
and where each loop is left where it is. Last, how much a loop's own time scatters from pair to pair: two loops that do not
depend on their core alike, as one with workers and one without, scatter by as much.

    python -m tests.benchmarks.pair_noise [--grades 10] [--lab 2c_transforms] [--device cpu] [--workers 4]"""

import argparse
import math
import os
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import fmean, stdev

from grader import labs, machine
from grader.grading.arms import open_arm, set_up
from grader.measure import blocks
from grader.measure.decision import gain

PAIRS = blocks.Plan().min_pairs


PLACED: dict[str, Callable[[], int | None]] = {
    "each is left where it is": lambda: None,
    "pairs begin on one core": lambda: random.choice(sorted(os.sched_getaffinity(0))),
    "pairs begin on a usual core": blocks.draw_core,
}


def grade(number: int, lab: str, device: str, placed: str) -> list[tuple[float, float]]:
    """Seconds a step of a loop and of the same loop again, one pair after the other."""
    del number  # each is the same again
    blocks.draw_core = PLACED[placed]
    form = labs.get(lab).forms[device]
    one = partial(open_arm, labs.get(lab).starter, set_up(form, device), trusted=True)
    with one() as first, one() as second:
        for seed, each in enumerate((first, second)):
            each.child.load()
            each.child.start(seed)
            each.warm_up(8)
            each.child.freeze()
        pairs = [blocks.pair(first, second, blocks.Plan()) for _ in range(PAIRS)]
    return [(pair.starter_s, pair.submission_s) for pair in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grades", type=int, default=10)
    parser.add_argument("--lab", default="2c_transforms")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="grades beside each other")
    options = parser.parse_args()
    facts = machine.facts()
    print(f"{options.lab} on {facts['gpu'] if options.device == 'cuda' else facts['cpu']}, {facts['cores']} cores")
    print(
        "| a loop against itself | a pair scatters by | a grade should by | it does by | intervals that miss 1 | its time |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for placed in PLACED:
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            one = partial(grade, lab=options.lab, device=options.device, placed=placed)
            made = list(pool.map(one, range(options.grades)))
        logs = [[math.log(before / after) for before, after in pairs] for pairs in made]
        within = math.sqrt(fmean(stdev(each) ** 2 for each in logs))
        scatter = math.sqrt(fmean(fmean(each) ** 2 for each in logs))
        found = [gain(*zip(*pairs, strict=True)) for pairs in made]
        missed = sum(not each.lower <= 1 <= each.upper for each in found)
        own = stdev(math.log(seconds) for pairs in made for pair in pairs for seconds in pair)
        should = within / math.sqrt(PAIRS)
        print(
            f"| {placed} | {within:.1%} | {should:.1%} | {scatter:.1%} | {missed} of {len(made)} | {own:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
