"""Labs of live loops with a drawn cause each: what a ticket stands for, how one of them is profiled, and the grade of the answers.

Which loops belong to a ticket follows from its number alone, so that a grade can make them again. In a class the number follows from
the student's name, and answers for another's loops are told so. (Whoever reads this file can work out the causes; the evidence still
has to be measured.)"""

import hashlib
import random
import re
import secrets
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from grader import machine, trace
from grader.data import prepare
from grader.grading.evidence import AnyFindings
from grader.grading.gate import machine_is_free
from grader.kinds.shared import (
    HEALTHY,
    NEXT_BEST,
    STEPS,
    UNGRADED,
    WrongAnswers,
    as_number,
    drawn_sizes,
    no_cause,
    read_answers,
    shown,
    watch,
)
from grader.labs.lab import CAUSES, AnyLab, Hints, OtherForm
from grader.result import INCONCLUSIVE, NOT_MEASURED, CheckResult, Progress, scored, silent, unscored
from grader.sandbox.child_error import ChildError
from grader.submission import Submission
from grader.trace import intervals
from grader.trace.breakdown import breakdown
from grader.trace.catalogue import COUNT, unit
from grader.trace.events import CPU_OP
from grader.trace.kernels import MATMUL_OP
from grader.trace.steps import Steps
from grader.trace.words import plain_number

# ---------------------------------------------------------------- the declaration


@dataclass(frozen=True)
class Mystery:
    """A loop with a cause planted."""

    cause: str
    case: str  # which `grader.workloads.mystery` makes
    sizes: dict[str, tuple[float, float]]  # of the case, each drawn between two
    data: str = ""  # the data set it needs


@dataclass(frozen=True, kw_only=True)
class Mysteries(OtherForm):
    """The loops to draw from on one kind of device."""

    choices: tuple[Mystery, ...]
    repeated: bool = False  # a cause may be drawn twice
    workload: str = "grader.workloads.mystery"


@dataclass(frozen=True)
class Unknown:
    """One of the live loops."""

    name: str  # "1"
    points: float  # for its cause
    hints: Hints

    @property
    def title(self) -> str:
        return f"Loop {self.name}"


@dataclass(frozen=True)
class Proof:
    """For each loop a number that shows its cause: half the points for the right metric, half for its value."""

    points: float  # of all loops together
    hints: Hints
    name: str = "evidence"
    title: str = "Evidence"


@dataclass(frozen=True, kw_only=True)
class MysteryLab(AnyLab):
    """Live loops to be diagnosed. Which cause sits in which follows from the ticket in the answers."""

    forms: dict[str, Mysteries]
    loops: tuple[Unknown, ...]
    evidence: Proof
    ticket: str = ""  # of whoever works on them, where that is known: answers for another's loops are then not graded

    graded_by: ClassVar[str] = "grader.kinds.mystery"
    personal: ClassVar[bool] = True

    @property
    def checks(self) -> tuple[Unknown | Proof, ...]:
        return (*self.loops, self.evidence)


EXAMPLE = "cpu-000001"  # the solution's ticket: whoever runs that notebook has another one, and is graded all the same

# Which numbers show a cause, the most telling first.
SHOWS = {
    "input-bound": ("data_wait", "loads_in_main", "gpu_idle"),
    "transfer-bound": ("copies", "h2d_pinned", "h2d_overlap"),
    "sync-bound": ("syncs",),
    "launch-bound": ("launches", "cpu_ops", "tiny_kernel_share", "gpu_idle"),
    "memory-bound": ("matmul",),
    "compute-bound": ("matmul", "tensor_core_share"),
    HEALTHY: ("matmul", "gpu_idle", "data_wait"),
}
CALLS = {"cpu": "cpu_ops", "cuda": "launches"}  # what a launch-bound loop makes many of
CALLED = {
    "cpu": ("a call that does next to nothing", "operators"),
    "cuda": ("one in a loop of small kernels", "launches"),
}
# whoever says so of another loop is told what a call costs here
NEEDS_A_CALL = {"cpu": ("launch-bound", "memory-bound"), "cuda": ("launch-bound",)}
BUSY = 0.15  # of a step idle: a GPU that has less is busy
SPELT = "Copy the word from the table above your answers, and put it in quotes."
COUNT_WITHIN, SHARE_WITHIN = 0.1, {"cuda": 0.1, "cpu": 0.15}  # shares of time scatter more where cores are shared
RIGHT_ROW = 0.5  # of a number's points, for its metric
MOST_LOST = 0.1  # share of the time that other programs may take where a number is held against what was measured


