"""What the tests of the sandbox and of the grade share: a lab that takes a second, and looks at what is left behind."""

import contextlib
import ctypes
import mmap
import os
import random
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from grader import labs
from grader.grade import grade
from grader.grading.arms import environment_of
from grader.grading.forms import prepared
from grader.labs.lab import AtLeast, Form, Lab, Parity
from grader.look import peek
from grader.measure.blocks import Arm, Plan
from grader.result import FAIL, NOT_MEASURED, PASS, Result
from grader.sandbox.parent import Child
from grader.sandbox.setting import Limits, Setting
from grader.sandbox.workspace import Workspace
from grader.submission import MAGIC, Submission, from_cells
from grader.trace import Metrics

GPT = Form(
    workload="grader.workloads.gpt",
    options={"layers": 2, "width": 64, "heads": 4, "length": 64, "batch_size": 8, "lr": 1e-3},
    data="text",
    minimum_gain=2.0,
    noise=0.02,
    parity=Parity(steps=8, loss=0.01, norm=0.01, cosine=0.99, drift=0.05, held_out=0.1),
    threads=1,
)
MARKER = f"grader-test-{os.getpid()}"  # in the command line of what has no environment left to tell it by
IS_ROOT = os.geteuid() == 0
LAB = replace(labs.get("3a_precision"), forms={"cpu": GPT, "cuda": GPT})
PLAN = Plan(block_s=0.1, block_steps=2, min_pairs=2, max_pairs=2, profile_steps=2)
# seconds: far above what anything here takes, on a busy machine as well
LIMITS = Limits(load=60, first_step=60, step=60)


def submission(*cells: str) -> Submission:
    """A notebook of these %%submission cells, behind another cell."""
    return from_cells(["from grader import labs", *(f"{MAGIC}\n{text}" for text in cells)])


def grade_cells(*cells: str, lab: Lab = LAB, **options: Any) -> Result:
    return grade(submission(*cells), lab, **{"device": "cpu", "plan": PLAN, "limits": LIMITS} | options)


def slow_starter(monkeypatch: pytest.MonkeyPatch) -> str:
    """Waits for 200 ms a step, the loop that it returns for 10: many times as fast, whatever else the cores do."""

    def waiting(ms: int) -> str:
        waits = f"        time.sleep({ms / 1000})\n        loss.backward()"
        return "import time\n" + LAB.starter.replace("        loss.backward()", waits)

    fast, slow = waiting(10), waiting(200)  # of a step that computes for a few
    monkeypatch.setattr(type(LAB), "starter", property(lambda self: slow))
    return fast


def measured_score(result: Result) -> float:
    """Points for what was measured: all but the prediction."""
    return sum(c.points for c in result.checks if c.status != NOT_MEASURED and c.name != "prediction")


@contextlib.contextmanager
def running(
    source: str, form: Form = GPT, limits: Limits = LIMITS, device: str = "cpu", **options: Any
) -> Iterator[Child]:
    """A confined child that holds `source`, not yet loaded."""
    workload_options, readable = prepared(form)
    workspace = Workspace(source)
    try:
        setting = Setting(
            workload=form.workload,
            options=workload_options,
            device=device,
            readable=readable,
            threads=form.threads,
            environment=environment_of(form),
            limits=limits,
            serves=form.serves,
            **options,
        )
        with Child(workspace, setting) as child:
            yield child
    finally:
        workspace.remove()


@contextlib.contextmanager
def warmed_up(source: str, steps: int = 2) -> Iterator[Arm]:
    """The arm of a confined child that holds `source`, after its first steps."""
    with running(source) as child:
        child.load()
        child.start(1)
        arm = Arm(child)
        arm.warm_up(steps)
        yield arm


def first(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """Parameters of a test: so many of them in each run, the others in `make test-all`."""
    parameters = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*each, marks=() if n < number else pytest.mark.slow) for n, each in enumerate(parameters)]


def loop(body: str, top: str = "") -> str:
    """A submission that runs `body` before its first step; it yields constant losses and trains nothing."""
    indented = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return f"import torch\n{top}\n\ndef train(job):\n{indented}    while True:\n        yield torch.ones(())\n"


def eventually(condition: Callable[[], Any], seconds: float = 600.0) -> Any:
    """The first true value of `condition`, or its last one after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def in_memory(file: str | Path) -> float:
    """The share of a file that the system keeps in memory (0 to 1). To be asked by its owner: others are told 1."""
    size = os.path.getsize(file)
    with (
        open(file, "rb") as opened,
        mmap.mmap(opened.fileno(), size, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE) as pages,
    ):
        states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states) == 0
    return sum(state & 1 for state in states) / len(states)


def inhabitants(folder: str | Path) -> list[psutil.Process]:
    """Processes that work in `folder`: children of the sandbox, however far they moved from their parents."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.cwd().startswith(f"{folder}/") or MARKER in process.cmdline():
                found.append(process)
    return found


def free_port() -> int:
    """For a server that starts later. It lies below those that the kernel gives to whoever asks for any, who would take it meanwhile."""
    for port in random.SystemRandom().sample(range(15_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def workspaces() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("grader-*"))


def said(result: Result) -> str:
    """All that a grade says, as one text."""
    return " ".join([result.fatal, *(check.reason for check in result.checks)])


def untimed(lab: Lab) -> Lab:
    """The lab on a CPU where nothing is timed: its first steps are compared, and that is all."""
    return replace(lab, forms={"cpu": replace(lab.forms["cpu"], minimum_gain=None)})


def traced_only(source: str) -> str:
    """The same with graphs that are made and not compiled: on a CPU Inductor takes from half a minute to several."""
    return re.sub(r"torch\.compile\(([\w.]+)(?=[,)])", r'torch.compile(\1, backend="eager"', source)


def assert_rejected(result: Result, words: str) -> None:
    """No points, for a reason that holds these words."""
    assert words in said(result) and result.score == 0
    assert result.fatal or FAIL in {check.status for check in result.checks if not check.max_points}


def assert_told_apart(faults: dict[str, str], honest: dict[str, str], graded: Callable[[str], Result]) -> None:
    """The sources of `faults` are another training, those of `honest` the same; by what each is."""
    for what, source in faults.items():
        result = graded(source)
        assert result.fatal or result.check("parity").status == FAIL, what
    for source, what in {traced_only(source): what for what, source in honest.items()}.items():  # each once
        result = graded(source)
        assert not result.fatal and result.check("parity").status == PASS, f"{what}: {said(result)}"


def looked(lab: Lab, source: str, device: str) -> Metrics:
    """What `peek` counts of a loop that runs."""
    seen = peek(Submission(source), lab, device=device)
    assert seen is not None and not seen.message, seen
    return seen.metrics


def assert_each_cause_is_gone(lab: Lab, starter: Metrics, solution: Metrics) -> None:
    """Every check of the trace tells the starter from the solution."""
    for check in lab.trace:
        before, after = getattr(starter, check.metric), getattr(solution, check.metric)
        assert check.wanted.passes(after) and not check.wanted.passes(before or 0), check.name
        assert isinstance(check.wanted, AtLeast) or before > check.wanted.none_at > check.wanted.bound, check.name
