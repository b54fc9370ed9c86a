"""Two training loops of one's own, measured as a grade measures: same children, same blocks, no points."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from grader.checks import parity as parity_check
from grader.errors import UserError
from grader.grade import Disturbed, Findings, Progress, arm, choose_device, gate, race
from grader.labs.lab import Form, Lab, Parity, Prediction, Throughput
from grader.measure import decision
from grader.measure.blocks import Plan
from grader.measure.calibration import Spread
from grader.result import FAIL, CheckResult
from grader.sandbox.parent import ChildError, Limits, fork_server
from grader.sandbox.probe import confinement
from grader.submission import MAX_SOURCE, Submission
from grader.trace import Analysis, Trace, analyse

FIRST_STEPS = 20  # whose losses and weights are compared
# "the same training" for a job of which nothing was calibrated: wide enough for bf16 and a compiler in a calm regime
AGREEMENT = Parity(steps=FIRST_STEPS, loss=0.01, norm=0.02, cosine=0.99, drift=0.03, held_out=0.0)
NOISE = 0.01  # least relative sd of a pair to believe
NOT_CONFINED = (
    "This machine cannot keep the loops away from files that are not their own (`grader doctor` says what is open). For code "
    "that you trust: --allow-unconfined."
)


@dataclass(frozen=True, kw_only=True)
class _Own(Lab):
    """The loop before the change, in the place of a lab's starter."""

    before: str

    @property
    def starter(self) -> str:
        return self.before


@dataclass
class _Comparing(Findings):
    """As a grade, but for the points: what does not agree is timed all the same, and either loop may be the faster one."""

    keep_traces: bool = True

    @property
    def same_work(self) -> bool:
        return True

    def decide(self, plan: Plan) -> decision.Decision | None:
        return decision.decide_change(self.pairs, self.form.noise, plan.min_pairs)


@dataclass
class Comparison:
    """What was found. said: one of decision's FASTER, EQUAL, SLOWER, UNKNOWN, of the loop after the change; "" where nothing
    was measured, then `message` says why. gain: how many times as fast it is. before_s, after_s: seconds a step. agreement: whether
    losses and weights agree, as a check; None where no steps were made. compile_s: what compilation of the later loop took, None for none. traces: "before", "after"."""

    said: str = ""
    gain: decision.Gain | None = None
    before_s: float | None = None
    after_s: float | None = None
    agreement: CheckResult | None = None
    compile_s: float | None = None
    traces: dict[str, Trace] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    message: str = ""
    output: str = ""

    def analyses(self, top: int = 10) -> dict[str, Analysis]:
        """Metrics and diagnosis of each trace, with the step time measured without the profiler."""
        steps = {"before": self.before_s, "after": self.after_s}
        return {name: analyse(trace, (steps[name] or 0) * 1e9 or None, top) for name, trace in self.traces.items()}


def compare(
    before: Path,
    after: Path,
    job: Path,
    *,
    device: str = "auto",
    readable: tuple[Path, ...] = (),
    plan: Plan | None = None,
    limits: Limits | None = None,
    allow_unconfined: bool = False,
    progress: Progress = lambda share, what: None,
) -> Comparison:
    """Measure the loop in `after` beside that in `before`: Python files that define train(job), each in a confined process of
    its own. job: a Python file that defines make_job(seed, device). readable: files and folders that the loops may read; from the folders they can import.

    What fails in the user's code ends up in `message`, not in an exception. Raises UserError for files that cannot be read and
    an unknown device, RuntimeError where this machine cannot confine the loops, unless `allow_unconfined`."""
    form_name = choose_device(device)
    fork_server()  # imports torch meanwhile
    sources = [_source(path) for path in (before, after)]
    _source(job)
    for path in readable:
        if not path.exists():
            raise UserError(f"{path} is not there. --read names files and folders that the loops read.")
    if not allow_unconfined and not confinement().files:
        raise RuntimeError(NOT_CONFINED)
    folders = [str(path.resolve()) for path in readable if path.is_dir()]
    form = Form("grader.workloads.own", {"file": str(job.resolve()), "folders": folders}, "", 1.0, NOISE, AGREEMENT)
    lab = _Own(
        name="own",
        title="",
        phase=0,
        goal="",
        cause="",
        forms={form_name: form},
        throughput=Throughput(0, ("", "", "")),
        trace=(),
        prediction=Prediction(0),
        peek=(),
        before=sources[0],
    )
    found = _Comparing(lab, form_name, allow_unconfined=allow_unconfined)
    start = partial(
        arm,
        form=form,
        options=form.options,
        readable=[path.resolve() for path in (job, *readable)],
        form_name=form_name,
        allow_unconfined=allow_unconfined,
    )
    result = Comparison()

    def told(share: float, what: str) -> None:
        progress(share, what.replace("the submission", after.name).replace("the starter", before.name))

    try:
        progress(0.0, "looking at the machine")
        gate(found)
        with tempfile.TemporaryDirectory() as kept:
            race(
                found,
                Submission(sources[1]),
                start,
                start,
                Path(kept),
                plan or Plan(min_pairs=decision.FEW),
                limits,
                told,
            )
    except ChildError as error:
        result.message = _explained(error, before if error.trusted else after)
        result.output = error.details
    except Disturbed as disturbance:
        result.message = f"Not measured: {disturbance} Wait until the machine is free and try again."
    progress(1.0, "done")
    _concluded(found, result)
    return result


def _concluded(found: _Comparing, result: Comparison) -> None:
    result.warnings = found.warnings + found.trace_problems
    result.traces, result.compile_s = found.traces, found.compile_s
    result.output = (
        found.output
        if not result.output or result.output in found.output
        else f"{found.output}\n{result.output}".strip()
    )
    result.agreement = found.parity
    if found.parity and found.parity.status != FAIL and found.losses:
        late = parity_check.late(AGREEMENT, found.losses["starter"], found.losses["submission"], Spread())
        result.agreement = replace(late, evidence=found.parity.evidence | late.evidence)
    if found.decided:
        result.gain = found.decided.gain
        result.said = decision.direction(result.gain) if found.decided.settled else decision.UNKNOWN
        result.before_s, result.after_s = found.step_s


def _source(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_SOURCE:
            raise UserError(f"{path} is larger than {MAX_SOURCE >> 20} MB: that is no Python file.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no Python file: it is not UTF-8.") from None


def _explained(error: ChildError, file: Path) -> str:
    """The message, about the file that it happened in."""
    text = error.message.replace("The submission's process", f"The process of {file.name}")
    text = text.replace("The submission", file.name).replace("the submission", file.name)
    return f"{text.removesuffix('.')} ({file.name}, line {error.line})." if error.line else text
