"""What several kinds share: written answers, recorded traces, and loops of the course that are watched."""

import ast
import json
import math
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from grader import trace
from grader.errors import UserError
from grader.grading.arms import MAX_TRACE, Setup, open_arm
from grader.labs.lab import AnyForm, Check
from grader.measure.blocks import lost_since
from grader.paths import DATA
from grader.result import FAIL, CheckResult, Progress, silent, unscored
from grader.safe_text import beginning
from grader.submission import Submission, defined

HEALTHY = "healthy"  # the answer where no cause stands out: the GPU is busy with what it has to do
UNGRADED = "your answers could not be graded"
NEXT_BEST = 0.5  # of a cause's points, for "compute-bound" or "memory-bound" of a healthy loop: its GPU is busy
TRACES = DATA / "traces"
MOST_PARTS = 5_000  # of answers: a dictionary of keys with one hash takes as long as the square of their number
SHOWN = 400  # characters of what stands there
MOST_PLACES = 12  # that a message lists: as many answers as a lab has, and not a whole program
# gpt.py:44, gpt.py(44): forward, File "gpt.py", line 44
PLACE = re.compile(r"([^\s\"']+\.py)[\"']?[\s,:(#]*(?:lines?|L)?\s*(\d+)", re.IGNORECASE)
CHANGING = ("update", "setdefault", "pop", "popitem", "clear")  # methods of a dictionary
# What others call causes (see the start notebook's table)
SECOND_NAMES = {"data-bound": ("input-bound", "transfer-bound"), "overhead-bound": ("launch-bound",)}


class WrongAnswers(UserError):
    """A cell of answers that cannot be graded; the message says why and where."""


def drawn_sizes(chance: random.Random, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a workload: pairs are drawn between the two, a whole number between whole ones, else one with five places."""

    def between(low: float, high: float) -> float:
        whole = isinstance(low, int) and isinstance(high, int)
        return chance.randint(low, high) if whole else round(chance.uniform(low, high), 5)  # type: ignore[arg-type]

    return {name: between(*size) if isinstance(size, tuple) else size for name, size in sizes.items()}


# ---------------------------------------------------------------- a learner's answers


def read_answers(submission: Submission, words: Iterable[str] = ()) -> dict[Any, Any]:
    """The dictionary of literals that the submission writes to `answers`. words: those that it can hold, for which others are
    taken that differ from one in capitals, spaces and hyphens. Raises WrongAnswers."""
    form = 'Write them out: answers = {"a": {...}, ...}, with texts in quotes and plain numbers.'
    written = _written(submission, form)
    names = defined(submission.source)
    parts = [part for keys, value in written for part in (*keys, value)]
    if not written or written[0][0]:
        raise WrongAnswers(f"The submission has no `answers`. {form}")
    if sum(1 for value in parts for _ in ast.walk(value)) > MOST_PARTS:
        raise WrongAnswers(f"`answers` holds more than {MOST_PARTS:,} names and numbers. {form}")
    if wrong := [each for value in parts for each in _not_written_out(value)]:
        said = [f"{submission.where(part.lineno)}: {_instead(part, names)}" for part in wrong[:MOST_PLACES]]
        if len(wrong) > MOST_PLACES:
            said.append(f"and {len(wrong) - MOST_PLACES} more")
        raise WrongAnswers(
            f"`answers` holds something that is not written out ({', '.join(said)}). Answers are read, never executed. {form}"
        )
    answers: Any = None
    for keys, value in written:
        where = submission.where(value.lineno)
        try:
            answers = _put(answers, [ast.literal_eval(key) for key in keys], ast.literal_eval(_Dicts().visit(value)))
        except LookupError as error:
            raise WrongAnswers(f"`answers` has no entry {error} yet ({where}). {form}") from None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise WrongAnswers(f"`answers` cannot be read ({where}): {error}. {form}") from None
        if not isinstance(answers, dict):
            raise WrongAnswers(f"`answers` is a {type(answers).__name__} ({where}). {form}")
    known = {_plain(word): word for word in words}
    return {key: _respelt(answer, known) for key, answer in answers.items()}


def _written(submission: Submission, form: str) -> list[tuple[list[ast.expr], ast.expr]]:
    """What the top level of a module writes to `answers`, from its last assignment on: the keys below it, and the value there."""
    written: list[tuple[list[ast.expr], ast.expr]] = []
    for node in ast.parse(submission.source).body:
        places: list[list[ast.expr]] = []
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            places = [keys for target in targets if (keys := _keys(target)) is not None]
            for keys in places:
                if not keys:
                    written.clear()
                written.append((keys, node.value))
        if not places and _changes(node):
            line = submission.source.split("\n")[node.lineno - 1].strip()
            raise WrongAnswers(
                f"`answers` is written in a form that is not read ({submission.where(node.lineno)}: {beginning(line, SHOWN)}). {form}"
            )
    return written


def _keys(target: ast.AST) -> list[ast.expr] | None:
    """The keys of `answers[...][...]`, none of `answers` itself; None for anything else."""
    keys: list[ast.expr] = []
    while isinstance(target, ast.Subscript):
        keys.append(target.slice)
        target = target.value
    return keys[::-1] if isinstance(target, ast.Name) and target.id == "answers" else None


def _changes(node: ast.stmt) -> bool:
    """Whether a statement of the top level, which is no plain assignment, changes `answers`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.AnnAssign):
        return False
    changed: ast.expr | None
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Subscript):
            changed = None if isinstance(part.ctx, ast.Load) else part
        else:
            method = part.func if isinstance(part, ast.Call) else None
            changed = method.value if isinstance(method, ast.Attribute) and method.attr in CHANGING else None
        if changed and _keys(changed) is not None:
            return True
    return False


