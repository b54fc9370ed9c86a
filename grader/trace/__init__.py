"""Traces of torch.profiler: read -> timeline -> metrics -> picture. Usable alone; imports neither torch nor matplotlib
(only `draw` needs matplotlib, and loads it when it is first used).

>>> from grader import trace
>>> t = trace.read("trace.json.gz")
>>> m = trace.metrics(t, step_ns=12_300_000)  # the step time that was measured without the profiler
>>> trace.draw({"before": trace.timeline(t)}).savefig("timeline.png")
"""

from grader.trace.analysis import Analysis, analyse
from grader.trace.metrics import Metrics, metrics
from grader.trace.read import Trace, TraceError, read, read_bytes
from grader.trace.timeline import timeline

__all__ = ["Analysis", "Metrics", "Trace", "TraceError", "analyse", "draw", "metrics", "read", "read_bytes", "timeline"]


def __getattr__(name: str):
    if name == "draw":
        from grader.trace.picture import draw

        return draw
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
