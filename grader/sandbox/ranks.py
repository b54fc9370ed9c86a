"""The launcher of a loop that trains in several processes, one a GPU, which passes requests on and joins the replies.

It is confined as the ranks are, and no more trusted. Losses are the mean over the ranks, the slowest one's time counts; weights,
trace, logs and counts are those of rank 0."""

import contextlib
import io
import json
import os
import select
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from grader.sandbox import child

OF_THE_FIRST = ("prepare", "number", "logs", "counted")  # requests that rank 0 answers alone


@dataclass
class _Rank:
    pid: int
    requests: int  # file descriptors
    replies: int
    buffer: bytes = b""


def serve(requests: int, replies: int, spec: dict[str, Any]) -> None:
    """Answer requests until the parent closes the pipe. `requests` and `replies` are file descriptors."""
    ranks: list[_Rank] = []
    for number in range(spec["ranks"]):
        pipes = [fd for rank in ranks for fd in (rank.requests, rank.replies)]
        ranks.append(_start(spec | {"rank": number}, [requests, replies, *pipes]))
    failed = None  # the error after which the ranks are out of step: no later request can be answered
    with os.fdopen(requests, "rb") as source:
        for line in source:
            request = json.loads(line)
            if failed is None:
                asked = ranks[:1] if request["do"] in OF_THE_FIRST else ranks
                for rank in asked:
                    os.write(rank.requests, line)
                answers = _answers(asked)
                failed = next((answer["error"] for answer in answers if "error" in answer), None)
            answer = {"error": failed} if failed is not None else {"value": _joined(request["do"], answers)}
            os.write(replies, json.dumps({"nonce": request["nonce"], **answer}, allow_nan=False).encode() + b"\n")


def _start(spec: dict[str, Any], others: list[int]) -> _Rank:
    """Fork a rank. No thread exists yet. others: file descriptors that are not the rank's business."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs_in)
        os.close(theirs_out)
        return _Rank(pid, ours_out, ours_in)
    code = 1
    try:
        for fd in (ours_in, ours_out, *others):
            os.close(fd)
        for stream in (sys.stdout, sys.stderr):  # whole lines: the ranks print into one pipe
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(line_buffering=True, write_through=False)
        child.serve(theirs_in, theirs_out, spec)
        code = 0
    except BaseException:  # whatever it was, it is reported and must not unwind into the launcher's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _answers(ranks: list[_Rank]) -> list[dict[str, Any]]:
    """The replies of these ranks in order; an error alone and at once, for the other ranks may wait for the one that failed."""
    found: dict[int, dict[str, Any]] = {}
    poller = select.poll()
    for rank in ranks:
        poller.register(rank.replies, select.POLLIN)
    while len(found) < len(ranks):
        ready = {fd for fd, _ in poller.poll()}
        for number, rank in enumerate(ranks):
            if rank.replies not in ready:
                continue
            data = os.read(rank.replies, 1 << 16)
            if not data:
                _die_like(rank)
            rank.buffer += data
            line, end, rest = rank.buffer.partition(b"\n")
            if end:
                rank.buffer = rest
                found[number] = json.loads(line)
                if "error" in found[number]:
                    return [found[number]]
    return [found[number] for number in range(len(ranks))]


def _die_like(rank: _Rank) -> NoReturn:
    """End as the rank has ended, so that the parent learns how."""
    status = os.waitpid(rank.pid, 0)[1]
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL cannot be handled, and need not be
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _joined(method: str, answers: list[dict[str, Any]]) -> Any:
    values = [answer["value"] for answer in answers]
    if method == "run":
        losses = zip(*(value["losses"] for value in values), strict=True)
        return {
            "losses": [sum(step) / len(step) for step in losses],
            "compiled": max(value["compiled"] for value in values),
        }
    if method == "peak_memory":
        return max((value for value in values if value is not None), default=None)
    return values[0]
