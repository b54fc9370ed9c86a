"""Looking at a loop without grading it: run it, count what it does, profile it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grader import trace
from grader.grading.arms import MAX_TRACE, open_arm, set_up
from grader.grading.failure import explain, with_details
from grader.grading.forms import choose_form, on_own_cores, too_few_devices
from grader.labs.lab import Lab
from grader.measure.blocks import watch_lost, whole_rounds
from grader.measure.memory import Meter
from grader.result import Progress
from grader.sandbox.child_error import ChildError
from grader.sandbox.setting import Limits
from grader.sandbox.workspace import Workspace
from grader.submission import Submission

LEAST_TIMED = 4  # steps
SHORT_S = 0.1  # steps shorter than this are profiled by the dozen: loader workers deliver their batches in rounds


@dataclass
class Look:
    """What was seen. metrics and timeline are None after `run`; step_s is the unprofiled time per step, None after
    `peek`, which does not time. message: why the loop failed, else ''."""

    losses: list[float]
    step_s: float | None = None
    metrics: trace.Metrics | None = None
    timeline: dict[str, Any] | None = None
    recorded: trace.Trace | None = None  # what metrics and timeline are made of
    compiled: dict[str, int] | None = None  # what torch.compile did: graphs, graph_breaks, recompiles
    peak_memory: int | None = None  # bytes at the allocator's peak; None without a GPU
    meter: Meter | None = None  # of the loop's memory as seen from outside, in labs that ask for it
    lost: float = 0.0  # share of the timed steps' time that other programs took
    message: str = ""
    output: str = ""


@on_own_cores
def look(
    submission: Submission,
    lab: Lab,
    *,
    device: str = "auto",
    steps: int = 3,
    warm_up: int = 2,
    timed: int = 0,
    timed_s: float = 0.0,
    profiled: bool = True,
    limits: Limits | None = None,
    allow_unconfined: bool = False,
    progress: Progress = lambda share, what: None,
    kept: Workspace | None = None,
) -> Look | None:
    """Run `warm_up` steps, time `timed` more, or as many as take about `timed_s` seconds once a loader's queue is used up, then
    profile `steps`, in a confined process like a grade's. None where the lab has no form for this device, or needs more of
    them. kept: as `arm`'s. Raises RuntimeError where file access cannot be confined, unless `allow_unconfined`."""
    form_name = choose_form(lab, device)
    if form_name not in lab.forms or too_few_devices(lab, form_name):
        return None
    form = lab.forms[form_name]
    setup = set_up(form, form_name, allow_unconfined, counted=lab.memory is not None)
    found, details = Look(losses=[]), None
    with open_arm(submission.source, setup, limits, kept=kept) as ours:
        try:
            progress(0.1, "loading")
            if lab.memory:
                found.meter = ours.meter = Meter(ours.child, on_gpu=form_name == "cuda")
            ours.child.load()
            if form.prepare_s:
                progress(0.15, "the submission's preparation")
                ours.prepare(form.prepare_s)
            ours.child.start(1)
            progress(0.2, f"the first step (it may compile, for at most {ours.child.setting.limits.first_step:.0f} s)")
            with ours.metered():
                ours.run(1)
                ours.step_s = ours.run(max(1, warm_up - 1))
            if timed_s:
                with ours.metered():
                    ours.burn()  # the first steps took long, and workers filled their queue meanwhile
                timed = max(LEAST_TIMED, whole_rounds(timed_s, ours.step_s, form.round))
            if timed:
                progress(0.4, f"timing {timed} steps")
                with watch_lost(ours.child) as lost, ours.metered():
                    found.step_s = ours.step_s = ours.run(timed)
                found.lost = lost()
                if found.step_s < SHORT_S:
                    steps = max(steps, 12)
            if profiled:
                steps = form.recorded(steps)
                progress(0.6, f"profiling {steps} steps")
                found.compiled = ours.profile(steps, "trace.json")
                data = ours.child.fetch("trace.json", MAX_TRACE)
                found.recorded = trace.read_bytes(data, expect_gpu=form_name == "cuda")
                step_ns = found.step_s * 1e9 if found.step_s else None
                found.metrics = trace.metrics(found.recorded, step_ns=step_ns, count=steps)
                found.timeline = trace.timeline(found.recorded, step_ns=step_ns)
                found.metrics.count(ours.counted())
                found.peak_memory = ours.child.ask("peak_memory")
        except ChildError as error:
            found.message = explain(error, submission)
            details = error
        except trace.TraceError as error:
            found.message = str(error)
        found.losses, found.output = ours.losses, ours.child.output()
        if details:
            found.output = with_details(found.output, details, submission)
    progress(1.0, "done")
    return found


def peek(submission: Submission, lab: Lab, **options: Any) -> Look | None:
    """Counts only, in about five seconds: no timing, so the answer does not depend on how busy the machine is."""
    return look(submission, lab, **options)


def profile(submission: Submission, lab: Lab, **options: Any) -> Look | None:
    """Time some steps without the profiler, then profile: the timeline is drawn against the unprofiled step time."""
    return look(submission, lab, **{"warm_up": 3, "timed_s": 2.0, "steps": 4} | options)
