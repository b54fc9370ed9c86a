"""Whether the pairs of one grade are independent of each other: a loop against itself, in many short grades. Where they are,
grades scatter by no more than their pairs say, and one interval in ten misses the truth, which is 1.

Cores of a virtual machine are not equally fast, and a loop stays on the one where it is. So both loops of a pair begin on
the same core, drawn for each pair; beside it, what comes out where each is left where it is.

    python -m tests.benchmarks.pair_noise [--grades 10] [--lab 2c_transforms] [--device cpu] [--workers 4]"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import fmean, stdev

from grader import labs
from grader.grade import arm, prepared
from grader.measure import blocks, machine
from grader.measure.decision import gain

PAIRS = blocks.Plan().min_pairs


def grade(number: int, lab: str, device: str, placed: bool) -> list[tuple[float, float]]:
    """Seconds a step of a loop and of the same loop again, one pair after the other."""
    del number  # each is the same again
    if not placed:
        blocks.draw_core = lambda: None
    form = labs.get(lab).forms[device]
    options, readable = prepared(form)
    one = partial(arm, labs.get(lab).starter, form, options, readable, device, None, trusted=True)
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
    print("| a loop against itself | a pair scatters by | a grade should by | it does by | intervals that miss 1 |")
    print("|---|---|---|---|---|", flush=True)
    for placed in (False, True):
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            one = partial(grade, lab=options.lab, device=options.device, placed=placed)
            made = list(pool.map(one, range(options.grades)))
        logs = [[math.log(before / after) for before, after in pairs] for pairs in made]
        within = math.sqrt(fmean(stdev(each) ** 2 for each in logs))
        scatter = math.sqrt(fmean(fmean(each) ** 2 for each in logs))
        found = [gain(*zip(*pairs, strict=True)) for pairs in made]
        missed = sum(not each.lower <= 1 <= each.upper for each in found)
        what = "pairs begin on one core" if placed else "each is left where it is"
        print(
            f"| {what} | {within:.1%} | {within / math.sqrt(PAIRS):.1%} | {scatter:.1%} | {missed} of {len(made)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
