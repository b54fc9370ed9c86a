"""Grades answers to questions about traces. They are read as literals, never executed; what is right is computed here from
the trace and from the side file that says how it was recorded."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from grader import trace
from grader.errors import UserError
from grader.grading.evidence import AnyFindings
from grader.labs.kinds import HEALTHY, AnswersLab, Cause, Number, Place, Question
from grader.labs.lab import CAUSES
from grader.result import FAIL, PASS, CheckResult, Progress, unscored
from grader.submission import Submission
from grader.trace import catalogue
from grader.trace.diagnosis import STALLS
from grader.trace.words import plain_number

TRACES = Path(__file__).resolve().parents[1] / "data" / "traces"
GUILTY = 0.25  # a line that makes so large a share of the waits is a right answer
NEXT_BEST = (
    0.5  # of a cause's points, for "compute-bound" or "memory-bound" of a healthy loop: the GPU is busy, they see
)


# ---------------------------------------------------------------- a recorded trace


@dataclass(frozen=True)
class Recording:
    """A recorded trace, with what its side file says of it."""

    side: dict[str, Any]
    analysis: trace.Analysis

    @property
    def cause(self) -> str:
        """The right answer: the planted cause, or "healthy"."""
        return f"{self.side['cause']}-bound" if isinstance(self.side["cause"], str) else HEALTHY

    @property
    def step_ms(self) -> float:
        return self.side["step_ms"]

    def ms(self, *parts: str) -> float:
        """Milliseconds of a step that these parts of it take (see `grader.trace.PARTS`)."""
        return sum(self.analysis.breakdown[part] for part in parts) / 1e6


@lru_cache(maxsize=4)
def recording(name: str) -> Recording:
    """The trace `name` of data/traces."""
    side = json.loads((TRACES / f"{name}.json").read_text(encoding="utf-8"))
    recorded = trace.read(TRACES / f"{name}.json.gz")
    return Recording(side, trace.analyse(recorded, step_ns=side["step_ms"] * 1e6))


def value(found: Recording, name: str) -> float:
    """A number about a recording: a metric of its trace, or
    "best_ms": the step time, ms, if what holds the loop back vanished;
    "matmul": share of the step that the GPU spends in matrix products and convolutions;
    "tflops": 10^12 floating-point operations per second of the costliest operation;
    "hidden": share of the time of communication with a kernel beside it."""
    if name == "best_ms":
        return found.analysis.diagnosis.what_if_step_ms
    if name == "matmul":
        return found.ms("tensor_core", "matmul") / found.step_ms
    if name == "tflops":
        costliest = found.analysis.operations[0]
        return costliest.flops / costliest.gpu_ns / 1e3
    if name == "hidden":
        metrics = found.analysis.metrics
        return 1 - metrics.comm_exposed_ns / metrics.comm_ns
    return catalogue.value(found.analysis.metrics, name)


# ---------------------------------------------------------------- a learner's answers


def read_answers(submission: Submission) -> dict[Any, Any]:
    """The dictionary that the submission assigns to `answers`, literals only. Raises UserError, which says what is wrong
    and where."""
    form = 'Write them out: answers = {"a": {...}, ...}, with texts in quotes and plain numbers.'
    found = None
    for node in ast.parse(submission.source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "answers" for target in targets):
            found = node
    if found is None or found.value is None:
        raise UserError(f"The submission has no `answers`. {form}")
    wrong = _not_written_out(found.value)
    if wrong:
        said = [f"{submission.where(part.lineno)}: {_instead(part)}" for part in wrong[:MOST_PLACES]]
        if len(wrong) > MOST_PLACES:
            said.append(f"and {len(wrong) - MOST_PLACES} more")
        raise UserError(
            f"`answers` holds what is not written out ({'; '.join(said)}). Answers are read, never executed. {form}"
        )
    try:
        answers = ast.literal_eval(found.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        where = submission.where(found.lineno)
        raise UserError(f"`answers` cannot be read ({where}): {error}. {form}") from None
    if not isinstance(answers, dict):
        raise UserError(f"`answers` is a {type(answers).__name__} ({submission.where(found.lineno)}). {form}")
    return answers


_LITERAL = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)
MOST_PLACES = 12  # that a message lists: as many answers as a lab has, and not a whole program


def _not_written_out(value: ast.AST) -> list[ast.expr]:
    """The parts of an expression that are no literals, the outermost of each, in the order in which they stand."""
    wrong, left = [], [value]
    while left:  # no recursion: what is nested deeply is a learner's, too
        part = left.pop()
        if isinstance(part, _LITERAL):
            left += ast.iter_child_nodes(part)
        elif isinstance(part, ast.expr):
            wrong.append(part)
    return sorted(wrong, key=lambda part: (part.lineno, part.col_offset))


def _instead(part: ast.expr) -> str:
    """What stands there, and what to write."""
    try:
        text = ast.unparse(part)
    except (ValueError, RecursionError):
        text = f"(a long {type(part).__name__})"
    if _is_bare(part):
        text = text.replace(" ", "")
        return f'{text} needs quotes: "{text}"'
    text = _shortened(text)
    return f"write the number that {text} comes to" if isinstance(part, ast.BinOp) else f"{text} is no text or number"


def _is_bare(part: ast.AST) -> bool:
    """Whether it is a text that lacks its quotes: data_wait, launch-bound, counted.loads."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub):
        return isinstance(part.left, ast.Name) and isinstance(part.right, ast.Name)
    return isinstance(part, ast.Name) or (isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name))


