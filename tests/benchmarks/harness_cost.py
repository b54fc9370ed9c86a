"""What being driven by the grader costs: the time per step of a loop in a confined child, on the parent's clock, against
the same loop run bare, in an ordinary process with a clock of its own. Blocks take turns in random order, the one whose
turn it is not stands still, so that both see the same machine; the ratio must stay within 1% of 1.

    python -m tests.benchmarks.harness_cost [--pairs 12]"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from grader import labs
from grader.grade import arm, prepared
from grader.labs.lab import Form, Parity
from grader.measure import decision, machine
from grader.measure.blocks import whole_rounds
from grader.sandbox.parent import turn

SMALL_GPT = {"layers": 6, "width": 128, "heads": 4, "length": 128, "batch_size": 8, "lr": 1e-4}  # launch-bound on a GPU
NO_PARITY = Parity(0, 0, 0, 0, 0, 0)


def cases() -> dict[str, Form]:
    """Loops to measure, by name; all run the starter of 3a_precision."""
    small = Form("grader.workloads.gpt", SMALL_GPT, "text", 1, 0, NO_PARITY, threads=1)
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


def measure(name: str, form: Form, device: str, pairs: int) -> decision.Gain:
    """The ratio of driven to bare time per step."""
    options, readable = prepared(form)
    source = labs.get("3a_precision").starter
    driven_s: list[float] = []
    bare_s: list[float] = []
    with arm(source, form, options, readable, device, None) as driven, bare_process(name) as theirs:
        driven.child.load()
        driven.child.start(1)
        driven.warm_up(12)
        driven.child.freeze()
        theirs.run(12)
        steps = whole_rounds(1.5, driven.step_s)
        for _ in range(pairs):
            for which in random.sample(("driven", "bare"), 2):
                if which == "driven":
                    with turn(driven.child):
                        driven.run(max(2, steps // 3))
                        driven_s.append(driven.run(steps))
                else:
                    theirs.run(max(2, steps // 3))
                    bare_s.append(theirs.run(steps))
    cost = decision.gain(driven_s, bare_s)
    print(
        f"{name}: bare {1e3 * sum(bare_s) / pairs:.3f} ms a step, driven {1e3 * sum(driven_s) / pairs:.3f} ms; ratio "
        f"{cost.factor:.4f} (90% interval {cost.lower:.4f} to {cost.upper:.4f})",
        flush=True,
    )
    return cost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if machine.has_gpu() else "cpu"
    if options.bare:
        bare(cases()[options.bare], device)
        return 0
    costs = [measure(name, form, device, options.pairs) for name, form in cases().items()]
    print(f"{machine.facts()} {machine.versions()}")
    return int(max(abs(math.log(cost.factor)) for cost in costs) > 0.01)


if __name__ == "__main__":
    sys.exit(main())
