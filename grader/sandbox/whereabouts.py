"""The line at which a loop stands that does not answer, or at which it crashed: told by the loop's process, and believed for a message only."""

import contextlib
import faulthandler
import os
import re
import signal
import time
from pathlib import Path

import psutil

from grader.sandbox.child_error import ChildError
from grader.sandbox.processes import Processes
from grader.sandbox.workspace import Workspace

SIGNAL = signal.SIGUSR2
PATIENCE_S = 2.0
MAX_BYTES = 1 << 16
_LINE = re.compile(rb'File "[^"\n]*/submission\.py", line (\d{1,9}) in ')  # the innermost frame comes first


def tell(home: Path, rank: int) -> None:
    """In the child: write the main thread's stack into the exchange folder whenever it is asked, and the crashing thread's in a crash."""
    file = os.open(home / "exchange" / _file(rank), os.O_WRONLY | os.O_CREAT)  # open for as long as the process lives
    faulthandler.register(SIGNAL, file, all_threads=False)  # C code, so a thread that waits in C tells as well
    faulthandler.enable(file, all_threads=False)


def line(workspace: Workspace, processes: Processes, ranks: int) -> int | None:
    """In the parent: the line of the submission that a child's main thread is at; None where no process tells."""
    with contextlib.suppress(psutil.Error, IndexError):
        first = processes.oldest_first()[0]
        for process in first.children() if ranks > 1 else [first]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(SIGNAL)
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := told(workspace, ranks):
            return found
        time.sleep(0.05)
    return None


def told(workspace: Workspace, ranks: int) -> int | None:
    """In the parent: the line of the submission that a child has told; None where none has."""
    for rank in range(ranks):
        with contextlib.suppress(ChildError):
            if found := _LINE.search(workspace.fetch(_file(rank), MAX_BYTES)):
                return int(found[1])
    return None


def _file(rank: int) -> str:
    return f"stack{rank or ''}"