def shown(said: Any) -> str:
    """A learner's answer as text for a message, shortened; an int of thousands of digits cannot even be printed."""
    if said is ...:
        return "not answered"
    try:
        text = repr(said)
    except (ValueError, RecursionError):
        text = f"(a huge {type(said).__name__})"
    return _shortened(text.replace("Ellipsis", "..."))


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:400]} [cut: {len(text):,} characters]"


def as_number(said: Any) -> float | None:
    """A finite number that an answer is, or None. True and False are none."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    try:
        number = float(said)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


# ---------------------------------------------------------------- the grade


@dataclass
class Findings(AnyFindings):
    lab: AnswersLab
    answers: dict[Any, Any] = field(default_factory=dict)


def measure(found: Findings, submission: Submission, plan: Any, limits: Any, progress: Progress) -> None:
    """Read the answers; nothing is measured."""
    try:
        found.answers = read_answers(submission)
    except UserError as error:
        found.fatal = str(error)
        return
    names = [question.name for question in found.lab.questions]
    unknown = [key for key in found.answers if key not in names]
    if unknown:
        found.warnings.append(f"answers[{shown(unknown[0])}] answers no question; there are {', '.join(names)}.")


def judge(found: Findings, submission: Submission) -> list[CheckResult]:
    if found.fatal:
        return [unscored(check, FAIL, "Not graded: see above.") for check in found.lab.questions]
    return [_judge(question, found.answers.get(question.name, ...)) for question in found.lab.questions]


def _judge(question: Question, answer: Any) -> CheckResult:
    keys = [part.key for part in question.parts]
    if answer is ... or answer is None:
        return unscored(question, FAIL, f"Not answered yet. Asked is: {', '.join(keys)}.")
    if not isinstance(answer, dict):
        return unscored(
            question, FAIL, f"The answer is {shown(answer)}. It must be a dictionary with: {', '.join(keys)}."
        )
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
    passed = points >= question.points
    hint, *deeper = ("",) if passed else question.hints
    status = PASS if passed else FAIL
    return CheckResult(
        question.name, question.title, status, round(points, 2), question.points, " ".join(said), hint, evidence, deeper
    )


def judge_part(part: Cause | Number | Place, said: Any, about: Recording) -> tuple[float, str]:
    """(share of its points, why), for one entry of an answer. What is wrong is told what in the trace speaks against it."""
    if said is ... or said is None:
        return 0, "not answered."
    if isinstance(part, Cause):
        return judge_cause(said, about)
    return (_judge_place if isinstance(part, Place) else _judge_number)(part, said, about)


def judge_cause(said: Any, about: Recording) -> tuple[float, str]:
    if said == about.cause and isinstance(said, str):
        return 1, "right."
    if said not in (*CAUSES, HEALTHY):
        return 0, no_cause(said, (*CAUSES, HEALTHY))
    if about.cause == HEALTHY and said in ("memory-bound", "compute-bound"):
        return NEXT_BEST, f"half right. Its GPU is busy, but is there anything to fix? {against(said, about)}"
    return 0, f"not {said}: {against(said, about)}"


# What others call them (see the start notebook's table).
SECOND_NAMES = {"data-bound": ("input-bound", "transfer-bound"), "overhead-bound": ("launch-bound",)}


def no_cause(said: Any, causes: Sequence[str]) -> str:
    """What to say of an answer that is none of the causes."""
    meant = SECOND_NAMES.get(said, ()) if isinstance(said, str) else ()
    if meant := [cause for cause in meant if cause in causes]:
        other = f"the same as {said}" if len(meant) == 1 else f"{said} is both"
        return f"say {' or '.join(meant)} ({other})."
    return f"{shown(said)} is none of: {', '.join(causes)}."


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
        return f"matrix products and convolutions take {part(products)}, {plain_number(kernels - products)} are left for the rest."
    if said == "compute-bound":
        return (
            f"matrix products and convolutions take {part(products)}, and {cores:.0%} of that time is on tensor cores, "
            f"{metrics.half_share or 0:.0%} with 16-bit inputs."
        )
    if said == HEALTHY:
        if products < 0.5 * step:
            return f"the GPU is busy, but in matrix products and convolutions only {part(products)}."
        return f"the GPU is busy, but {cores:.0%} of its time in matrix products is on tensor cores."
    cost = part(about.ms(*STALLS[said.removesuffix("-bound")]))
    return {
        "input-bound": f"the GPU is idle while the host waits for data for {cost}.",
        "transfer-bound": f"copies with no kernel beside them, and the GPU waiting for them, take {cost}.",
        "sync-bound": f"the host waits for the GPU {metrics.syncs or 0:g} times a step, and the GPU is idle after that for {cost}.",
        "launch-bound": f"the GPU is idle because the host has not launched the next kernel yet for {cost}.",
        "communication-bound": f"communication with nothing beside it takes {cost}.",
    }[said]


def _judge_number(part: Number, said: Any, about: Recording) -> tuple[float, str]:
    number, right = as_number(said), value(about, part.value)
    if number is None:
        return 0, f"{shown(said)} is not a number."
    allowed = part.within if part.share else part.within * abs(right)
    if abs(number - right) <= allowed:
        return 1, "right."
    steps = about.analysis.metrics.steps
    if part.share and not 0 <= number <= 1:
        return 0, f"{number:g} is no share: write 0.25 for 25%."
    if part.value == "gpu_idle_unprofiled" and abs(number - about.analysis.metrics.gpu_idle) <= allowed:
        traced = about.side["step_ms_traced"]
        return 0, (
            f"{number:g} is how idle the GPU is in the trace, whose steps the profiler stretched to {plain_number(traced)} ms. Without "
            f"it a step takes {plain_number(about.step_ms)} ms, and the GPU works as long as before."
        )
    if steps and right and abs(number / steps - right) <= allowed:
        return 0, f"{number:g} is for {steps} steps; asked is one step."
    return 0, f"{number:g} is more than {f'{part.within:g}' if part.share else f'{part.within:.0%}'} off."


def _judge_place(part: Place, said: Any, about: Recording) -> tuple[float, str]:
    metrics = about.analysis.metrics
    if not isinstance(said, str):
        return 0, f"{shown(said)} is not a text."
    if part.lines:
        lines = metrics.sync_lines or {}
        made = sum(count for line, count in lines.items() if _same_line(said, line))
        if made >= GUILTY * metrics.syncs:
            return 1, f"right: {made:g} of the {metrics.syncs:g} waits of a step."
        if made:
            return 0, f"{shown(said)} makes only {made:g} of the {metrics.syncs:g} waits of a step."
        return 0, f"{shown(said)} makes the host wait nowhere in the trace (a line is written like planted.py:41)."
    spent = {phase: times["host_ns"] / 1e6 for phase, times in (metrics.phases or {}).items()}
    if said not in spent:
        return 0, f"{shown(said)} is no phase of this trace: {', '.join(spent)}."
    if said == max(spent, key=spent.__getitem__):
        return 1, "right."
    return 0, f"the host spends {plain_number(spent[said])} of {plain_number(sum(spent.values()))} ms in {said}."


def _same_line(said: str, line: str) -> bool:
    """Whether "planted.py:41" is meant by what was said; folders may be left out."""
    said = said.strip().replace(" ", "")
    return line == said or line.endswith(f"/{said}") or said.endswith(f"/{line}")


def unanswered(questions: Iterable[Question]) -> str:
    """The starter of a lab with these questions: source text."""
    rows = [
        f'    "{q.name}": {{{", ".join(f"{chr(34)}{part.key}{chr(34)}: ..." for part in q.parts)}}},' for q in questions
    ]
    return "\n".join(["answers = {", *rows, "}", ""])
