"""Labs that ask for the operations that cost a loop's GPU most: which they are, which line asks for each, and why it costs so much.

What is right is computed from a trace, recorded by the grade or before. The answers are read as literals, never executed."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from grader import machine, trace
from grader.devices import PEAKS
from grader.grading.evidence import AnyFindings
from grader.grading.gate import machine_is_free
from grader.kinds.shared import (
    STEPS,
    TRACES,
    UNGRADED,
    WrongAnswers,
    as_number,
    as_place,
    no_number,
    not_answered,
    read_answers,
    recording,
    shown,
    watch,
    within,
)
from grader.labs.lab import AnyLab, Hints, OtherForm
from grader.result import FAIL, NOT_MEASURED, CheckResult, Progress, scored, silent, unscored
from grader.submission import Submission
from grader.trace.operations import Operation, operations
from grader.trace.steps import Steps
from grader.trace.words import plain_number

# ---------------------------------------------------------------- the declaration

BOUNDS = {
    "compute": "its arithmetic, at the peak of the units it runs on, takes longer than its bytes",
    "memory": "its bytes, at the memory's peak, take longer than its arithmetic",
    "launch": "its kernels are so many and so short that launching them takes longer than running them",
}
REASONS = {
    "slow units": "matmuls on the CUDA cores, though there are tensor cores",
    "tiny kernels": "20 kernels per step or more, each below 10 us on average",
    "at its roof": "it needs less than twice the time that its arithmetic and bytes need at the peaks",
    "below its roof": "it needs more than twice that time: its sizes, its layout, or one pass over memory after another",
}


@dataclass(frozen=True)
class Costly:
    """One of the operations with most GPU time: which it is, the line that asks for it, one of BOUNDS, one of REASONS."""

    name: str  # "1"
    hints: Hints
    operation: float = 6  # points for each part
    line: float = 9
    bound: float = 7
    cause: float = 8

    @property
    def title(self) -> str:
        return f"Operation {self.name}"

    @property
    def points(self) -> float:
        return self.operation + self.line + self.bound + self.cause


@dataclass(frozen=True)
class Together:
    """The share of the GPU's busy time that the costliest operations have together, right within `within`."""

    points: float
    hints: Hints
    within: float = 0.03
    name: str = "share"
    title: str = "Their share of the GPU's time"


@dataclass(frozen=True, kw_only=True)
class Watched(OtherForm):
    """A loop of the course's own, which is recorded when it is asked for."""

    workload: str  # whose job brings its loop, as those of `grader.workloads.mystery` do
    options: dict[str, Any]


@dataclass(frozen=True)
class Kept(OtherForm):
    """A trace of `data/traces`, recorded with stacks."""

    trace: str


@dataclass(frozen=True, kw_only=True)
class CostsLab(AnyLab):
    """The costliest operations of a loop of ours, to be mapped to lines and explained: in a "live" or a "recorded" trace."""

    forms: dict[str, Watched | Kept]  # "cuda": Watched, "traces": Kept
    operations: tuple[Costly, ...]
    together: Together

    graded_by: ClassVar[str] = "grader.kinds.costs"

    @property
    def checks(self) -> tuple[Costly | Together, ...]:
        return (*self.operations, self.together)

    @property
    def starter(self) -> str:
        entry = ", ".join(f'"{key}": ...' for key in KEYS)
        rows = [f"    {check.name}: {{{entry}}}," for check in self.operations]
        return "\n".join(["answers = {", '    "trace": ...,', *rows, '    "share": ...,', "}", ""])


PROJECT = Path(__file__).resolve().parents[2]
LIVE, RECORDED = "live", "recorded"  # which trace answers are about
MOST = 12  # operations that are looked at
CLOSE = 0.85  # an operation with this share of the last one's time could as well be the last
HALF, NEAR = 0.5, 0.05  # the share of the roof that parts the reasons; within 5% of it both are right
LINE = r"(?:(.*[^\s:])\s*:)?\s*(\d{1,6})"  # gpt.py:44
KEYS = ("operation", "line", "bound", "cause")
NO_GPU = (
    "It needs an NVIDIA GPU to record the loop again. No points are given for what was not measured. Without "
    'a GPU, answer for the recorded trace with "trace": "recorded".'
)
NO_PEAKS = (
    "The peaks of this GPU were not measured, so nobody can say what bounds an operation on it. Answer for "
    'the recorded trace, lab.profile("recorded").'
)


