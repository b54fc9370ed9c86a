"""What being driven by the grader costs: the time per step of a loop in a confined child, on the parent's clock, against
the same loop run bare, in an ordinary process with a clock of its own. The ratio must stay within 1% of 1.

Blocks take turns in random order, the one whose turn it is not stands still, so that both see the same machine. Where the
CPU is the limit, two processes that run the same code differ by percents: there are several of each, and the interval is
over them. All of it runs on one core: seen on a virtual machine, threads that wake each other on idle cores scatter the
ratio of two blocks by 7%, and what the parent does would be hidden on a core of its own.

    python -m tests.benchmarks.harness_cost [--processes 6] [--pairs 8] [--only PART_OF_A_NAME]"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import fmean, geometric_mean
from typing import Any

from grader import labs, machine
from grader.grading.arms import open_arm, set_up
from grader.grading.forms import prepared
from grader.labs.lab import Form, Parity
from grader.measure import decision
from grader.sandbox.parent import turn

SMALL_GPT = {"layers": 6, "width": 128, "heads": 4, "length": 128, "batch_size": 8, "lr": 1e-4}  # launch-bound on a GPU
BLOCK_S = 0.5  # short, so that both blocks of a pair see the machine in the same state
NO_PARITY = Parity(0, 0, 0, 0, 0, 0)


def cases() -> dict[str, Form]:
    """Loops to measure, by name; all run the starter of 3a_precision."""
    small = Form("grader.workloads.gpt", SMALL_GPT, "text", 1, NO_PARITY, 0, threads=1)
    if machine.has_gpu():
        return {
            "GPT-2 sized, GPU-bound": labs.get("3a_precision").forms["cuda"],
            "small GPT, launch-bound": small,
        }
    return {"small GPT, one CPU thread": small}


def bare(form: Form, device: str) -> None:
    """Be the bare loop: for each number of steps on standard input, run them and print the seconds they took."""
    import torch

    if form.threads:
        torch.set_num_threads(form.threads)
    namespace: dict[str, Any] = {}
    exec(compile(labs.get("3a_precision").starter, "starter.py", "exec"), namespace)
    options, _ = prepared(form)
    loop = namespace["train"](importlib.import_module(form.workload).make_job(1, torch.device(device), **options))
    for line in sys.stdin:
        began = time.perf_counter()
        losses = list(itertools.islice(loop, int(line)))
        if device == "cuda":
            torch.cuda.synchronize()
        losses[-1].item()
        print(time.perf_counter() - began, flush=True)


class Bare:
    """The bare loop in its process."""

    def __init__(self, name: str):
        command = [sys.executable, "-m", "tests.benchmarks.harness_cost", "--bare", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, steps: int) -> float:
        """Seconds per step."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline()) / steps


@contextlib.contextmanager
def bare_process(name: str) -> Iterator[Bare]:
    process = Bare(name)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def measure(name: str, form: Form, device: str, processes: int, pairs: int) -> decision.Gain:
    """The ratio of driven to bare time per step, its interval over pairs of processes."""
    times = [_one_of_each(name, form, device, pairs) for _ in range(processes)]
    driven_s, bare_s = zip(*times, strict=True)
    cost = decision.gain(driven_s, bare_s)
    each = " ".join(f"{driven / bare:.4f}" for driven, bare in times)
    print(
        f"{name}: bare {1e3 * fmean(bare_s):.3f} ms a step, driven {1e3 * fmean(driven_s):.3f} ms; ratio "
        f"{cost.factor:.4f} (90% interval {cost.lower:.4f} to {cost.upper:.4f}; each pair of processes: {each})",
        flush=True,
    )
    return cost


def _one_of_each(name: str, form: Form, device: str, pairs: int) -> tuple[float, float]:
    """Seconds per step of one driven and one bare process: geometric means over their blocks."""
    source = labs.get("3a_precision").starter
    driven_s: list[float] = []
    bare_s: list[float] = []
    with open_arm(source, set_up(form, device)) as driven, bare_process(name) as theirs:
        driven.child.load()
        driven.child.start(1)
        driven.warm_up(12)
        driven.child.freeze()
        theirs.run(12)
        steps = max(3, round(BLOCK_S / driven.step_s))
        for _ in range(pairs):
            for which in random.sample(("driven", "bare"), 2):
                if which == "driven":
                    with turn(driven.child):
                        driven.run(max(2, steps // 3))
                        driven_s.append(driven.run(steps))
                else:
                    theirs.run(max(2, steps // 3))
                    bare_s.append(theirs.run(steps))
    return geometric_mean(driven_s), geometric_mean(bare_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=6, help="of each kind, one pair after the other")
    parser.add_argument("--pairs", type=int, default=8, help="of blocks in each pair of processes")
    parser.add_argument("--only", default="", help="measure the cases whose names hold this")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if machine.has_gpu() else "cpu"
    if options.bare:
        bare(cases()[options.bare], device)
        return 0
    print(f"{machine.facts()} {machine.versions()}", flush=True)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # children inherit it
    chosen = {name: form for name, form in cases().items() if options.only in name}
    costs = [measure(name, form, device, options.processes, options.pairs) for name, form in chosen.items()]
    return int(max(abs(math.log(cost.factor)) for cost in costs) > 0.01)


if __name__ == "__main__":
    sys.exit(main())