def _put(answers: Any, keys: list[Any], value: Any) -> Any:
    """The answers with a value under these keys; the value itself without any."""
    if not keys:
        return value
    place = answers
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return answers


class _Dicts(ast.NodeTransformer):
    """Writes dict(a=1) as {"a": 1}."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        made = ast.Dict([ast.Constant(str(one.arg)) for one in node.keywords], [one.value for one in node.keywords])
        return ast.copy_location(made, node)


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", "-", word.strip(" \t\n.")).casefold()


def _respelt(said: Any, known: dict[str, str]) -> Any:
    """An answer with the words as they are spelt here."""
    if isinstance(said, dict):
        return {key: _respelt(each, known) for key, each in said.items()}
    if isinstance(said, list):
        return [_respelt(each, known) for each in said]
    return known.get(_plain(said), said) if isinstance(said, str) else said


_LITERAL = (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Constant, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)


def _not_written_out(value: ast.AST) -> list[ast.expr]:
    """The outermost parts of an expression that are no literals, in the order in which they stand."""
    wrong: list[ast.expr] = []
    left = [value]
    while left:  # no recursion: what is nested deeply is a learner's, too
        part = left.pop()
        if isinstance(part, _LITERAL):
            left += ast.iter_child_nodes(part)
        elif isinstance(part, ast.Call) and _is_dict(part):
            left += [one.value for one in part.keywords]
        elif isinstance(part, ast.expr):
            wrong.append(part)
    return sorted(wrong, key=lambda part: (part.lineno, part.col_offset))


def _is_dict(call: ast.Call) -> bool:
    """Whether it is dict(a=..., b=...)."""
    named = isinstance(call.func, ast.Name) and call.func.id == "dict"
    return named and not call.args and all(one.arg for one in call.keywords)


def _instead(part: ast.expr, names: Collection[str]) -> str:
    """What stands there, and what to write. names: those that the submission defines."""
    try:
        text = ast.unparse(part)
    except (ValueError, RecursionError):
        text = f"(a long {type(part).__name__})"
    if isinstance(part, ast.Name) and part.id in names:
        return f"write what {part.id} is"
    if _is_bare(part):
        text = text.replace(" ", "")
        return f'{text} needs quotes: "{text}"'
    text = beginning(text, SHOWN)
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
    return beginning(text.replace("Ellipsis", "..."), SHOWN)


def as_number(said: Any) -> float | None:
    """A finite number that an answer is, or None. True and False are none."""
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    try:
        number = float(said)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def no_number(said: Any) -> str:
    """What to say of an answer that is none."""
    text = said if isinstance(said, str) else ""
    how = (
        " Write 0.25 for 25%."
        if "%" in text
        else " Write it without quotes and unit."
        if re.search(r"\d", text)
        else ""
    )
    return f"{shown(said)} is not a number.{how}"


def as_place(said: str) -> str:
    """A source line as "gpt.py:44", from the forms in which profilers, tracebacks and editors write one; any other text as it is."""
    match = PLACE.search(said[:400].replace("\\", "/"))  # no longer: the search takes the square of the length
    return f"{match[1]}:{match[2]}" if match else said.strip()


def within(said: str, path: str) -> bool:
    """Whether a path, or a line of one, is what was said; folders may be left out, or stand before it."""
    return bool(path) and (f"/{path}".endswith(f"/{said}") or said.endswith(f"/{path}"))


def no_cause(said: Any, causes: Sequence[str]) -> str:
    """What to say of an answer that is none of the causes."""
    known = SECOND_NAMES.get(said, ()) if isinstance(said, str) else ()
    if meant := [cause for cause in known if cause in causes]:
        other = f"the same as {said}" if len(meant) == 1 else f"{said} is both"
        return f"say {' or '.join(meant)} ({other})."
    return f"{shown(said)} is none of: {', '.join(causes)}."


def not_answered(check: Check, answer: Any, keys: Sequence[str]) -> CheckResult | None:
    """The verdict on an answer that is missing or no dictionary, or None."""
    if answer is ... or answer is None:
        return unscored(check, FAIL, f"Not answered yet. The answer needs {', '.join(keys)}.")
    if not isinstance(answer, dict):
        return unscored(check, FAIL, f"The answer is {shown(answer)}. It must be a dictionary with: {', '.join(keys)}.")
    return None


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


# ---------------------------------------------------------------- a loop of the course's own

SOURCE = "def train(job):\n    yield from job.loop\n"
STEPS = 4  # profiled
TIMED_S = 1.0  # of steps without the profiler


def watch(
    form: AnyForm,
    form_name: str,
    options: dict[str, Any],
    readable: list[Path],
    progress: Progress = silent,
    with_stack: bool = False,
) -> tuple[bytes, float, float]:
    """Time, then profile, some steps of a loop of the course's own, which its job brings. Returns the trace as a file's bytes, seconds
    of a step without the profiler, and the share of the time that other programs took. Raises ChildError."""
    progress(0.0, "starting")
    # what runs is ours, so what a kernel without Landlock leaves open is open to nobody
    setup = Setup(form, form_name, options, readable, allow_unconfined=True)
    with open_arm(SOURCE, setup, trusted=True) as arm:
        arm.child.load()
        arm.child.start(1)
        progress(0.3, "warming up")
        arm.run(3)
        arm.step_s = arm.run(3)
        lost = lost_since(arm.child.processes)
        progress(0.5, "timing")
        arm.step_s = arm.run(min(max(4, round(TIMED_S / arm.step_s)), 400))
        progress(0.7, "profiling")
        arm.profile(STEPS, "trace.json", with_stack)
        return arm.child.fetch("trace.json", MAX_TRACE), arm.step_s, lost()
