"""The process that grades, `python -m grader.classroom.process`: a job comes in as a line of JSON (a `Job` or a `Call`),
progress and the result go out as lines of JSON, and it waits for the next one.

Started ahead, it has imported what a grade needs. It ends with whoever started it, and its children end with it."""

import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

Reply = Callable[[dict[str, Any]], None]


def main() -> None:
    # a stray print must not be taken for a reply
    replies = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)

    def reply(what: dict[str, Any]) -> None:
        replies.write(json.dumps(what, allow_nan=False) + "\n")  # else keeping it would fail, and end the class

    from grader.grade import grade  # noqa: F401  (what it imports takes a second)
    from grader.sandbox.fork_server import fork_server

    fork_server().wait_ready()  # it imports torch
    reply({"ready": True})
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_take, args=(jobs,), daemon=True).start()
    while True:
        try:
            _do(jobs.get(), reply)
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})
            raise  # the traceback is for whoever reads the log; the next job gets another process


def _do(line: str, reply: Reply) -> None:
    from grader import machine
    from grader.classroom.submissions import Job
    from grader.grade import grade
    from grader.grading.forms import choose_device, choose_form
    from grader.labs import get

    if "function" in (asked := json.loads(line)):
        module, _, name = asked["function"].partition(":")
        result = getattr(importlib.import_module(module), name)(**asked["arguments"])
        return reply({"result": result, "machine": machine.key(choose_device(asked["device"]))})
    job = Job.from_json(line)
    lab = get(job.lab)
    result = grade(
        job.submission,
        lab,
        device=job.device,
        quick=job.quick,
        plan=job.plan,
        allow_unconfined=job.allow_unconfined,
        progress=lambda share, what: reply({"share": share, "what": what}),
    )
    reply({"result": result.to_dict(), "machine": machine.key(choose_form(lab, job.device))})


def _take(jobs: queue.Queue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(1)  # the other end is closed: whoever started this process is done with it, or dead


if __name__ == "__main__":
    main()
