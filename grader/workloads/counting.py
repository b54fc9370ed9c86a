"""What a workload counts in the process of the learner's loop, and in its forks.

Only an audit hook and the function that reads the number know where it lies, and a hook cannot be taken away. Whoever walks the
process's memory finds it none the less. What is read from a drive is counted out of reach (see `grader.sandbox.drive`)."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any


def count(event: str, forks: bool = True) -> Callable[[], float]:
    """A function that says how often this audit event came since, in any thread of this process and, with `forks`, of its forks."""
    number, owner = multiprocessing.Value("q", 0), os.getpid()

    def hook(name: str, _: Any) -> None:
        if name == event and (forks or os.getpid() == owner):
            with number.get_lock():
                number.value += 1

    sys.addaudithook(hook)
    return lambda: number.value
