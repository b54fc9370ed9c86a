"""What is said of code that failed: in the words, and with the lines, of the learner's notebook."""

import ast
import difflib
import re

from grader.sandbox.child_error import ChildError
from grader.submission import Submission, defined

WAIT = "Wait until the machine is free and check again."
NOTEBOOKS_OWN = ("display", "get_ipython", "In", "Out")  # names that IPython brings
LESS = "The submission needs more memory than it may have. Keep less of it at a time."
NOT_PREPARED = (
    "`prepare` wrote no such file. Let it write into the `folder` that it is given, which is `job.folder` here."
)
NO_GPU = 'This machine has no GPU that the loop may use. Say `job.device`, not "cuda", and pin memory only where its type is "cuda".'
NO_PICKLE = (
    "What a process gets that is not forked is sent to it by name. Define it at the top of a %%submission cell, as a function or a class "
    "with a name, and leave locks, generators and open files out."
)
NO_NETWORK = "A submission has no network."
OWN_FOLDER = (
    "A submission runs in a folder of its own, empty at first. It can read no files of yours, and write only there."
)
MEANINGS = (  # an error's kind or kinds, a pattern in its message, and what both mean here
    ("contract", "defines no function", "Define it in a cell that begins with %%submission."),
    ("EOFError", "EOF when reading a line", "Nobody can type anything while a submission runs. Leave `input()` out."),
    ("BdbQuit", "", "Nobody can type anything while a submission runs. Leave the debugger out."),
    ("SystemExit", "", "Leave out what ends the program. The loop must go on for as long as it is asked."),
    ("FileNotFoundError", "directory: '/.*/prepared/", NOT_PREPARED),
    ("FileNotFoundError", "directory: '[^/]", OWN_FOLDER),
    ("PermissionError", "Errno 13", OWN_FOLDER),
    ("RuntimeError", "strerror: Permission denied|Parent directory .* does not exist", OWN_FOLDER),  # torch.save's
    ("RuntimeError", "can't allocate memory", LESS),
    ("MemoryError", "", LESS),
    ("RuntimeError", "no NVIDIA driver", NO_GPU),
    ("AssertionError", "not compiled with CUDA", NO_GPU),
    ("AcceleratorError", "driver version is insufficient", NO_GPU),
    ("RuntimeError", "expected device|on the same device", "Move both to `job.device`."),
    (
        "RuntimeError",
        "generator raised StopIteration",
        "`next()` found nothing more. `job.batches` never ends. Begin anew with what does.",
    ),
    (
        "RuntimeError",
        "does not require grad",
        "The loss hangs on no weight. Look for `.detach()`, `.item()` or `torch.no_grad()` before `backward()`.",
    ),
    (
        "RuntimeError",
        "through the graph a second time",
        "Call `backward()` once for each forward pass, and carry nothing from one step to the next that is not detached.",
    ),
    (
        "RuntimeError",
        "modified by an inplace operation",
        "Something that `backward()` needs was written over. Write `x = x + y` in place of `x += y`, or change it after `backward()`.",
    ),
    (
        "RuntimeError",
        "DataLoader worker .pid",
        "The worker crashed or was killed. With `num_workers=0` the same code runs in the training process, and its error shows.",
    ),
    ("AttributeError|PicklingError", "pickle|get local object", NO_PICKLE),
    ("TypeError", "cannot pickle", NO_PICKLE),
    (
        "RuntimeError",
        "active drivers",
        "Without a GPU, Triton cannot try configurations out. Give `autotune` one of them, or leave it out.",
    ),
    ("URLError|gaierror|ConnectionError", "name resolution", NO_NETWORK),
)
NO_FOLDER = "Make a folder before you write into it."
UNFIT = "Waiting doesn't help. `grader doctor` says what this machine can grade."


def is_machines(error: ChildError, submission_there: bool) -> bool:
    """Whether it was the machine that failed. Starter and reference solution are ours: when they fail, the learner's code is
    not the reason, unless it gave them weights that cannot be read, or left them without memory."""
    theirs = ("weights", "out_of_memory") if submission_there else ("weights",)
    return error.trusted and error.kind not in theirs


def advice(error: ChildError) -> str:
    """What to do where this error disturbed a grade."""
    if error.kind == "small_shared":
        return ""  # it says so itself
    raised_again = error.trusted and error.kind[:1].isupper()  # the name of an exception
    return UNFIT if raised_again else WAIT


def explain(error: ChildError, submission: Submission) -> str:
    """The message with its place in the notebook, and with what it most likely means."""
    text = submission.locate(error.message.rstrip())
    where = submission.where(error.line)
    if where and error.kind in ("timeout", "crowded"):
        text += f" It was at {where}."
    elif where:
        text = f"{text.removesuffix('.')} ({where})."
    elif text[-1:] not in (".", "!", "?", ")"):
        text += "."
    return " ".join(filter(None, (text, _what_to_do(error, submission))))


def _what_to_do(error: ChildError, submission: Submission) -> str:
    """What the error means in a submission; nothing where it says so itself."""
    if error.kind == "NameError" and "is not defined" in error.message:
        return _missing_name(error.name, submission)
    if error.kind == "ModuleNotFoundError" and error.name:
        package, _, inside = error.name.partition(".")
        if inside:
            return f"The `{package}` that is installed here has no module of this name."
        return (
            f"`{package}` is not installed here, and a file beside the notebook is not part of the submission. Do without the "
            "package, or put the file's code into a %%submission cell."
        )
    if error.kind == "TypeError" and error.asked == "start" and error.line is None:  # before the first of its lines
        return "It is called with one argument, the job."
    if error.kind == "FileNotFoundError" and error.asked == "prepare" and "/prepared/" in error.message:
        return NO_FOLDER
    return next(
        (means for kind, sign, means in MEANINGS if error.kind in kind.split("|") and re.search(sign, error.message)),
        "",
    )


def _missing_name(name: str, submission: Submission) -> str:
    if name in NOTEBOOKS_OWN:
        return f"`{name}` belongs to notebooks, and a submission runs as a module without one. Leave it out, or print."
    if name == "job":
        return "The job is what your function is called with, so `job` is only known inside of it."
    if name in submission.elsewhere:
        return (
            f"`{name}` is defined in a cell that is not part of the submission. Only cells that begin with %%submission are. "
            "Move the definition into one."
        )
    if name in defined(submission.source):
        return f"`{name}` is defined further down. Move its definition above the line that uses it."
    names = _names(submission.source)
    if name in names:
        return f"`{name}` is only known inside the function that sets it. Hand it over as an argument."
    if meant := difflib.get_close_matches(name, names, 1, cutoff=0.75):
        return f"Did you mean `{meant[0]}`?"
    return (
        "Is it misspelt, or is its import missing? Only cells that begin with %%submission are part of the submission. Put everything "
        "that they need into such cells."
    )


def _names(source: str) -> list[str]:
    """All names that a module's code binds: variables, arguments, functions, classes and imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return sorted(names)


def with_details(output: str, error: ChildError, submission: Submission) -> str:
    """What the submission printed, followed by the error's traceback (or its last words, unless they are there)."""
    said = output if error.details in output else f"{output.rstrip()}\n\n{error.details}".lstrip("\n")
    return submission.locate(said)
