"""Does the trace show that the cause is gone? Counts and shares only, never milliseconds."""

from grader.labs.lab import AtLeast, TraceCheck
from grader.result import AGAIN, FAIL, INCONCLUSIVE, PASS, CheckResult
from grader.trace import Metrics, catalogue
from grader.trace.words import plain_number, told_apart

MARK_ALL = (
    'Take the batches from a DataLoader, or put everything that makes a batch into a record_function("data_wait").'
)


def judge(
    check: TraceCheck,
    metrics: Metrics,
    problems: list[str],
    supported: float,
    lost: float = 0.0,
    undecided: bool = False,
) -> CheckResult:
    """problems: why the trace cannot be trusted; any makes the verdict INCONCLUSIVE. supported: the share of the points
    (0 to 1) that the measured gain supports. undecided: whether it may support more, once it is known. lost: the share of the
    timed steps (0 to 1) that went to other programs."""
    value = catalogue.value(metrics, check.metric)
    bound = {"at_least" if isinstance(check.wanted, AtLeast) else "at_most": check.wanted.bound}
    evidence = ({} if value is None else {check.metric: value}) | bound | {"steps": metrics.steps}

    def result(status: str, share: float, reason: str, *hints: str) -> CheckResult:
        hint, *deeper = hints or ("",)
        points = round(share * check.points, 2)
        return CheckResult(check.name, check.title, status, points, check.points, reason, hint, evidence, deeper)

    if problems:
        return result(INCONCLUSIVE, 0, f"The trace can't answer this, because {' and '.join(problems)}. Check again.")
    if value is None:
        unknown = _unknown(check, metrics)
        return result(INCONCLUSIVE, 0, unknown) if unknown else result(FAIL, 0, check.absent, *check.hints)
    passed = check.wanted.passes(value)
    if passed and check.metric == "data_wait" and (doubt := _doubt(check, metrics)):
        return result(INCONCLUSIVE, 0, doubt)
    shown = _shown(check.metric, value) if passed else _short_of(check, value)
    reason = f"{shown} {check.says} (wanted: {_wanted(check)})."
    if not passed:
        gone = _partly(check, value)
        share = min(supported, gone)
        if share < gone:
            reason += f" For your gain you can get at most {supported:.0%} of these points."
        elif share > 0:
            reason += f" The part that is gone earns {share:.0%} of these points."
        if lost and check.wanted.passes(_without_others(check.metric, value, lost)):
            reason += (
                f" But other programs took {lost:.0%} of the time, so nobody knows whether it is the loop. {AGAIN}"
            )
            return result(INCONCLUSIVE, share, reason)
        return result(FAIL, share, reason, *check.hints)
    if supported >= 1:
        return result(PASS, 1, reason)
    # The judged process itself wrote the trace, so a trace alone earns nothing.
    reason += f" For your gain you can get at most {supported:.0%} of these points."
    if undecided:
        return result(INCONCLUSIVE, supported, f"{reason} The gain is uncertain, so it may be more.")
    return result(FAIL, supported, reason, "A fix that shows in the trace must also show in the throughput.")


def _shown(metric: str, value: float) -> str:
    return f"{value:.0%}" if catalogue.unit(metric) == catalogue.SHARE else plain_number(value)


def _wanted(check: TraceCheck) -> str:
    return f"at {'least' if isinstance(check.wanted, AtLeast) else 'most'} {_shown(check.metric, check.wanted.bound)}"


def _short_of(check: TraceCheck, value: float) -> str:
    """A value that does not pass, with as many digits as show that."""
    limit = check.wanted.bound
    if _shown(check.metric, value) != _shown(check.metric, limit):
        return _shown(check.metric, value)
    return told_apart(value, limit, *(("%", 1) if catalogue.unit(check.metric) == catalogue.SHARE else ("g", 3)))[0]


def _without_others(metric: str, value: float, lost: float) -> float:
    """What would be left of a value if other programs, which took this share of the time, had made it as bad as they can."""
    if metric == "gpu_idle_unprofiled":
        return 1 - (1 - value) / (1 - lost)
    # one step in twenty is longer than what 95% don't exceed: all that was lost may have been lost in these
    return value - 20 * lost if metric == "spread" else value


def _partly(check: TraceCheck, value: float) -> float:
    """The share of the points (0 to 1) that a value earns which does not pass."""
    wanted = check.wanted
    if isinstance(wanted, AtLeast) or wanted.none_at is None:
        return 0.0
    return max(0.0, (wanted.none_at - value) / (wanted.none_at - wanted.bound))


def _unknown(check: TraceCheck, metrics: Metrics) -> str:
    """Why the trace does not tell the metric; "" where its absence is an answer."""
    known, asked = (
        catalogue.METRICS.get(check.metric),
        f"how {'many' if catalogue.unit(check.metric) == catalogue.COUNT else 'much'} {check.says}",
    )
    if known and known.needs == "shapes" and metrics.graph_launches:
        return (
            "The loop launches CUDA graphs. The trace shows their kernels, but no operators and no shapes. "
            f"So nobody knows {asked}. For these points use a loop without CUDA graphs, such as "
            "`torch.compile` without `reduce-overhead`. The points for throughput don't depend on it."
        )
    if check.metric == "data_wait" and metrics.unmarked_reads:
        return (
            f"The training process reads data itself, {plain_number(metrics.unmarked_reads)} times per step, "
            'outside of a DataLoader and of record_function("data_wait"). So nobody knows how long it waits '
            f"for data. {MARK_ALL}"
        )
    if check.metric == "data_wait":
        return f"The trace does not show where the loop waits for data. {MARK_ALL} Check again."
    return "" if check.absent else f"The trace doesn't show {asked}. Check again."


def _doubt(check: TraceCheck, metrics: Metrics) -> str:
    """Why a wait for data that seems short may be a long one, and what to do; "" where nothing speaks for it. The loop itself
    says where a wait begins and ends, and how long it takes while it is profiled."""
    of_timed, ops = metrics.data_wait_unprofiled, metrics.ops_outside_waits
    if of_timed is not None and not check.wanted.passes(of_timed):
        assert metrics.data_wait is not None and metrics.step_ns_traced is not None and metrics.step_ns is not None
        return (
            f"{_shown('data_wait', metrics.data_wait)} of a profiled step is a wait for data. But a profiled step takes "
            f"{plain_number(metrics.step_ns_traced / metrics.step_ns)} times as long as a timed one, and of a timed one the "
            f"wait would be {_shown('data_wait', of_timed)}. So nobody knows how long the loop waits. A loop must do the "
            "same whether or not it is profiled. If it does, wait less and check again."
        )
    if check.most_ops is not None and ops is None:
        return "The trace holds no operators, so nobody knows what the loop does outside of its waits for data. Check again."
    if check.most_ops is not None and ops is not None and not ops <= check.most_ops:
        return (
            f"Outside of its waits for data the training process calls {plain_number(ops)} operators per "
            f"step. Training takes at most {plain_number(check.most_ops)}. It seems to make samples there, "
            f"one by one, and nobody knows how long that takes. {MARK_ALL}"
        )
    return ""
