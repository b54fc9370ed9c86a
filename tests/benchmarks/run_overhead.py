"""What `grader run` costs a job outside of its measurement: microseconds per step, and from which length of step on that is less
than the goal of 0.5%.

Two processes of one script differ by a percent or two from birth. So both arms are steps of one process, a few at a time in random
turns: with all hooks in place, and with all of them taken out. What counts is the tenth of the steps that were quickest, which
other programs did not interrupt. What is done now and then, such as writing down what is known, is timed apart. Several
processes, for each has its luck: the interval is theirs.

    python -m tests.benchmarks.run_overhead [--seconds 20] [--processes 8]"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

from grader.own.running import watched_environment

GOAL = 0.005  # of a step
T90 = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}  # Student's t, two-sided, by processes
SIZES = {"0.1 ms": (4, 8), "1 ms": (64, 256), "20 ms": (256, 2048)}  # batch, width: about so long on one core
JOB = """
import json, os, random, sys, time
import torch
from torch import nn
import torch.utils.data.dataloader as loading
PATCHED = [(owner, name, getattr(owner, name)) for owner, name in (
    (torch.autograd, "backward"), (loading._BaseDataLoaderIter, "__next__"))]  # not what no step calls
torch.set_num_threads(1)
batch, width, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64 * batch, 64), torch.randn(64 * batch, 1))

def batches():
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=batch)

loader = batches()
import grader_watch
import grader_watch_steps
from torch.optim import optimizer as optimizers
hooks = [(each, dict(each)) for each in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)]

def watched(on):
    for owner, name, ours in PATCHED:
        setattr(owner, name, ours if on else ours.__wrapped__)
    for where, ours in hooks:
        where.clear()
        where.update(ours if on else {})

def step():
    began = time.perf_counter()
    x, y = next(loader)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    return time.perf_counter() - began

def quickest(call):
    times = []
    for _ in range(30):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)

times, until = {0: [], 1: []}, time.monotonic() + seconds
while time.monotonic() < until:
    for on in random.sample((0, 1), 2):
        watched(on)
        times[on] += [step() for _ in range(40)][10:]  # the first ones after a change are slower
now_and_then = quickest(grader_watch.watch.tell) / grader_watch.TOLD_SELDOM_S
now_and_then += quickest(grader_watch_steps.held_up_s) / grader_watch_steps.HELD_UP_EVERY_S
tenth = {on: sorted(each)[len(each) // 10] for on, each in times.items()}
print(json.dumps([tenth[0], tenth[1], now_and_then, len(times[1])]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each process")
    parser.add_argument("--processes", type=int, choices=T90, default=8, help="for each size of step")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "job.py")
        script.write_text(JOB)
        for name in options.sizes:
            print(measured([one(script, SIZES[name], options.seconds) for _ in range(options.processes)]), flush=True)


def one(script: Path, size: tuple[int, int], seconds: float) -> list[float]:
    """Of one process: seconds per step bare and watched, the share that is spent now and then, and the steps of each arm."""
    inside = Path(tempfile.mkdtemp(dir=script.parent))
    env = watched_environment(inside, {"at_step": 10**9}, {})  # it waits for a step that never comes
    command = [sys.executable, str(script), *map(str, size), str(seconds)]
    core = {min(os.sched_getaffinity(0))}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, check=True, preexec_fn=lambda: os.sched_setaffinity(0, core)
    )
    return list(json.loads(done.stdout))


def measured(found: list[list[float]]) -> str:
    """What the processes of one size come to, in a line."""
    bare = fmean(each[0] for each in found)
    micro = [1e6 * (each[1] - each[0]) for each in found]
    half = T90[len(micro)] * stdev(micro) / math.sqrt(len(micro))
    seldom = fmean(each[2] for each in found)
    from_ms = (fmean(micro) + half) / 1e3 / (GOAL - seldom)
    return (
        f"a step of {1e3 * bare:.3g} ms: {fmean(micro):+.1f} us a step (90% interval {fmean(micro) - half:+.1f} to "
        f"{fmean(micro) + half:+.1f}), {fmean(micro) / bare / 1e4:.2f}% of it, and {seldom:.3%} of the time now and then: below "
        f"{GOAL:.1%} for steps of {from_ms:.2g} ms and more; {len(found)} processes, {sum(each[3] for each in found):,.0f} steps each way"
    )


if __name__ == "__main__":
    main()