# ---------------------------------------------------------------- what a ticket stands for


@dataclass(frozen=True)
class Drawn:
    cause: str
    options: dict[str, Any]  # of the workload
    data: str


def causes(lab: MysteryLab, form_name: str) -> tuple[str, ...]:
    """The answers that there are in a form."""
    drawn = {mystery.cause for mystery in lab.forms[form_name].choices}
    return tuple(cause for cause in (*CAUSES, HEALTHY) if cause in drawn)


def new_ticket(form_name: str, student: str = "") -> str:
    """ "cuda-123456": at random, or that of a student."""
    number = int(hashlib.sha256(f"1d_mystery {student}".encode()).hexdigest(), 16) if student else secrets.randbits(64)
    return f"{form_name}-{number % 10**6:06d}"


def draw(lab: MysteryLab, ticket: str) -> dict[str, Drawn]:
    """The loops of a ticket, by name. Raises WrongAnswers for what is no ticket."""
    form_name, _, number = ticket.partition("-")
    if form_name not in lab.forms or not re.fullmatch(r"\d{6}", number, re.ASCII):
        raise WrongAnswers(f"{shown(ticket)} is not a ticket. lab.ticket shows yours, such as cpu-123456.")
    form, chance = lab.forms[form_name], random.Random(f"{lab.name} {number}")
    causes = sorted({mystery.cause for mystery in form.choices})
    chosen = chance.sample(causes, min(len(causes), len(lab.loops)))
    if form.repeated and chance.random() < 0.5:  # else the last one is known as soon as the others are
        chosen[0] = chance.choice(chosen[1:])
    chance.shuffle(chosen)
    loops = {}
    for unknown, cause in zip(lab.loops, chosen, strict=True):
        mystery = chance.choice([m for m in form.choices if m.cause == cause])
        options = {"case": mystery.case, "sizes": drawn_sizes(chance, mystery.sizes)}
        loops[unknown.name] = Drawn(cause, options, mystery.data)
    return loops


# ---------------------------------------------------------------- one loop, profiled


@dataclass(frozen=True)
class Profiled:
    step_s: float  # seconds of a step without the profiler
    numbers: dict[str, float]  # by metric, what `SHOWS` names and this device can tell
    timeline: dict[str, Any]
    lost: float = 0.0  # share of the time that other programs took


def profile(lab: MysteryLab, form_name: str, drawn: Drawn, progress: Progress = silent) -> Profiled:
    """Run a loop, and read its trace. Raises ChildError, TraceError."""
    recorded, step_s, lost = record(lab, form_name, drawn, progress)
    return Profiled(step_s, _numbers(recorded, step_s), trace.timeline(recorded, step_ns=step_s * 1e9), lost)


def record(
    lab: MysteryLab, form_name: str, drawn: Drawn, progress: Progress = silent
) -> tuple[trace.Trace, float, float]:
    """The trace of a loop, and what `watch` says beside it."""
    readable = [prepare(drawn.data)] if drawn.data else []
    data, step_s, lost = watch(lab.forms[form_name], form_name, drawn.options, readable, progress)
    return trace.read_bytes(data, expect_gpu=form_name == "cuda"), step_s, lost


