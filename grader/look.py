"""Looking at a loop without grading it: run it, count what it does, profile it."""

from dataclasses import dataclass
from typing import Any

from grader import trace
from grader.grading.arms import MAX_TRACE, open_arm, set_up
from grader.grading.failure import explain, with_details
from grader.grading.forms import choose_form, fitted, on_own_cores, too_few_devices
from grader.labs.lab import Form, Lab
from grader.measure.blocks import Arm, lost_since, whole_rounds
from grader.measure.memory import Meter
from grader.result import Progress, silent
from grader.sandbox.child_error import ChildError
from grader.sandbox.setting import Limits
from grader.sandbox.workspace import Workspace
from grader.submission import Submission

LEAST_TIMED = 4  # steps
SHORT_S = 0.1  # steps shorter than this are profiled by the dozen: loader workers deliver their batches in rounds


@dataclass
class Observation:
    losses: list[float]
    step_s: float | None = None  # unprofiled; None after `peek`, which does not time
    metrics: trace.Metrics | None = None  # None after `run`, as are the next two
    timeline: dict[str, Any] | None = None
    recorded: trace.Trace | None = None  # what metrics and timeline are made of
    compiled: dict[str, int] | None = None  # what torch.compile did: graphs, graph_breaks, recompiles
    peak_memory: int | None = None  # bytes at the allocator's peak; None without a GPU
    meter: Meter | None = None  # of the loop's memory as seen from outside, in labs that ask for it
    lost: float = 0.0  # share of the timed steps' time that other programs took
    message: str = ""  # why the loop failed
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
    progress: Progress = silent,
    kept: Workspace | None = None,  # see `open_arm`
) -> Observation | None:
    """Run `warm_up` steps, time `timed` more (or about `timed_s` seconds of them), then profile `steps`, confined as in a grade. None
    where the lab has no form for this device, or needs more. Raises RuntimeError where files cannot be confined, unless allowed."""
    form_name = choose_form(lab, device)
    if form_name not in lab.forms or too_few_devices(lab, form_name):
        return None
    form = fitted(lab, form_name)[0].forms[form_name]
    setup = set_up(form, form_name, allow_unconfined, counted=lab.memory is not None)
    seen = Observation(losses=[])
    with open_arm(submission.source, setup, limits, kept=kept) as arm:
        try:
            progress(0.1, "loading")
            if lab.memory:
                seen.meter = arm.meter = Meter(arm.child, on_gpu=form_name == "cuda")
            _warm_up(arm, form, warm_up, progress)
            if timed_s:
                with arm.metered():
                    arm.burn()  # the first steps took long, and workers filled their queue meanwhile
                timed = max(LEAST_TIMED, whole_rounds(timed_s, arm.step_s, form.round))
            if timed:
                progress(0.4, f"timing {timed} steps")
                _time(seen, arm, timed)
            if profiled:
                steps = form.recorded(max(steps, 12) if seen.step_s and seen.step_s < SHORT_S else steps)
                progress(0.6, f"profiling {steps} steps")
                _profile(seen, arm, steps, form, expect_gpu=form_name == "cuda")
            seen.output = submission.locate(arm.child.output())
        except ChildError as error:
            seen.message = explain(error, submission)
            seen.output = with_details(arm.child.output(), error, submission)
        except trace.TraceError as error:
            seen.message, seen.output = str(error), submission.locate(arm.child.output())
        seen.losses = arm.losses
    progress(1.0, "done")
    return seen


def _warm_up(arm: Arm, form: Form, steps: int, progress: Progress) -> None:
    arm.child.load()
    if form.prepare_s:
        progress(0.15, "the submission's preparation")
        arm.prepare(form.prepare_s)
    arm.child.start(1)
    progress(0.2, f"the first step (it may compile, for at most {arm.child.setting.limits.first_step:.0f} s)")
    with arm.metered():
        arm.run(1)
        arm.step_s = arm.run(max(1, steps - 1))


def _time(seen: Observation, arm: Arm, steps: int) -> None:
    lost = lost_since(arm.child.processes)
    with arm.metered():
        seen.step_s = arm.step_s = arm.run(steps)
    seen.lost = lost()


def _profile(seen: Observation, arm: Arm, steps: int, form: Form, expect_gpu: bool) -> None:
    seen.compiled = arm.profile(steps, "trace.json")
    seen.recorded = trace.read_bytes(arm.child.fetch("trace.json", MAX_TRACE), expect_gpu=expect_gpu)
    step_ns = seen.step_s * 1e9 if seen.step_s else None
    seen.metrics = trace.metrics(seen.recorded, step_ns=step_ns, count=steps)
    seen.timeline = trace.timeline(seen.recorded, step_ns=step_ns)
    seen.metrics.count(arm.counted())
    seen.metrics.against(form.flops)
    seen.peak_memory = arm.child.ask("peak_memory")


def peek(submission: Submission, lab: Lab, **options: Any) -> Observation | None:
    """Counts only, in about five seconds: no timing, so the answer does not depend on how busy the machine is."""
    return look(submission, lab, **options)


def profile(submission: Submission, lab: Lab, **options: Any) -> Observation | None:
    """Time some steps without the profiler, then profile: the timeline is drawn against the unprofiled step time."""
    return look(submission, lab, **{"warm_up": 3, "timed_s": 2.0, "steps": 4} | options)
