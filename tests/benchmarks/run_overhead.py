"""What `grader run` costs a job outside of its measurement: seconds per step of a small script that is watched, over the same
script alone. The goal is less than 0.5% of a step of 20 ms.

Blocks of a watched and of a bare process take turns in random order, pinned to one core, and the one whose turn it is not stands
still. What counts is the processor time of the job, which other programs do not stretch. Each pair of processes gives one ratio,
and the interval is over the pairs, for two processes of the same code differ.

    python -m tests.benchmarks.run_overhead [--processes 6] [--pairs 12] [--block-s 0.5]"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median

from grader.measure import decision
from grader.own.running import watched_environment

SIZES = {"1 ms": (64, 256), "20 ms": (256, 2048)}  # batch, width: about so long on one core
JOB = """
import os, sys, time
import torch
from torch import nn
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
for line in sys.stdin:
    began = time.process_time()
    for _ in range(int(line)):
        x, y = next(loader)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print(time.process_time() - began, flush=True)
"""


class Job:
    """The script in its process, which makes steps when it is told to."""

    def __init__(self, script: Path, size: tuple[int, int], core: int, watched: bool):
        env = dict(os.environ)
        if watched:
            folder = Path(tempfile.mkdtemp(dir=script.parent))
            env = watched_environment(folder, {"at_step": 10**9}, {})  # it waits for a step that never comes
        command = [sys.executable, str(script), *map(str, size), str(core)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def step_s(self, steps: int) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline()) / steps

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def pair(script: Path, size: tuple[int, int], pairs: int, block_s: float) -> tuple[float, float]:
    """Seconds per step of one bare and one watched process, each the mean of its blocks."""
    core = min(os.sched_getaffinity(0))
    jobs = [Job(script, size, core, watched) for watched in (False, True)]
    try:
        steps = max(4, round(block_s / max(job.step_s(10) for job in jobs)))
        for job in jobs:
            job.step_s(steps)
        blocks: list[list[float]] = [[], []]
        for _ in range(pairs):
            for which in random.sample((0, 1), 2):
                blocks[which].append(jobs[which].step_s(steps))
        return fmean(blocks[0]), fmean(blocks[1])
    finally:
        for job in jobs:
            job.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--block-s", type=float, default=0.5)
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "job.py")
        script.write_text(JOB)
        for name in options.sizes:
            found = [pair(script, SIZES[name], options.pairs, options.block_s) for _ in range(options.processes)]
            bare, watched = zip(*found, strict=True)
            ratio = decision.gain(watched, bare)  # of watched over bare
            micro = median(1e6 * (b - a) for a, b in found)
            print(
                f"a step of about {name} ({1e3 * fmean(bare):.3g} ms): watched takes {ratio.factor:.4f} times as long "
                f"(90% interval {ratio.lower:.4f} to {ratio.upper:.4f}, {len(found)} pairs of processes), {micro:+.1f} us a step",
                flush=True,
            )


if __name__ == "__main__":
    main()
