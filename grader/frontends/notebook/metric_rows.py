"""Metrics and counts of a look as rows of a table: name, value, what it is."""

from grader.look import Observation
from grader.trace import Metrics, catalogue
from grader.trace.words import plain_number

MetricRow = tuple[str, str, str]

NOT_MEASURED = "NOT MEASURED"
DIRECTIONS = {
    "HtoD pinned": "to the GPU from pinned memory",
    "HtoD pageable": "to the GPU from pageable memory",
    "DtoH": "from the GPU to the CPU",
    "DtoD": "within the GPU's memory",
}


def value_of(seen: Observation, name: str) -> float | None:
    """A metric, or what else was counted, by name; None for what this device cannot tell."""
    if name == "peak_memory":
        return seen.peak_memory
    if name in ("graph_breaks", "recompiles"):
        return seen.compiled[name] if seen.compiled else None
    assert seen.metrics is not None  # of a look that profiled and did not fail
    return catalogue.value(seen.metrics, name)


def ms(ns: float | None) -> str:
    return f"{plain_number((ns or 0) / 1e6)} ms"


def metric_row(name: str, value: float | None) -> MetricRow:
    metric = catalogue.METRICS[name]
    if value is None:
        shown = NOT_MEASURED
    elif metric.unit == catalogue.SHARE:
        shown = f"{100 * value:.0f}%"
    elif metric.unit == catalogue.TIME:
        shown = ms(value)
    elif metric.unit == catalogue.BYTES:
        shown = f"{value / 1e9:.2f} GB"
    else:
        shown = f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    return name.removesuffix("_ns"), shown, metric.words


def copy_rows(metrics: Metrics) -> list[MetricRow]:
    """A row for each kind of copy, by its direction."""
    if metrics.copies is None:
        return [("copies", NOT_MEASURED, "copies between the CPU's and the GPU's memory, and within it, by kind")]
    rows = []
    for kind, copy in metrics.copies.items():
        size = f", {plain_number(copy['bytes'] / 1e6)} MB" if copy["bytes"] else ""
        words = f"copies {DIRECTIONS.get(kind, 'of another kind')}"
        rows.append((f"copies {kind}", f"{plain_number(copy['count'] or 0)}{size}", words))
    return rows
