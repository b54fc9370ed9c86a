"""What a learner's code must keep to, and what is said where it does not."""

import ast
import inspect
import re
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

MODULE = "submission"
MAX_MESSAGE = 100_000  # characters of an error, of which the parent shows what it takes for no flood
NAMED = 5  # parameters in a message


class ContractError(Exception):
    """The message says which part of the contract is broken, and `line`, in the submission's module, where."""

    def __init__(self, message: str, line: int | None = None, kind: str = "contract"):
        super().__init__(message)
        self.line, self.kind = line, kind


def describe(error: BaseException, job_file: str) -> dict[str, Any]:
    """job_file: of a job of one's own, the file whose line is told as well."""
    if type(error).__name__ == "InterpreterError" and error.__cause__:  # Triton's, around what a kernel raised
        error = error.__cause__
    # what Python makes of a StopIteration in a generator has no line of it
    raised = error.__cause__ if isinstance(error.__cause__, StopIteration) else error
    passed = traceback.extract_tb(raised.__traceback__)
    frames = _learners(passed)
    if isinstance(error, ContractError):
        line = frames[-1].lineno if error.line is None and frames else error.line
        return {"kind": error.kind, "message": str(error), "traceback": "", "line": line, "name": ""}
    try:
        message = str(error)[:MAX_MESSAGE]
    except Exception:  # the learner's own __str__
        message = "(its message cannot be shown)"
    out_of_memory = isinstance(error, torch.OutOfMemoryError)
    # torch asks NVML who holds the memory when none is left; where NVML does not start, it raises that in its place
    out_of_memory |= isinstance(error, RuntimeError) and "nvmlInit_v2_() INTERNAL ASSERT FAILED" in message
    kind = "out_of_memory" if out_of_memory else type(error).__name__
    deeper = passed[passed.index(frames[-1]) :] if frames else []
    within = [f.lineno for f in deeper if f.filename == job_file]
    if isinstance(error, SyntaxError):
        text = "".join(traceback.format_exception_only(error))
    else:
        text = "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error))
    if isinstance(error, SyntaxError) and not frames:
        message = str(error.msg)  # str() of it adds the module's file, and a line that is not the cell's
    line = frames[-1].lineno if frames else error.lineno if isinstance(error, SyntaxError) else None
    if caught := re.match(r"Caught (\w+) in DataLoader worker process \d+\.\n", message):
        kind = caught[1]
        message, line = _of_worker(kind, message, line)
    return {
        "kind": kind,
        "message": message,
        "traceback": text[-6000:],
        "line": line,
        "within": within[-1] if within else None,
        "name": str(error.name or "") if isinstance(error, (NameError, ModuleNotFoundError)) else "",
    }


def _learners(passed: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The learner's own frames: they are what helps, and the harness's would only puzzle."""
    return [frame for frame in passed if Path(frame.filename).stem == MODULE]


def of_a_thread(args: threading.ExceptHookArgs) -> None:
    """In place of Python's own words for an error that ends a thread."""
    if args.exc_type is not SystemExit:
        own = traceback.format_list(_learners(traceback.extract_tb(args.exc_traceback)))
        said = traceback.format_exception_only(args.exc_type, args.exc_value)
        print("A thread ended with an error:\n", *own, *said, sep="", end="", file=sys.stderr, flush=True)


def _of_worker(kind: str, message: str, line: int | None) -> tuple[str, int | None]:
    """The message and line of an error in a loader worker, which torch hands over as the text of its traceback."""
    lines = re.findall(rf'^  File ".*/{MODULE}\.py", line (\d+)', message, re.MULTILINE)
    said = re.split(rf"^(?:[\w.]+\.)?{kind}(?:: |$)", message.strip(), flags=re.MULTILINE)[-1]
    return said, int(lines[-1]) if lines else line


def returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether it can hand over no generator: it neither yields nor returns a value. Called, it may train for hours."""
    wrapped = inspect.unwrap(function, stop=inspect.isgeneratorfunction)
    if not inspect.isfunction(wrapped) or inspect.isgeneratorfunction(wrapped) or wrapped.__name__ == "<lambda>":
        return False  # what a lambda returns stands there without the word
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(wrapped)))
    except (OSError, SyntaxError, ValueError):
        return False
    return not any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value)
        for node in ast.walk(tree)
    )


def some(names: list[str]) -> list[str]:
    """The first names, and how many more there are."""
    more = len(names) - NAMED
    return [*names[:NAMED], f"and {more} more"] if more > 0 else names


def type_in_words(value: Any) -> str:
    """For messages: 'a float', 'an int', 'None'."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def checked_loss(loss: Any, step: int, device: torch.device, line: int | None) -> torch.Tensor:
    """A copy of what step `step` yielded, which `line` of the submission did."""
    if type(loss) is not torch.Tensor:
        raise ContractError(
            f"Step {step} yielded {type_in_words(loss)}. Yield the loss as a tensor: `yield loss.detach()`",
            line,
        )
    if loss.dim() or not loss.is_floating_point():
        raise ContractError(
            f"Step {step} yielded a tensor of shape {tuple(loss.shape)} and type {loss.dtype}. Yield one "
            "number, the mean loss of the batch",
            line,
        )
    if loss.device.type not in ("cpu", device.type):
        raise ContractError(f"Step {step} yielded a tensor on the device {loss.device}", line)
    # a copy on the device costs no synchronisation; without it a CUDA graph's next replay would overwrite the value
    return loss.detach().clone()


def as_iterator(entry: str, function: Callable[..., Any], returned: Any) -> Iterator[Any]:
    """The loop that `function` returned: a generator, as a decorated one does too, or an object whose `__iter__` yields."""
    if isinstance(returned, Iterable) and not isinstance(returned, Collection):
        return iter(returned)
    raise no_generator(entry, function, returned)


def standing_at(loop: Any) -> int | None:
    """The line of the submission at which a generator stands; others may pass on what it yields, as decorators of torch do."""
    line = None
    while frame := getattr(loop, "gi_frame", None):
        own = Path(frame.f_code.co_filename).stem == MODULE
        line = frame.f_lineno if own else line
        loop = loop.gi_yieldfrom if own else frame.f_locals.get("gen")
    return line


def no_function(entry: str, takes_job: bool) -> ContractError:
    return ContractError(f"The submission defines no function `{entry}{'(job)' if takes_job else ''}`")


def no_generator(entry: str, function: Callable[..., Any], returned: Any) -> ContractError:
    must = (
        "`yield scores, logits` once for each request"
        if entry == "serve"
        else "`yield loss.detach()` once after each optimizer step"
    )
    line = function.__code__.co_firstlineno if inspect.isfunction(function) else None
    return ContractError(
        f"`{entry}(job)` is not a generator. It must {must}, but it returned {type_in_words(returned)}", line
    )