def _numbers(recorded: trace.Trace, step_s: float) -> dict[str, float]:
    steps = Steps(recorded, 1, STEPS)
    m = trace.metrics(recorded, step_ns=step_s * 1e9, count=STEPS)
    parts = breakdown(recorded, steps, step_s * 1e9).parts
    numbers = {"data_wait": m.data_wait or 0.0, "loads_in_main": m.loads_in_main}
    if parts:
        ns = step_s * 1e9
        numbers |= {
            "gpu_idle": m.gpu_idle_unprofiled,
            "syncs": m.syncs,
            "copies": parts["copies"] / ns,
            "h2d_pinned": m.h2d_pinned,
            "h2d_overlap": m.h2d_overlap,
            "launches": m.launches,
            "tiny_kernel_share": m.tiny_kernel_share,
            "tensor_core_share": (m.tensor_core_share or {}).get("yes"),
            "matmul": (parts["tensor_core"] + parts["matmul"]) / ns,
        }
    else:
        ops = np.flatnonzero(recorded.category == CPU_OP)
        ops = ops[recorded.named(MATMUL_OP, ops)]
        spent = intervals.clip(recorded.spans(ops), *steps.host)
        numbers |= {"cpu_ops": m.cpu_ops, "matmul": intervals.length(spent) / (steps.host[1] - steps.host[0])}
    return {name: value for name, value in numbers.items() if value is not None}


# ---------------------------------------------------------------- the grade


@dataclass
class Findings(AnyFindings):
    lab: MysteryLab
    answers: dict[Any, Any] = field(default_factory=dict)
    loops: dict[str, Drawn] = field(default_factory=dict)
    seen: dict[str, Profiled] = field(default_factory=dict)
    ticket_form: str = ""  # "cuda" or "cpu"
    call_s: float | None = None  # seconds that a call takes here which does next to nothing; where it was asked


def measure(findings: Findings, submission: Submission, plan: Any, limits: Any, progress: Progress) -> None:
    """Make the ticket's loops again, and profile those for which a cause was named."""
    metrics = {metric for those in SHOWS.values() for metric in those}
    findings.answers = read_answers(submission, (*CAUSES, HEALTHY, *metrics))
    ticket = findings.answers.get("ticket", ...)
    if not isinstance(ticket, str):
        raise WrongAnswers('`answers` has no ticket. Add "ticket" with the text that lab.ticket shows, in quotes.')
    findings.loops = draw(findings.lab, ticket)
    findings.ticket_form, findings.seed = ticket.split("-")[0], int(ticket.split("-")[1])
    if own := _another(findings, submission, ticket):
        yours = f' In the lab, student = "{submission.student}" leads to your loops.' if submission.student else ""
        raise WrongAnswers(f"Your ticket is {own}, but the answers are for {ticket}. Nothing was graded.{yours}")
    if findings.ticket_form == "cuda" and not machine.has_gpu():
        return
    if findings.ticket_form == "cuda":
        findings.free_bytes = machine_is_free(findings.form_name, findings.ranks)
    named = [name for name in findings.loops if _cause(findings, name) in (*CAUSES, HEALTHY)]
    for i, name in enumerate(named):
        progress(i / len(named), f"profiling loop {name}")
        try:
            findings.seen[name] = profile(findings.lab, findings.ticket_form, findings.loops[name])
        except trace.TraceError as error:
            findings.warnings.append(f"Loop {name} left no trace that can be read: {error}.")
    asked = NEEDS_A_CALL[findings.ticket_form]
    if any((said := _cause(findings, name)) in asked and said != findings.loops[name].cause for name in findings.seen):
        findings.call_s = _call_s(findings)


def _another(findings: Findings, submission: Submission, ticket: str) -> str:
    """The ticket that the answers should have been for, where that is known and is another one; else ''."""
    own = new_ticket(findings.ticket_form, submission.student) if submission.student else findings.lab.ticket
    if submission.student:
        return own if own != ticket else ""
    # of the other form: who had a GPU when the loops were profiled may have none now
    return own if own.startswith(f"{findings.ticket_form}-") and ticket not in (own, EXAMPLE) else ""


