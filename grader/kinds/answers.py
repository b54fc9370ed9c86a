"""Labs that ask about recorded traces. Answers are read as literals; what is right is computed from the trace and its side file."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grader.grading.evidence import AnyFindings
from grader.kinds.shared import (
    HEALTHY,
    NEXT_BEST,
    UNGRADED,
    Recording,
    as_number,
    as_place,
    no_cause,
    no_number,
    not_answered,
    read_answers,
    recording,
    shown,
    within,
)
from grader.labs.lab import CAUSES, AnyLab, Hints
from grader.result import CheckResult, Progress, scored, unscored
from grader.submission import Submission
from grader.trace import catalogue
from grader.trace.causes import STALLS
from grader.trace.metrics import PHASES
from grader.trace.words import plain_number

# ---------------------------------------------------------------- the declaration


@dataclass(frozen=True)
class Cause:
    """What holds the step back: one of CAUSES, or "healthy"."""

    points: float
    key: str = "cause"


@dataclass(frozen=True)
class Number:
    """A number to read, or to work out, from the trace."""

    key: str
    points: float
    value: str  # which one, see `value`
    within: float  # how far off it may be: as a share of the right one, or as a difference where it is a share itself
    share: bool = False  # it lies between 0 and 1


@dataclass(frozen=True)
class Place:
    """Where in the loop: a phase ("bwd"), or a source line ("train.py:41") where the trace has stacks."""

    key: str
    points: float
    lines: bool = False


@dataclass(frozen=True)
class Question:
    """One trace of `data/traces`, and what is asked about it. The right answers are computed from it when it is graded."""

    name: str  # what the learner knows it by: "a"
    trace: str  # its file, without the ending
    parts: tuple[Cause | Number | Place, ...]
    hints: Hints

    @property
    def title(self) -> str:
        return f"Trace {self.name}"

    @property
    def points(self) -> float:
        return sum(part.points for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class AnswersLab(AnyLab):
    """Questions about recorded traces. The submission is a dictionary of literals."""

    questions: tuple[Question, ...]
    forms: dict[str, None] = field(default_factory=lambda: {"traces": None})

    graded_by: ClassVar[str] = "grader.kinds.answers"
    runs_code: ClassVar[bool] = False

    @property
    def checks(self) -> tuple[Question, ...]:
        return self.questions

    @property
    def starter(self) -> str:
        rows = []
        for question in self.questions:
            entry = ", ".join(f'"{part.key}": ...' for part in question.parts)
            rows.append(f'    "{question.name}": {{{entry}}},')
        return "\n".join(["answers = {", *rows, "}", ""])


GUILTY = 0.25  # a line that makes so large a share of the waits is a right answer


def value(about: Recording, name: str) -> float:
    """A number about a recording: a metric of its trace, or
    "best_ms": the step time, ms, if what holds the loop back vanished;
    "matmul": share of the step that the GPU spends in matrix multiplications and convolutions;
    "tflops": 10^12 floating-point operations per second of the costliest operation;
    "hidden": share of the time of communication with a kernel beside it."""
    metrics = about.analysis.metrics
    if name == "best_ms":
        number = about.analysis.diagnosis.what_if_step_ms
    elif name == "matmul":
        number = about.ms("tensor_core", "matmul") / about.step_ms
    elif name == "tflops":
        costliest = about.analysis.operations[0]
        number = (costliest.flops or math.nan) / costliest.gpu_ns / 1e3
    elif name == "hidden":
        assert metrics.comm_exposed_ns is not None and metrics.comm_ns
        number = 1 - metrics.comm_exposed_ns / metrics.comm_ns
    else:
        number = catalogue.value(metrics, name)
    assert number is not None  # each recording holds what is asked of it
    return number


# ---------------------------------------------------------------- the grade


@dataclass
class Findings(AnyFindings):
    lab: AnswersLab
    answers: dict[Any, Any] = field(default_factory=dict)


def measure(findings: Findings, submission: Submission, plan: Any, limits: Any, progress: Progress) -> None:
    """Read the answers; nothing is measured."""
    findings.answers = read_answers(submission, (*CAUSES, HEALTHY, *PHASES))
    names = [question.name for question in findings.lab.questions]
    unknown = [key for key in findings.answers if key not in names]
    if unknown:
        findings.warnings.append(
            f"answers[{shown(unknown[0])}] belongs to no question. The questions are {', '.join(names)}."
        )


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    if stopped := findings.stopped(UNGRADED):
        return [unscored(check, *stopped) for check in findings.lab.questions]
    return [_judge(question, findings.answers.get(question.name, ...)) for question in findings.lab.questions]


def _judge(question: Question, answer: Any) -> CheckResult:
    keys = [part.key for part in question.parts]
    if missing := not_answered(question, answer, keys):
        return missing
    about = recording(question.trace)
    points, said = 0.0, []
    for part in question.parts:
        share, reason = judge_part(part, answer.get(part.key, ...), about)
        points += share * part.points
        said.append(f"`{part.key}`: {reason}")
    given = {key: entry if isinstance(entry, str) else as_number(entry) for key, entry in answer.items() if key in keys}
    evidence = {
        "answered": given,
        "step_ms": about.step_ms,
        "device": about.side["device"],
        "model": about.side["model"],
    }
    return scored(question, points, " ".join(said), evidence)


def judge_part(part: Cause | Number | Place, said: Any, about: Recording) -> tuple[float, str]:
    """(share of its points, why), for one entry of an answer. What is wrong is told what in the trace speaks against it."""
    if said is ... or said is None:
        return 0, "not answered."
    if isinstance(part, Cause):
        return judge_cause(said, about)
    return _judge_place(part, said, about) if isinstance(part, Place) else _judge_number(part, said, about)


def judge_cause(said: Any, about: Recording) -> tuple[float, str]:
    if said == about.cause and isinstance(said, str):
        return 1, "right."
    if said not in (*CAUSES, HEALTHY):
        return 0, no_cause(said, (*CAUSES, HEALTHY))
    if about.cause == HEALTHY and said in ("memory-bound", "compute-bound"):
        return NEXT_BEST, f"half right. Its GPU is busy, but is there anything to fix? {against(said, about)}"
    return 0, f"not {said}: {against(said, about)}"


def against(said: str, about: Recording) -> str:
    """What the trace holds against a cause, without a word about the right one."""
    step, metrics = about.step_ms, about.analysis.metrics
    kernels = about.ms("tensor_core", "matmul", "memory")
    products = about.ms("tensor_core", "matmul")
    cores = (metrics.tensor_core_share or {}).get("yes", 0.0)

    def part(ms: float) -> str:
        return f"{plain_number(ms)} of {plain_number(step)} ms"

    if said in ("memory-bound", "compute-bound", HEALTHY) and kernels < 0.85 * step:
        return f"then the GPU would calculate nearly all the time, and its kernels run for {part(kernels)}."
    if said == "memory-bound":
        return f"matmuls and convolutions take {part(products)}, so {plain_number(kernels - products)} are left for the rest."
    if said == "compute-bound":
        return (
            f"matmuls and convolutions take {part(products)}, and {cores:.0%} of that time is on tensor "
            f"cores, {metrics.half_share or 0:.0%} with 16-bit inputs."
        )
    if said == HEALTHY:
        if products < 0.5 * step:
            return f"the GPU is busy, but matmuls and convolutions take only {part(products)}."
        return f"the GPU is busy, but only {cores:.0%} of its time in matmuls is on tensor cores."
    cost = part(about.ms(*STALLS[said.removesuffix("-bound")].parts))
    return {
        "input-bound": f"for {cost} the GPU is idle while the host waits for data.",
        "transfer-bound": f"copies with no kernel beside them, and the GPU waiting for them, take {cost}.",
        "sync-bound": (
            f"the host waits for the GPU {metrics.syncs or 0:g} times per step, and the GPU is idle after that for {cost}."
        ),
        "host-bound": f"for {cost} the GPU is idle while the host is outside of all operators.",
        "launch-bound": f"for {cost} the GPU is idle because the host has not launched the next kernel yet.",
        "communication-bound": f"communication with nothing beside it takes {cost}.",
    }[said]


def _judge_number(part: Number, said: Any, about: Recording) -> tuple[float, str]:
    number, right = as_number(said), value(about, part.value)
    if number is None:
        return 0, no_number(said)
    allowed = part.within if part.share else part.within * abs(right)
    if abs(number - right) <= allowed:
        return 1, "right."
    steps = about.analysis.metrics.steps
    if part.share and not 0 <= number <= 1:
        return 0, f"{number:g} is not a share. Write 0.25 for 25%."
    traced_idle = about.analysis.metrics.gpu_idle
    if part.value == "gpu_idle_unprofiled" and traced_idle is not None and abs(number - traced_idle) <= allowed:
        traced = about.side["step_ms_traced"]
        return 0, (
            f"{number:g} is how idle the GPU is in the trace, but the profiler stretched its steps to {plain_number(traced)} "
            f"ms. Without the profiler a step takes {plain_number(about.step_ms)} ms, and the GPU works just as long."
        )
    if steps and right and abs(number / steps - right) <= allowed:
        return 0, f"{number:g} is for {steps} steps. The question is about one step."
    return 0, f"{number:g} is more than {f'{part.within:g}' if part.share else f'{part.within:.0%}'} off."


def _judge_place(part: Place, said: Any, about: Recording) -> tuple[float, str]:
    metrics = about.analysis.metrics
    if part.lines and not (isinstance(said, str) and ":" in as_place(said)):
        return 0, f'{shown(said)} is not a line. Write a file and a number in quotes, such as "planted.py:41".'
    if not isinstance(said, str):
        return 0, f"{shown(said)} is not a text."
    if part.lines:
        lines, waits = metrics.sync_lines or {}, metrics.syncs or 0.0
        made = sum(count for line, count in lines.items() if within(as_place(said), line))
        if made >= GUILTY * waits:
            return 1, f"right: {made:g} of the {waits:g} waits of a step."
        if made:
            return 0, f"{shown(said)} causes only {made:g} of the {waits:g} waits of a step."
        return 0, f"{shown(said)} makes the host wait nowhere in the trace."
    spent = {phase: times["host_ns"] / 1e6 for phase, times in (metrics.phases or {}).items()}
    if said not in spent:
        return 0, f"{shown(said)} is not a phase of this trace. Its phases are {', '.join(spent)}."
    if said == max(spent, key=spent.__getitem__):
        return 1, "right."
    return 0, f"the host spends {plain_number(spent[said])} of {plain_number(sum(spent.values()))} ms in {said}."
