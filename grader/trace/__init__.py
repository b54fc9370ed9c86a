"""Traces of torch.profiler: read -> timeline -> metrics -> diagnosis -> picture. Usable alone; imports neither torch nor
matplotlib nor ipywidgets (pictures and the explorer need them, and load them when they are first used).

>>> from grader import trace
>>> t = trace.read("trace.json.gz")
>>> a = trace.analyse(t, step_ns=12_300_000)  # the step time that was measured without the profiler
>>> print(a.diagnosis.text)
>>> trace.draw({"before": trace.timeline(t)}).savefig("timeline.png")
>>> trace.draw_breakdown({"before": a})  # where the time of a step goes
>>> trace.draw_roofline(a)
>>> trace.explore(a)  # in a notebook
"""

import importlib
from typing import Any

from grader.trace.analysis import Analysis, analyse
from grader.trace.metrics import Metrics, metrics
from grader.trace.read import Trace, TraceError, read, read_bytes
from grader.trace.timeline import timeline

# What needs matplotlib or ipywidgets, and its module.
LAZY = {
    "draw": "picture",
    "draw_breakdown": "picture",
    "draw_job": "job_picture",
    "draw_roofline": "roofline_picture",
    "explore": "explorer",
}

__all__ = ["Analysis", "Metrics", "Trace", "TraceError", "analyse", "metrics", "read", "read_bytes", "timeline", *LAZY]


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module(f"grader.trace.{LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
