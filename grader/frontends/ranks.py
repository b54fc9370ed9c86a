"""Processes that train together, for the lessons: a function of a notebook runs in all of them at once."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from grader import paths
from grader.devices import NO_MULTICAST
from grader.frontends import lesson


class Ranks:
    """`ranks(function, ...)` runs a function of the notebook in every rank, and gives what each of them returned, as JSON values.

    The function's first argument is the rank, a `Me`. It finds torch, and imports whatever else it needs.
    cuda: whether each has a GPU and talks by NCCL; otherwise each has one thread of the CPU and talks by gloo."""

    def __init__(self, count: int, cuda: bool):
        folder = lesson.scratch_folder()
        # off where nobody asked for it
        environment = {
            **NO_MULTICAST,
            **paths.with_this_package(),
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }
        self.log = folder / "log"
        command = [sys.executable, "-m", "grader.frontends.ranks", "nccl" if cuda else "gloo", str(folder / "store")]
        with self.log.open("a") as log:
            self.processes = [
                subprocess.Popen(
                    [*command, str(count), str(rank)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                )
                for rank in range(count)
            ]
        atexit.register(self.end)

    def __call__(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Raises RuntimeError with the traceback of a rank that failed; all ranks have ended then."""
        request = {"source": inspect.getsource(function), "call": function.__name__, "arguments": arguments}
        for process in self.processes:
            assert process.stdin
            with contextlib.suppress(BrokenPipeError):  # it has ended, and gives no answer either
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
        values = []
        for process in self.processes:
            assert process.stdout
            line = process.stdout.readline()
            answer = json.loads(line) if line else {"error": "a rank ended:\n" + self.log.read_text()[-2000:]}
            if "error" in answer:
                self.end()  # the others may wait for it: run the cell that starts the ranks again
                raise RuntimeError(answer["error"])
            values.append(answer["value"])
        return values

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


class Me:
    """What a function that runs in a rank is given."""

    def __init__(self, rank: int, world: int, device: torch.device):
        self.rank, self.world, self.device = rank, world, device

    def finished(self) -> None:
        """Wait for the GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], calls: int, repeats: int = 5) -> float:
        """Seconds of a call in the fastest of `repeats` blocks, since other programs only add. The ranks begin each together; one more comes first."""
        times = []
        for _ in range(repeats + 1):
            dist.barrier()
            self.finished()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            self.finished()
            times.append((time.perf_counter() - begin) / calls)
        return min(times[1:])


def serve(backend: str, store: str, world: int, rank: int) -> None:
    """One rank: functions come in, a line of JSON each, and what they return goes out."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, store=dist.FileStore(store, world), rank=rank, world_size=world)
    me = Me(rank, world, device)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    for line in sys.stdin:  # until the notebook ends
        request = json.loads(line)
        names: dict[str, Any] = {"torch": torch}
        try:
            exec(request["source"], names)  # the notebook's own code
            answer = {"value": names[request["call"]](me, **request["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
