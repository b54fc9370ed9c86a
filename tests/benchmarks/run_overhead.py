"""What `grader run` costs a job outside of its measurement: processor seconds per step of a small script while it is watched, over
those while it isn't. The goal is less than 0.5% of a step of 20 ms.

Two processes of one script differ by a percent or two from birth. So both arms are blocks of one process, in random turns: with
all hooks in place, and with all of them taken out. What counts is the processor time of the job, which other programs do not
stretch. It ends once it is known on which side of the goal it lies, or after --minutes. Several processes, for each has its luck.

    python -m tests.benchmarks.run_overhead [--minutes 3] [--processes 3] [--block-s 0.25]"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

from grader.measure import decision
from grader.own.running import watched_environment

GOAL, FEWEST = 1.005, 12  # times as long; pairs of each process
SIZES = {"1 ms": (64, 256), "20 ms": (256, 2048)}  # batch, width: about so long on one core
JOB = """
import os, sys, time
import torch
from torch import nn
import torch.utils.data.dataloader as loading
PATCHED = [(owner, name, getattr(owner, name)) for owner, name in (
    (torch.autograd, "backward"), (torch.nn.Module, "train"), (loading._BaseDataLoaderIter, "__next__"))]
os.sched_setaffinity(0, {int(sys.argv[3])})
torch.set_num_threads(1)
batch, width = int(sys.argv[1]), int(sys.argv[2])
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64 * batch, 64), torch.randn(64 * batch, 1))

def batches():
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=batch)

loader = batches()
import grader_watch_patches as patches
from torch.optim import optimizer as optimizers
hooks = [(each, dict(each)) for each in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)]

def watched(on):
    for owner, name, ours in PATCHED:
        setattr(owner, name, ours if on else ours.__wrapped__)
    for where, ours in hooks:
        where.clear()
        where.update(ours if on else {})

for line in sys.stdin:
    on, steps = line.split()
    watched(on == "1")
    began = time.process_time()
    for _ in range(int(steps)):
        x, y = next(loader)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print(time.process_time() - began, flush=True)
"""


def ratios(script: Path, size: tuple[int, int], block_s: float, seconds: float) -> Iterator[tuple[float, float]]:
    """Seconds per step of one process while it is bare and while it is watched, pair by pair."""
    folder = Path(tempfile.mkdtemp(dir=script.parent))
    env = watched_environment(folder, {"at_step": 10**9}, {})  # it waits for a step that never comes
    command = [sys.executable, str(script), *map(str, size), str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as job:
        to_job, from_job = job.stdin, job.stdout
        assert to_job is not None and from_job is not None

        def step_s(on: int, steps: int) -> float:
            print(on, steps, file=to_job, flush=True)
            return float(from_job.readline()) / steps

        try:
            step_s(1, 10)
            steps = max(4, round(block_s / step_s(1, 20)))
            until = time.monotonic() + seconds  # once it has begun
            while time.monotonic() < until:
                found = {on: step_s(on, steps) for on in random.sample((0, 1), 2)}
                yield found[0], found[1]
        finally:
            job.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="for each size of step")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--block-s", type=float, default=0.25)
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "job.py")
        script.write_text(JOB)
        for name in options.sizes:
            measured(script, name, options)


def measured(script: Path, name: str, options: argparse.Namespace) -> None:
    """A line for this size of step."""
    bare: list[float] = []
    watched: list[float] = []
    began = time.monotonic()
    for _ in range(options.processes):
        each_s = 60 * options.minutes / options.processes
        for pairs, (one, other) in enumerate(ratios(script, SIZES[name], options.block_s, each_s), 1):
            bare.append(one)
            watched.append(other)
            if pairs >= FEWEST and not decision.gain(watched, bare).lower < GOAL < decision.gain(watched, bare).upper:
                break
    found = decision.gain(watched, bare)
    said = "below" if found.upper < GOAL else "above" if found.lower > GOAL else "not known to be below"
    micro = 1e6 * median(b - a for a, b in zip(bare, watched, strict=True))
    print(
        f"a step of about {name} ({1e3 * fmean(bare):.3g} ms): watched takes {found.factor:.4f} times as long (90% interval "
        f"{found.lower:.4f} to {found.upper:.4f}), {said} {GOAL:g}; {micro:+.1f} us a step; {found.pairs} pairs of blocks, "
        f"{options.processes} processes, {time.monotonic() - began:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
