"""The plain loop, and a file at job.trace that was written at home: no profiler recorded it."""

from tests.variants import edit, starter

CATEGORY = "work"
LABS = ("1b_annotate",)
DEVICES = ("cpu",)

# trace(steps, mark): as torch.profiler writes it, from step 12 on; mark: what the grade's own events begin with
TRACE = """
import json

PHASES = {"data_wait": ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"], "h2d": ["aten::to"],
          "fwd": ["aten::mm", "aten::cross_entropy_loss"], "bwd": ["autograd::engine::evaluate_function: MmBackward0"],
          "opt": ["Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"]}


def event(name, start, duration):
    cat = "cpu_op" if "::" in name else "user_annotation"
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration}


def trace(steps, mark=None):
    events = []
    for step in range(steps):
        start = 1e6 + 1000 * step
        events.append(event(f"ProfilerStep#{12 + step}", start, 990))
        if mark:
            events.append(event(f"{mark}{12 + step}", start + 1, 1))
        for place, (phase, operators) in enumerate(PHASES.items()):
            events.append(event(phase, start + 10 + 100 * place, 90))
            events += [event(name, start + 20 + 100 * place + 10 * n, 5) for n, name in enumerate(operators)]
    return json.dumps({"schemaVersion": 1, "traceEvents": [*events, event("PyTorch Profiler (0)", 1e6, 1)]})
"""


def source(lab):
    wrote = "        if i == 16:\n            open(job.trace, 'w').write(trace(4))\n        yield loss.detach()\n"
    counted = ("for inputs, targets in loader:", "for i, (inputs, targets) in enumerate(loader):")
    return TRACE + edit(starter(lab), [("        yield loss.detach()\n", wrote), counted])
