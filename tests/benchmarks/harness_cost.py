"""What being driven by the grader costs: the time per step of a loop in a confined child, on the parent's clock, against
the same loop run bare in this process. Blocks take turns, so that both see the same machine; the ratio must stay within
1% of 1.

    python -m tests.benchmarks.harness_cost [--pairs 10]"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import sys
import time
from typing import Any

import torch

from grader import labs
from grader.data import prepare
from grader.grade import arm, prepared
from grader.labs.lab import Form, Parity
from grader.measure import decision, machine
from grader.measure.blocks import whole_rounds
from grader.sandbox.parent import turn

SMALL_GPT = {"layers": 6, "width": 128, "heads": 4, "length": 128, "batch_size": 8, "lr": 1e-4}  # launch-bound on a GPU
NO_PARITY = Parity(0, 0, 0, 0, 0, 0)


def cases() -> list[tuple[str, str, Form, str]]:
    """(name, device, form, source)"""
    gpt = labs.get("3a_precision")
    small = Form("grader.workloads.gpt", SMALL_GPT, "text", 1, 0, NO_PARITY, threads=1)
    if machine.has_gpu():
        return [
            ("GPT-2 sized, GPU-bound", "cuda", gpt.forms["cuda"], gpt.starter),
            ("small GPT, launch-bound", "cuda", small, gpt.starter),
        ]
    return [("small GPT, one CPU thread", "cpu", small, gpt.starter)]


def bare(form: Form, options: dict[str, Any], source: str, device: str) -> Any:
    """The same generator in this process, with nothing of the grader around it."""
    if form.threads:
        torch.set_num_threads(form.threads)
    namespace: dict[str, Any] = {}
    exec(compile(source, "submission.py", "exec"), namespace)
    job = importlib.import_module(form.workload).make_job(1, torch.device(device), **options)
    return namespace["train"](job)


def run_bare(loop: Any, steps: int, device: str) -> float:
    began = time.perf_counter()
    last = list(itertools.islice(loop, steps))[-1]
    if device == "cuda":
        torch.cuda.synchronize()
    last.item()
    return (time.perf_counter() - began) / steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    worst = 0.0
    for name, device, form, source in cases():
        prepare(form.data)
        options, readable = prepared(form)
        ours, theirs = [], []
        with arm(source, form, options, readable, device, None) as driven:
            driven.child.load()
            driven.child.start(1)
            driven.warm_up(10)
            driven.child.freeze()
            loop = bare(form, options, source, device)
            run_bare(loop, 10, device)
            for _ in range(pairs):
                steps = whole_rounds(1.5, driven.step_s)
                with turn(driven.child):
                    driven.burn()
                    ours.append(driven.run(steps))
                run_bare(loop, max(2, steps // 4), device)
                theirs.append(run_bare(loop, steps, device))
        cost = decision.gain(ours, theirs)
        worst = max(worst, abs(math.log(cost.factor)))
        print(
            f"{name}: bare {1e3 * sum(theirs) / pairs:.3f} ms a step, driven {1e3 * sum(ours) / pairs:.3f} ms; ratio "
            f"{cost.factor:.4f} (90% interval {cost.lower:.4f} to {cost.upper:.4f})",
            flush=True,
        )
    print(f"{machine.facts()} {machine.versions()}")
    return int(worst > 0.01)


if __name__ == "__main__":
    sys.exit(main())
