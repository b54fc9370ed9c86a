"""How often `grader compare` says that a loop is faster, or slower, than itself; and whether it sees what makes each twelfth
step's forward and backward pass twice, which is nearly 8% more to do.

A process is born fast or slow: where its memory lies, and which threads wake which, stays what it was. So blocks of two
processes differ by more than blocks of one, and starts of the same two processes agree on a gain that is none.

    python -m tests.benchmarks.compare_errors [--times 12] [--device cpu] [--busy 0] [--quick]
    python -m tests.benchmarks.compare_errors --simulate [--times 3000] [--quick]

On two shared cores (AMD EPYC, torch 2.14, 2026-11-27), with all pairs from one process a side: 4 slower and 2 faster of 6
comparisons of a loop with itself, which scattered by 24% where their pairs said 2%. With a start a pair of times, and malloc kept
from giving memory back: 4 cannot tell and 1 as fast of 5, scattering by 2.0% where the starts said 1.3%; of 5 with 8% more to do, 3
faster and 2 cannot tell. With `--quick`, 8 cannot tell of 8; beside two busy processes 7, and 1 as fast.

Simulated, where the ratio of a start scatters normally by 1, 2, 5 and 10% (3,000 comparisons each): of two loops that are equal one
is called faster or slower in 0, 0.1, 0.8 and 1.0% of them if both scatter, and in at most 2.6% if one of them does all of it; with
`--quick` in 0, 0.7, 2.4 and 2.8%, and at most 5.9%. That one is 5% faster is seen in 100, 90, 17 and 4%, with `--quick` in 100, 87,
19 and 7%. Luck at its birth that has two values, half of the time each, can be the same in all four starts: where only one of two
loops has it, 13% of comparisons of loops that are equal on average are wrong; where both have it, 1%. With `--quick`, of three
starts, 26 and 4%.

busy: so many other processes compute all the time. Prints what was said, and by how much comparisons scatter: as their
intervals let one expect, or more."""

import argparse
import collections
import contextlib
import math
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

from grader import machine
from grader.measure import decision
from grader.measure.blocks import Plan
from grader.own.compare import FULL, NOISE, QUICK, compare, decide

VERDICTS = (decision.FASTER, decision.EQUAL, decision.SLOWER, decision.UNKNOWN)

JOB = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

from grader.workloads.job import Batches, Job


torch.set_num_threads(1)


def make_job(seed, device):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2048, 3, 32, 32, generator=draw), torch.randint(10, (2048,), generator=draw)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )
    return Job(model=model, dataset=TensorDataset(x, y), batches=Batches(2048, 32, seed), lr=1e-3, device=device)
"""
LOOP = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

TWICE = False


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for step, (x, y) in enumerate(DataLoader(job.dataset, batch_sampler=job.batches)):
        if TWICE and step % 12 == 0:
            F.cross_entropy(model(x.to(job.device)), y.to(job.device)).backward()
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(job.device)), y.to(job.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
"""


def compute() -> None:
    while True:
        math.factorial(2000)


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[None]:
    others = [multiprocessing.Process(target=compute, daemon=True) for _ in range(number)]
    for each in others:
        each.start()
    try:
        yield
    finally:
        for each in others:
            each.kill()


def simulate(plan: Plan, sigmas: tuple[float, float], true: float) -> str:
    """What is said of two loops, one of them `true` times as fast, whose starts scatter by `sigmas` (in log), one's and the
    other's."""
    starts: list[decision.Pair] = []
    while len(starts) < plan.max_pairs:
        one, other = (math.exp(random.gauss(0, sigma)) for sigma in sigmas)
        starts.append(decision.Pair(one, other / true))
        found = decide(starts, NOISE, plan.min_pairs)
        if found and found.settled:
            return decision.direction(found.gain)
    return decision.UNKNOWN


def print_simulated(plan: Plan, times: int) -> None:
    print("| a start's ratio scatters by | by that of | is as fast | " + " | ".join(VERDICTS) + " |")
    print("|---|---|---|" + "---|" * len(VERDICTS))
    for sigma in (0.01, 0.02, 0.05, 0.1):
        halves = (sigma / math.sqrt(2), sigma / math.sqrt(2))
        for what, sigmas in (("both", halves), ("the loop before", (sigma, 0.0)), ("the loop after", (0.0, sigma))):
            for true in (1.0, 1.05, 1.1):
                said = collections.Counter(simulate(plan, sigmas, true) for _ in range(times))
                shares = " | ".join(f"{said[verdict] / times:.1%}" for verdict in VERDICTS)
                print(f"| {sigma:.0%} | {what} | {true:.2f} times | {shares} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    plan, times = QUICK if options.quick else FULL, options.times or (3000 if options.simulate else 12)
    if options.simulate:
        random.seed(1)
        print_simulated(plan, times)
        return
    facts = machine.facts()
    of = facts["gpu"] if options.device == "cuda" else facts["cpu"]
    print(f"a loop and itself on {of}, {facts['cores']} cores, {options.busy} of them busy with something else")
    print(
        "| the loop before | said | faster by, on average | should scatter by | scatters by | starts | seconds |\n|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder, neighbours(options.busy):
        job, after = Path(folder) / "job.py", Path(folder) / "after.py"
        job.write_text(JOB)
        after.write_text(LOOP)
        for name, twice in (("the same", False), ("makes each twelfth step twice", True)):
            before = Path(folder) / "before.py"
            before.write_text(LOOP.replace("TWICE = False", f"TWICE = {twice}"))
            said, logs, should, seconds, starts = collections.Counter(), [], [], [], []
            for _ in range(times):
                began = time.monotonic()
                found = compare(before, after, job, device=options.device, plan=plan)
                seconds.append(time.monotonic() - began)
                said[found.said or found.message] += 1
                if found.gain:
                    logs.append(math.log(found.gain.factor))
                    should.append(found.gain.noise / math.sqrt(found.starts))
                    starts.append(found.starts)
            told = ", ".join(f"{times} {what}" for what, times in said.most_common())
            scatter = stdev(logs) if len(logs) > 1 else math.nan
            expected = math.sqrt(fmean(x * x for x in should)) if should else math.nan
            print(
                f"| {name} | {told} | {fmean(logs or [math.nan]):.1%} | {expected:.1%} | {scatter:.1%} "
                f"| {fmean(starts or [math.nan]):.1f} | {fmean(seconds):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
