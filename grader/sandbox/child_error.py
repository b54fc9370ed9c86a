"""Why a child failed, in words for the learner."""

from collections.abc import Callable
from typing import Any

from grader.safe_text import beginning

TOLD = ("contract", "weights", "out_of_memory")  # kinds that a child tells; others are names of exceptions
# characters of an error, fewer than a report shows; an honest one has some 2,000 at most (torch.compile)
MAX_MESSAGE = 5_000


class ChildError(Exception):
    """The code in a child failed or broke the contract."""

    def __init__(
        self,
        message: str,  # for the learner
        details: str = "",  # a traceback
        kind: str = "",
        line: int | None = None,
        name: str = "",  # that is not defined
        within: int | None = None,  # the line of the job's own file that `line` led to
        trusted: bool = False,  # it was the starter's child, not the learner's
    ):
        super().__init__(message)
        self.message, self.details, self.kind, self.line, self.name = message, details, kind, line, name
        self.within, self.trusted = within, trusted
        self.asked = ""  # the request: "load", "start", ...


def slowed(whom: str) -> ChildError:
    return disturbed(f"Another program changed on which cores {whom} runs, or how soon.")


def disturbed(message: str) -> ChildError:
    """Another process did something: nothing is measured, and nobody blamed."""
    return ChildError(message, kind="freeze", trusted=True)


def of_the_learner(error: Any, method: str, budget: int | None, trusted: bool) -> ChildError:
    get: Callable[[str], str] = lambda key: str(error.get(key) or "") if isinstance(error, dict) else ""  # noqa: E731
    kind, message = get("kind")[:200], beginning(get("message"), MAX_MESSAGE)
    line, within = (
        error.get(key) if isinstance(error, dict) and isinstance(error.get(key), int) else None
        for key in ("line", "within")
    )
    if kind in ("contract", "weights"):
        text = message
    elif kind == "out_of_memory" and trusted:
        text = (
            "CUDA ran out of memory in a loop that the submission is compared with. Both share the GPU "
            f"meanwhile. Keep fewer batches on the device, and free what you don't need. {message}"
        )
    elif kind == "out_of_memory" and budget:
        text = f"The submission needs more GPU memory than the {budget / 1e9:.2f} GB that it may use. {message}"
    elif kind == "out_of_memory":
        text = (
            "CUDA ran out of memory in the submission. Two loops share the GPU while they are compared. Keep "
            f"fewer batches on the device, and free what you don't need. {message}"
        )
    else:
        where = {
            "load": "while it was imported",
            "prepare": "in prepare(dataset, folder)",
            "number": "in benchmark(job)",
            "start": "when its loop was called",
            "weights": "in job.weights()",
            "result": "when it was called",
            "again": "when its kernel was launched on other inputs",
            "calls": "when its kernel was launched on other inputs",
        }.get(method, "in its loop")
        text = f"{'It' if trusted else 'The submission'} raised {kind or 'an error'} {where}"
        text += f": {message}" if message else ""  # sys.exit() and a bare assert have none
    if kind not in TOLD and not kind[:1].isupper():  # an exception may be called as what only the parent can know
        kind = ""
    return ChildError(text, get("traceback")[:6000], kind, line, get("name")[:200], within)