# ---------------------------------------------------------------- a trace, and the lines it leads to


@dataclass(frozen=True)
class LoopTrace:
    data: bytes  # of the file
    step_s: float
    about: str  # what ran where, a sentence

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations with most GPU time. Raises TraceError."""
        read = trace.read_bytes(self.data)
        return operations(read, MOST, steps=Steps(read, 1, STEPS))


def recorded(lab: CostsLab) -> LoopTrace:
    """The trace of data/traces."""
    kept = lab.forms["traces"]
    assert isinstance(kept, Kept)
    name, side = kept.trace, recording(kept.trace).side
    about = f"{side['model']}, batch {side['batch']}, recorded on one {side['device']}, torch {side['torch']}."
    return LoopTrace((TRACES / f"{name}.json.gz").read_bytes(), side["step_ms"] / 1e3, about)


def live(lab: CostsLab, progress: Progress = silent) -> LoopTrace:
    """The course's own loop, recorded on this machine's GPU now. Raises ChildError."""
    form = lab.forms["cuda"]
    assert isinstance(form, Watched)
    data, step_s, _ = watch(form, "cuda", form.options, [], progress, with_stack=True)
    return LoopTrace(data, step_s, f"A loop of this course, recorded now on this machine's {machine.gpu_name()}.")


def unmeasured() -> str:
    """Why no loop can be recorded and judged here, or ''."""
    if not machine.has_gpu():
        return NO_GPU
    return "" if machine.gpu_name() in PEAKS else NO_PEAKS


@dataclass(frozen=True)
class Function:
    """A function of the course's source: the file, and its first and last line as they are now."""

    file: str  # "grader/workloads/gpt.py"
    first: int
    last: int

    def holds(self, said: str) -> bool:
        """Whether "gpt.py:44" lies in it; folders may be left out."""
        match = re.fullmatch(LINE, as_place(said))
        if not match:
            return False
        file = match[1] or self.file
        return within(file, self.file) and self.first <= int(match[2]) <= self.last

    def text(self) -> list[tuple[int, str]]:
        """Its lines with their numbers."""
        lines = (PROJECT / self.file).read_text(encoding="utf-8").splitlines()
        return [(number, lines[number - 1]) for number in range(self.first, self.last + 1)]


