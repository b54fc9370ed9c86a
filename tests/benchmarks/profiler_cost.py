"""What torch.profiler costs the host: microseconds for each recorded operator or call into CUDA, and for each recorded
Python function. See OP_NS and PYTHON_NS in `grader.trace.breakdown`.

    python -m tests.benchmarks.profiler_cost

A small GPT whose step is bound by the host trains without the profiler, with it, and with stacks; the difference in step
time over the number of events is the cost. The runs take turns, each number is the median of several."""

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from grader import machine
from grader.trace import read
from grader.trace.events import CPU_OP, PYTHON
from grader.workloads.gpt import GPT

STEPS, ROUNDS = 20, 5


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    model = GPT(4, 64, 4, 32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(256, (2, 32), device=device)

    def step() -> None:
        model(tokens).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def step_s() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    for _ in range(3):
        step_s()
    costs: dict[str, list[float]] = {"operator or call": [], "Python function": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        for _ in range(ROUNDS):
            bare = step_s()
            slower = {}
            for stacks in (False, True):
                with profile(activities=activities, record_shapes=True, with_stack=stacks) as recorder:
                    step_s()
                    slower[stacks] = step_s() - bare
                recorder.export_chrome_trace(str(path))
                trace = read(path, expect_gpu=False)
                operators = ((trace.category == CPU_OP) | trace.is_call).sum() / (2 * STEPS)
                functions = (trace.category == PYTHON).sum() / (2 * STEPS)
            costs["operator or call"].append(slower[False] / operators)
            costs["Python function"].append((slower[True] - slower[False]) / functions)
    known = machine.facts()
    print(f"{device}, {known.get('cpu')}, torch {torch.__version__}; a step without the profiler {1e3 * bare:.2f} ms")
    for what, values in costs.items():
        print(f"{what}: {1e6 * statistics.median(values):.2f} us ({1e6 * min(values):.2f} to {1e6 * max(values):.2f})")


if __name__ == "__main__":
    main()
