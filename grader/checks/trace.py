"""Does the trace show that the cause is gone? Counts and shares only, never milliseconds."""

from __future__ import annotations

from typing import Any

from grader.labs.lab import TraceCheck
from grader.result import FAIL, INCONCLUSIVE, PASS, CheckResult
from grader.trace import Metrics
from grader.trace.words import plain_number

SHARES = {
    "data_wait",
    "h2d_pinned",
    "h2d_overlap",
    "aligned_share",
    "half_share",
    "fp16_share",
    "flash_share",
    "layout_share",
    "comm_exposed",
    "tensor_core_share",
    "gpu_idle_unprofiled",
    "tiny_kernel_share",
}
OF_SHAPES = {"aligned_share", "score_matrices"}  # read from operators and their shapes


def read(metrics: Metrics, name: str) -> Any:
    """A metric by name; "tensor_core_share.yes" is the entry "yes" of a metric that is a dict. None where it is unknown."""
    field, _, entry = name.partition(".")
    value = getattr(metrics, field)
    return value.get(entry) if entry and value is not None else value


def _shown(metric: str, value: float) -> str:
    return f"{value:.0%}" if metric.partition(".")[0] in SHARES else plain_number(value)


def _part(check: TraceCheck, value: float) -> float:
    """The share of the points (0 to 1) that a value earns which does not pass."""
    if check.none_at is None or check.at_most is None:
        return 0.0
    return max(0.0, (check.none_at - value) / (check.none_at - check.at_most))


def judge(check: TraceCheck, metrics: Metrics, problems: list[str], supported: float) -> CheckResult:
    """`problems`: why the trace cannot be trusted; any makes the verdict INCONCLUSIVE. `supported`: the share of the
    points that the measured gain supports (0 to 1): the process that is judged wrote the trace, so a trace alone earns
    nothing."""
    value = read(metrics, check.metric)
    bound = check.at_least if check.at_least is not None else check.at_most
    evidence = {check.metric: value, "at_least": check.at_least, "at_most": check.at_most, "steps": metrics.steps}
    evidence = {k: v for k, v in evidence.items() if v is not None}

    def result(status: str, points: float, reason: str, *hints: str) -> CheckResult:
        hint, *deeper = hints or ("",)
        points = round(points, 2)
        return CheckResult(check.name, check.title, status, points, check.points, reason, hint, evidence, deeper)

    if problems:
        return result(INCONCLUSIVE, 0, f"The trace does not answer: {'; '.join(problems)}.", "Check again.")
    if value is None and check.metric in OF_SHAPES and metrics.graph_launches:
        return result(
            INCONCLUSIVE,
            0,
            f"The loop launches CUDA graphs. Of these the trace has the kernels, but no operators and no shapes to read {check.metric} from.",
            "These points need a loop without a CUDA graph (`torch.compile` without `reduce-overhead`); the throughput's do not.",
        )
    if value is None and check.metric == "data_wait" and metrics.unmarked_reads:
        return result(
            INCONCLUSIVE,
            0,
            f"The training process reads data itself, {plain_number(metrics.unmarked_reads)} times a step outside of a DataLoader "
            'and of record_function("data_wait"): how long it waits for data is unknown.',
            'Take the batches from a DataLoader, or put all that makes a batch into a record_function("data_wait").',
        )
    if value is None and check.absent:
        return result(FAIL, 0, check.absent, *check.hints)
    if value is None:
        return result(INCONCLUSIVE, 0, f"The trace holds nothing to read {check.metric} from.", *check.hints)
    passed = value >= bound if check.at_least is not None else value <= bound
    least = "at least" if check.at_least is not None else "at most"
    reason = f"{_shown(check.metric, value)} {check.says} (wanted: {least} {_shown(check.metric, bound)})."
    if not passed:
        share = min(supported, _part(check, value))
        if share > 0:
            reason += f" What is gone of it earns {share:.0%} of these points."
        return result(FAIL, share * check.points, reason, *check.hints)
    if supported < 1:
        reason += f" The measured gain supports {supported:.0%} of these points."
        return result(
            FAIL, supported * check.points, reason, "A fix that shows in the trace must show in the throughput."
        )
    return result(PASS, check.points, reason)