def _call_s(findings: Findings) -> float | None:
    """What a call, or a launch, costs on this machine: a step of the smallest loop of hardly anything else, over their number."""
    smallest = next(m for m in findings.lab.forms[findings.ticket_form].choices if m.cause == "launch-bound")
    sizes = {name: low for name, (low, _) in smallest.sizes.items()}
    drawn = Drawn(smallest.cause, {"case": smallest.case, "sizes": sizes}, smallest.data)
    try:
        seen = profile(findings.lab, findings.ticket_form, drawn)
    except (ChildError, trace.TraceError):
        return None
    calls = seen.numbers[CALLS[findings.ticket_form]]
    return seen.step_s / calls if calls else None


def _answer(findings: Findings, name: str) -> Any:
    return findings.answers.get(int(name), findings.answers.get(name, ...))


def _cause(findings: Findings, name: str) -> Any:
    answer = _answer(findings, name)
    return answer.get("cause", ...) if isinstance(answer, dict) else ...


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    if stopped := findings.stopped(UNGRADED):
        return [unscored(check, *stopped) for check in findings.lab.checks]
    return [*(_judge_cause(findings, unknown) for unknown in findings.lab.loops), _judge_evidence(findings)]


def _judge_cause(findings: Findings, unknown: Unknown) -> CheckResult:
    answer, said = _answer(findings, unknown.name), _cause(findings, unknown.name)
    right, possible = findings.loops[unknown.name].cause, causes(findings.lab, findings.ticket_form)
    points, spelt_wrong = 0.0, False
    if answer is ... or (isinstance(answer, dict) and said in (..., None)):
        reason = "Not answered yet."
    elif not isinstance(answer, dict):
        reason = f"The answer is {shown(answer)}. It must be a dictionary with: cause, metric, value."
    elif said not in (*CAUSES, HEALTHY):
        reason, spelt_wrong = no_cause(said, possible), True
        reason = reason[0].upper() + reason[1:]
    elif said == right:
        points, reason = unknown.points, f"It is {said}."
    elif right == HEALTHY and said in ("memory-bound", "compute-bound"):
        points = NEXT_BEST * unknown.points
        reason = "Half right. It is busy all the time, but is there anything to fix?"
        if said in possible:
            reason += f" Measured here: {_against(findings, unknown.name, said)}."
    else:
        reason = f"Not {said}: {_against(findings, unknown.name, said)}."
    result = scored(unknown, points, reason, {"answered": shown(said)})
    return replace(result, hint=SPELT, more_hints=[]) if spelt_wrong else result


def _against(findings: Findings, name: str, said: str) -> str:
    """What was measured of a loop that speaks against a cause which it has not."""
    if said not in causes(findings.lab, findings.ticket_form):
        return f"that cannot be here. There are {', '.join(causes(findings.lab, findings.ticket_form))}"
    if name not in findings.seen:
        return "its profile could not be read"
    how = _against_on_gpu if findings.ticket_form == "cuda" else _against_on_cpu
    return how(findings.seen[name], said, findings.call_s)


def _part(seen: Profiled, share: float) -> str:
    return f"{plain_number(1e3 * share * seen.step_s)} of {plain_number(1e3 * seen.step_s)} ms"


def _each(seen: Profiled, form_name: str, call_s: float | None) -> str:
    """What one call takes, beside one that does next to nothing."""
    count, (one, many) = seen.numbers[CALLS[form_name]], CALLED[form_name]
    said = f"{plain_number(1e3 * seen.step_s)} ms / {count:,.0f} {many} = {plain_number(1e6 * seen.step_s / count)} us each"
    return said + (f", and {one} takes about {plain_number(1e6 * call_s)} us here" if call_s else "")


def _against_on_cpu(seen: Profiled, said: str, call_s: float | None) -> str:
    waits, products = seen.numbers["data_wait"], seen.numbers["matmul"]
    if said == "input-bound":
        return f"waiting for data takes {_part(seen, waits)}"
    if said == HEALTHY:
        return f"matmuls take {_part(seen, products)}"
    rest = max(0.0, 1 - waits - products)
    if said == "memory-bound" and rest < 0.5:
        return (
            f"waiting for data takes {_part(seen, waits)} and matmuls take {_part(seen, products)}, so "
            f"{plain_number(1e3 * rest * seen.step_s)} ms are left for the rest"
        )
    return _each(seen, "cpu", call_s)