def function_of(operation: Operation) -> Function | None:
    """The function that asks for an operation, or None without a line of a file of the course.

    Lines move, so it is the nearest of those with the recorded name, else (a lambda, a generator) the one around the line."""
    if not operation.line:
        return None
    file, _, number = operation.line.rpartition(":")
    path = PROJECT / file
    if not path.is_file() or not path.resolve().is_relative_to(PROJECT):
        return None
    line = int(number)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = [(node.name, _place(file, node)) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if named := [place for name, place in places if name == operation.function]:
        return min(named, key=lambda place: max(place.first - line, line - place.last, 0))
    around = [place for _, place in places if place.first <= line <= place.last]
    return max(around, key=lambda place: place.first, default=None)


def _place(file: str, node: ast.FunctionDef) -> Function:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return Function(file, first, node.end_lineno or node.lineno)


def functions(some: Iterable[Operation]) -> list[Function]:
    """The functions that ask for these operations, in order of file and line."""
    places = {place for operation in some if (place := function_of(operation))}
    return sorted(places, key=lambda place: (place.file, place.first))


# ---------------------------------------------------------------- what is right


def causes(operation: Operation) -> tuple[str, ...]:
    """The REASONS that are right for an operation: several near the border between two, none where its trace does not tell."""
    if operation.bound == "launch":
        return ("tiny kernels",)
    if operation.tensor_cores is False:
        return ("slow units",)
    if not operation.least_ns or not operation.gpu_ns:
        return ()
    share = operation.least_ns / operation.gpu_ns
    return tuple(
        name
        for name, right in (("at its roof", share > HALF * (1 - NEAR)), ("below its roof", share < HALF * (1 + NEAR)))
        if right
    )


def costliest(ranked: list[Operation], count: int) -> list[Operation]:
    """The `count` operations with most GPU time, and those so near to the last that another run could change their order."""
    return [o for o in ranked if o.gpu_ns >= CLOSE * ranked[min(count, len(ranked)) - 1].gpu_ns]


def unclear(ranked: list[Operation], count: int) -> str:
    """Why these operations cannot be asked for, or ''."""
    for o in costliest(ranked, count):
        if not function_of(o):
            return f"the trace shows no source line for {o.name}"
        if o.bound not in BOUNDS or not causes(o):
            return f"the trace doesn't show what bounds {o.name}"
    return "" if len(ranked) >= count else "it holds too few operations on the GPU"


# ---------------------------------------------------------------- the grade


@dataclass
class Findings(AnyFindings):
    lab: CostsLab
    answers: dict[Any, Any] = field(default_factory=dict)
    seen: LoopTrace | None = None
    unmeasured: str = ""


def measure(findings: Findings, submission: Submission, plan: Any, limits: Any, progress: Progress) -> None:
    """Read the answers, and the trace that they are about."""
    findings.answers = read_answers(submission, (*BOUNDS, *REASONS, LIVE, RECORDED))
    about = findings.answers.get("trace", ...)
    if about in (..., None):
        return
    if about not in (LIVE, RECORDED):
        raise WrongAnswers(
            f'answers["trace"] is {shown(about)}. It must be "{LIVE}" or "{RECORDED}". lab.profile() says which.'
        )
    if about == LIVE:
        findings.unmeasured = unmeasured()
        if findings.unmeasured:
            return
        findings.free_bytes = machine_is_free(findings.form_name, findings.ranks)
    try:
        findings.seen = live(findings.lab, progress) if about == LIVE else recorded(findings.lab)
        problem = unclear(findings.seen.operations, len(findings.lab.operations))
    except trace.TraceError as error:
        problem = f"it cannot be read: {error}"
    if problem:
        findings.disturbed = f"the loop's trace can't be used, because {problem}."


def judge(findings: Findings, submission: Submission) -> list[CheckResult]:
    lab = findings.lab
    stopped = findings.stopped(UNGRADED) or (findings.unmeasured and (NOT_MEASURED, findings.unmeasured))
    if not stopped and not findings.seen:
        stopped = FAIL, "Not answered yet. Say in `trace` which trace you mean."
    if stopped:
        return [unscored(check, *stopped) for check in lab.checks]
    assert findings.seen
    left = costliest(findings.seen.operations, len(lab.operations))
    checks = []
    for check in lab.operations:
        answer = findings.answers.get(int(check.name), findings.answers.get(check.name, ...))
        meant = _meant(answer, left)
        if meant:
            left.remove(meant)
        checks.append(_judge(check, answer, meant, findings.seen))
    share = sum(o.share for o in findings.seen.operations[: len(lab.operations)])
    return [*checks, _judge_share(findings.answers.get("share", ...), lab.together, share)]


def _meant(answer: Any, left: list[Operation]) -> Operation | None:
    """The operation that an answer names, of those left: among namesakes the one whose other parts fit best."""
    if not isinstance(answer, dict) or not isinstance(answer.get("operation"), str):
        return None
    named = _called(left, answer["operation"])
    return max(named, key=lambda o: sum(_right(o, answer, key) for key in KEYS[1:]), default=None)


def _called(some: list[Operation], said: str) -> list[Operation]:
    """Those with this name; "aten::" may be left out."""
    return [o for o in some if said.strip() in (o.name, o.name.removeprefix("aten::"))]


def _right(o: Operation, answer: dict[Any, Any], key: str) -> bool:
    said = answer.get(key)
    if not isinstance(said, str):
        return False
    if key == "line":
        return _is_line(o, said)
    return _bound(said) == o.bound if key == "bound" else said in causes(o)


def _bound(said: Any) -> Any:
    """One of BOUNDS as it is spelt there, from "compute-bound" as well; anything else as it is."""
    return said.strip().casefold().removesuffix("bound").rstrip(" _-") if isinstance(said, str) else said


def _is_line(o: Operation, said: str) -> bool:
    """The line itself, as it was recorded, or any of its function, as they are now."""
    place = function_of(o)
    return within(as_place(said), o.line or "") or bool(place and place.holds(said))


def _judge(check: Costly, answer: Any, meant: Operation | None, seen: LoopTrace) -> CheckResult:
    if missing := not_answered(check, answer, KEYS):
        return missing
    points, said = 0.0, []
    for key in KEYS:
        given = answer.get(key, ...)
        if given in (..., None):
            reason = "not answered."
        elif key == "operation":
            reason = "right." if meant else _not_among(given, seen)
        elif not meant:
            reason = "counts when the operation is right."
        else:
            reason = "right." if _right(meant, answer, key) else _against(meant, key, given, seen)
        points += getattr(check, key) if reason == "right." else 0
        said.append(f"`{key}`: {reason}")
    evidence: dict[str, Any] = {"answered": {key: shown(answer.get(key, ...)) for key in KEYS}}
    if meant:
        evidence |= {"ms": meant.gpu_ns / 1e6, "share": meant.share, "kernels": meant.launched}
    return scored(check, points, " ".join(said), evidence)


def _not_among(said: Any, seen: LoopTrace) -> str:
    named = _called(seen.operations, said) if isinstance(said, str) else []
    if not named:
        return f"{shown(said)} is none of the operations in the table."
    return f"{shown(said)} takes {plain_number(named[0].gpu_ns / 1e6)} ms per step. Others take more, or you named it already."


def _against(o: Operation, key: str, said: Any, seen: LoopTrace) -> str:
    """What speaks against a wrong part of an answer, without a word about the right one."""
    if key == "line":
        return _against_line(said, seen)
    choices = BOUNDS if key == "bound" else REASONS
    said = _bound(said) if key == "bound" else said
    if not isinstance(said, str) or said not in choices:
        return f"{shown(said)} is none of: {', '.join(choices)}."
    facts = f"{plain_number(o.launched)} kernels of {plain_number(o.gpu_ns / 1e3 / o.launched)} us on average"
    if o.flops:
        facts += f", {plain_number(o.flops / 1e9)} GFLOP"
    if o.bytes_moved:
        facts += f", {plain_number(o.bytes_moved / 1e6)} MB"
    return f"not {said}. Its {plain_number(o.gpu_ns / 1e6)} ms per step are {facts}."


def _against_line(said: Any, seen: LoopTrace) -> str:
    places = functions(seen.operations)
    match = re.fullmatch(LINE, as_place(said)) if isinstance(said, str) else None
    if not match:
        number = re.search(r"\d{1,6}", shown(said))
        example = f"{Path(places[0].file).name}:{number[0] if number else places[0].first}"
        return f'{shown(said)} is not a line. Write a file and a number in quotes, such as "{example}".'
    files = list(dict.fromkeys(place.file for place in places))
    if match[1] and not any(within(match[1], file) for file in files):
        names = ", ".join(Path(file).name for file in files)
        return f"{match[1]} asks for none of this work. lab.code() shows lines of {names}."
    if any(_is_line(o, said) for o in seen.operations):
        return f"{shown(said)} asks for different work."
    return f"{shown(said)} is in none of the functions that lab.code() shows."


def _judge_share(answered: Any, check: Together, right: float) -> CheckResult:
    number = as_number(answered)
    if answered in (..., None):
        return unscored(check, FAIL, "Not answered yet.")
    if number is None:
        return unscored(check, FAIL, no_number(answered))
    if abs(number - right) <= check.within:
        return scored(check, check.points, f"It is {right:.2f}.", {"answered": number})
    reason = f"{number:g} is more than {check.within:g} off."
    if not 0 <= number <= 1:
        reason = f"{number:g} is not a share. Write 0.25 for 25%."
    return scored(check, 0, reason, {"answered": number})
