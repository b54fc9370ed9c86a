"""One profile of each loop, in the process that was timed."""

from dataclasses import replace

from grader import trace
from grader.grading.arms import MAX_TRACE, Setup
from grader.grading.evidence import Profiles
from grader.labs.lab import Lab
from grader.measure import starter as starters
from grader.measure.blocks import Arm
from grader.result import Progress
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import turn
from grader.trace.metrics import FITS

LEAST_COMPILED = 0.5  # of the forward pass's matmuls, where what was compiled is a part of the step


def profile_each(
    starter: Arm,
    submission: Arm,
    setup: Setup,
    step_s: tuple[float, float],
    steps: int,
    progress: Progress,
    lab: Lab | None = None,
    with_starter: bool = True,
) -> Profiles:
    """Profile so many steps of both. step_s: seconds a step of each without the profiler. lab: whose starter it is, for its timeline
    is made once on a machine. None keeps the traces themselves, of both."""
    found = Profiles()
    warnings: list[str] = []
    problems: list[str] = []
    steps, form_name = setup.form.recorded(steps), setup.form_name
    arms = [("starter", "before", starter, step_s[0]), ("submission", "after", submission, step_s[1])]
    for name, shown, arm, seconds in arms if with_starter else arms[1:]:
        once = lab if arm is starter else None
        if once and (seen_before := starters.timeline(once, form_name, seconds, steps)):
            found.timelines[shown] = seen_before
            continue
        progress(0.72 if arm is starter else 0.75, f"profiling the {name}")
        try:
            recorded, metrics = _profile(arm, setup, seconds, steps)
            found.metrics[name] = metrics
            if lab is None:
                found.traces[shown] = recorded
            counts = {"kernels": metrics.kernels, "gpu_idle": metrics.gpu_idle_unprofiled}
            found.timelines[shown] = trace.timeline(recorded, step_ns=seconds * 1e9) | counts
            if once:
                starters.keep(once, form_name, seconds, steps, found.timelines[shown])
        except (trace.TraceError, ChildError) as error:  # the throughput stands; no check needs the starter's trace
            (warnings if arm is starter else problems).append(f"there is no trace of the {name}: {error}")
            continue
        if arm is submission:
            problems += recorded.notes + _implausible(metrics, seconds, on_gpu=form_name == "cuda")
    return replace(found, doing=submission.profiled, problems=tuple(problems), warnings=tuple(warnings))


def _profile(arm: Arm, setup: Setup, step_s: float, steps: int) -> tuple[trace.Trace, trace.Metrics]:
    with turn(arm.child):
        compiled = arm.profile(steps, "trace.json")
        counted = arm.counted()
    data = arm.child.fetch("trace.json", MAX_TRACE)
    recorded = trace.read_bytes(data, expect_gpu=setup.form_name == "cuda")
    metrics = trace.metrics(recorded, step_ns=step_s * 1e9, count=steps)
    metrics.count(counted)
    metrics.against(setup.form.flops)
    # a graph of next to nothing is whole, and made only once, too
    hardly = metrics.compiled_products is not None and metrics.compiled_products < LEAST_COMPILED
    nothing = not compiled["graphs"] or (hardly and not (compiled["graph_breaks"] and compiled["recompiles"]))
    metrics.compiled = None if nothing else compiled
    return recorded, metrics


def _implausible(metrics: trace.Metrics, step_s: float, on_gpu: bool) -> list[str]:
    """The process that is judged wrote the trace; it must agree with what the parent measured."""
    problems = [] if metrics.complete else list(metrics.reasons)
    if not on_gpu:
        return problems
    busy = metrics.gpu_busy_ns
    if busy is not None and metrics.step_ns and busy > FITS * metrics.step_ns:
        problems.append(
            f"its GPU work takes {busy / 1e6:.1f} ms per step, but a whole step takes {step_s * 1e3:.1f} ms"
        )
    if not metrics.kernels:
        problems.append("it shows no GPU work")
    return problems