def _against_on_gpu(seen: Profiled, said: str, call_s: float | None) -> str:
    numbers = seen.numbers
    idle, copies, products = (numbers.get(name, 0.0) for name in ("gpu_idle", "copies", "matmul"))
    idles = f"the GPU is idle for only {_part(seen, idle)}"
    if said == "input-bound":
        return f"waiting for data takes {_part(seen, numbers['data_wait'])}" if numbers["data_wait"] < idle else idles
    if said == "transfer-bound":
        return f"copies with no kernel beside them take {_part(seen, copies)}"
    if said == "sync-bound":
        waits = f"the host waits for the GPU {numbers.get('syncs', 0.0):g} times per step"
        return f"{waits}, and {idles}" if idle < BUSY else waits
    if said == "launch-bound":
        return idles if idle < BUSY else _each(seen, "cuda", call_s)
    # the others keep the GPU busy, each with something else
    kernels = max(0.0, 1 - idle - copies)
    if kernels < 1 - BUSY:
        return f"then the GPU would calculate nearly all the time, and its kernels run for {_part(seen, kernels)}"
    takes = f"matmuls and convolutions take {_part(seen, products)}"
    if said == "memory-bound":
        return f"{takes}, so {plain_number(1e3 * (kernels - products) * seen.step_s)} are left for the rest"
    if products < 0.5:
        return takes
    return f"{numbers.get('tensor_core_share', 0.0):.0%} of the time in matmuls and convolutions is on tensor cores"


def _judge_evidence(findings: Findings) -> CheckResult:
    proof, each = findings.lab.evidence, findings.lab.evidence.points / len(findings.loops)
    if findings.ticket_form == "cuda" and not machine.has_gpu():
        return unscored(proof, NOT_MEASURED, "The loops need a GPU, and this machine has none to run them again.")
    points, said, status = 0.0, [], ""
    for name, drawn in findings.loops.items():
        share, reason = _judge_number(findings, name, drawn)
        if share is None:
            share, status = RIGHT_ROW, INCONCLUSIVE
        points += share * each
        said.append(f"Loop {name}: {reason}")
    measured = {
        f"loop {name}": {k: round(v, 4) for k, v in seen.numbers.items()} for name, seen in findings.seen.items()
    }
    return scored(proof, points, " ".join(said), measured, status)


def _judge_number(findings: Findings, name: str, drawn: Drawn) -> tuple[float | None, str]:
    """The share of its points, and why; None where it may be the grader's own number that is off."""
    if _cause(findings, name) != drawn.cause:
        return 0, "counts when its cause is right."
    answer = _answer(findings, name)
    metric, number = answer.get("metric", ...), as_number(answer.get("value", ...))
    if metric in (..., None):
        return 0, "no metric was named."
    if name not in findings.seen:
        return 0, "could not be measured."
    numbers = findings.seen[name].numbers
    if not isinstance(metric, str) or metric not in numbers:
        return 0, f"{shown(metric)} is not a row of the table."
    if metric not in SHOWS[drawn.cause]:
        return 0, f"{metric} doesn't show whether a loop is {drawn.cause}."
    if answer.get("value", ...) in (..., None):
        return RIGHT_ROW, f"{metric} is the right row, but its value is missing."
    if number is None:
        return RIGHT_ROW, f"{metric} is the right row, but the value {shown(answer.get('value', ...))} is not a number."
    right = numbers[metric]
    off = COUNT_WITHIN * right if unit(metric) == COUNT else SHARE_WITHIN[findings.ticket_form]
    if abs(number - right) <= off:
        return 1, "right."
    if unit(metric) != COUNT and not 0 <= number <= 1:
        return RIGHT_ROW, f"{metric} is the right row, but a share is written 0.25 for 25%."
    reason = f"{metric} is the right row, but measured again it is {plain_number(right)}, not {number:g}."
    if (lost := findings.seen[name].lost) > MOST_LOST:
        return None, f"{reason} Other programs took {lost:.0%} of the time meanwhile. Check again once they are done."
    return RIGHT_ROW, reason
