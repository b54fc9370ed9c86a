"""The untrusted side: loads the submission, drives its generator and answers the parent's requests, a JSON line each.

Nothing this process says about time is believed; losses and weights are checked by what they must be if the work was done."""

import bdb
import contextlib
import ctypes
import importlib
import inspect
import json
import math
import multiprocessing
import os
import pickle
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed
from torch.autograd import _profiler_enabled
from torch.profiler import record_function

from grader.sandbox import whereabouts
from grader.sandbox.contract import (
    MODULE,
    ContractError,
    as_iterator,
    checked_loss,
    describe,
    no_function,
    no_generator,
    of_a_thread,
    returns_nothing,
    standing_at,
    type_in_words,
)
from grader.sandbox.functions import Functions
from grader.sandbox.pretended import pretend, total_memory
from grader.sandbox.reading import Compilations, Recorder, compiled_graphs, finite, in_clean_thread, read, read_logs
from grader.sandbox.service import Service
from grader.sandbox.setting import of_rank
from grader.sandbox.weights import (
    Comparison,
    add_round_off,
    comparison_of,
    copies,
    of_rank_weights,
    received,
    received_for,
    trained_tensors,
)
from grader.workloads.job import Job

# as before Python 3.14: workers know what the loop defines, and a loop may still choose another way
if sys.version_info >= (3, 14) and sys.platform == "linux":
    vars(vars(multiprocessing.context)["_default_context"])["_default_context"] = multiprocessing.get_context("fork")


def _no_debugger(*arguments: Any, **more: Any) -> None:
    """Nobody can type: from Python 3.14 on the debugger ends the program then, as if the loop had asked for it."""
    raise bdb.BdbQuit


sys.breakpointhook = _no_debugger
# where other GPUs are hidden NVML does not start, and torch counts the GPUs without it
warnings.filterwarnings("ignore", "Can't initialize NVML")
# some releases of torch say so of every use of the profiler: https://github.com/pytorch/pytorch/issues/180348
warnings.filterwarnings("ignore", ".*Profiler clears events")


def serve(requests: int, replies: int, spec: dict[str, Any]) -> None:
    """Answer requests until the parent closes the pipe. `requests` and `replies` are file descriptors."""
    harness, owner = Harness(spec), os.getpid()
    with os.fdopen(requests, "r", encoding="utf-8") as source, os.fdopen(replies, "w", encoding="utf-8") as sink:
        for line in source:
            request = json.loads(line)
            nonce, method = request.pop("nonce"), request.pop("do")

            def tell(value: float, nonce: str = nonce) -> dict[str, Any]:
                sink.write(json.dumps({"nonce": nonce, "told": value if math.isfinite(value) else None}) + "\n")
                sink.flush()
                return json.loads(source.readline())

            harness.tell = tell
            try:
                asked = harness if hasattr(harness, method) else harness.functions
                answer = {"value": getattr(asked, method)(**request)}
            except BaseException as error:
                # SystemExit and KeyboardInterrupt of a learner's code are errors like others
                answer = {"error": describe(error, harness.options.get("file", ""))}
            if os.getpid() != owner:  # a fork that the learner's loop forgot: it must not answer as well
                os._exit(0)
            sink.write(json.dumps({"nonce": nonce, **answer}, allow_nan=False) + "\n")
            sink.flush()


class Harness:
    """Holds the submission and its loop. A request is a method of it, or of its `functions`, with its arguments."""

    def __init__(self, spec: dict[str, Any]):
        self.home = Path(spec["home"])
        self.folder = self.home / "prepared"
        self.rank, self.ranks = spec.get("rank", 0), spec["ranks"]
        self.device = torch.device(spec["device"])
        if self.ranks > 1 and self.device.type == "cuda":
            self.device = torch.device("cuda", self.rank)
        self.workload = importlib.import_module(spec["workload"])
        self.options = spec["options"]
        self.budget: int | None = spec["budget"]
        # of the GPU's memory; a loop that others are compared with holds their weights beside its own, and no one judges it
        self.limit = None if spec["trusted"] else self.budget
        _set_up(spec)
        self.entry = getattr(self.workload, "ENTRY", "train")
        self.serves = self.entry == "serve"
        self.functions = Functions(self.workload, self.options, self.device, self.home)
        self.module: Any = None  # the submission
        self.job: Job
        self.model: torch.nn.Module
        self.loop: Iterator[torch.Tensor]
        self.counters: dict[str, Callable[[], float]] = {}  # the job's
        self.batches: Any = None  # likewise
        self.ahead: int | None = None
        self.steps = 0
        self.tell: Callable[[float], dict[str, Any]]  # tells the parent a number, and returns what that says
        self.service: Service | None = None  # of a job that serves
        self.own_recording = -1  # the last step that began while a profiler was on
        self.mark = ""  # what each step begins with in a trace that the loop records of itself: this and its number
        self.recorder: Recorder | None = None
        self.compilations = Compilations()
        self.comparison: Comparison | None = None

    def ready(self) -> None:
        """Nothing but a reply: what the process holds until now is the harness's."""

    def load(self, entry: str = "") -> None:
        """Import the submission, which must define the function `entry`, or the loop of the workload's kind where none is named."""
        entry = entry or self.entry
        modules = getattr(self.workload, "modules", None)  # of a job of one's own
        sys.path += [str(self.home), *(modules(**self.options) if modules else ())]
        sys.argv = [f"{MODULE}.py"]  # parse_args() must not meet what this process was started with
        # from disk, so that tracebacks, inspect, torch.compile and loader workers find it
        self.module = self.functions.module = importlib.import_module(MODULE)
        train = getattr(self.module, entry, None)
        if train is None:
            raise no_function(entry, takes_job=hasattr(self.workload, "make_job"))
        if not callable(train):
            raise ContractError(f"`{entry}` must be a function, but it is {type_in_words(train)}")
        if entry == self.entry and inspect.isfunction(train) and returns_nothing(train):
            raise no_generator(entry, train, None)

    def make_dataset(self) -> None:
        """Build what `prepare` is given. There is no seed yet: what is prepared fits any order."""
        self.folder.mkdir(exist_ok=True)
        self.dataset = self.workload.make_job(0, self.device, **self.options).dataset

    def prepare(self) -> None:
        """Let the submission's prepare(dataset, folder), where it has one, write what its train(job) will read."""
        prepare = getattr(self.module, "prepare", None)
        if prepare is None:
            return
        if not callable(prepare):
            raise ContractError(f"`prepare` must be a function, but it is {type_in_words(prepare)}")
        prepare(self.dataset, self.folder)

    def start(
        self, seed: int, keep_initial: bool = False, mark: str = "", nudge: int = 0, keys: Sequence[int] = ()
    ) -> None:
        """Build the job from `seed` and call train(job). mark: a name for the beginning of each step. nudge: of the trusted arm, draws
        the round-off in its first weights, 0 for none. keys: of a job that serves, what the first request is drawn from."""
        self.mark = mark
        if self.ranks > 1:
            _join_ranks(self.rank, self.ranks, self.device, self.home)
        job = self.job = self.workload.make_job(seed, self.device, **self.options)
        job.rank, job.world_size, job.folder = self.rank, self.ranks, self.folder
        self.job.trace = str(self.home / "exchange" / "own.json")
        self.job.budget = self.budget
        self.model = self.job.model
        self.counters, self.job.counters = self.job.counters, {}  # nothing of the loop's leads to them any more
        self.batches, self.ahead = self.job.batches, self.job.ahead
        initial = copies(self.model) if keep_initial else None
        if nudge:
            add_round_off(self.model, nudge)
        if initial is not None:
            groups = getattr(self.workload, "APART", ())
            self.comparison = comparison_of(self.model, groups, initial, nudged=bool(nudge))
        if self.serves:
            look = self.workload.Look(seed, self.device, **self.options)
            self.service = Service(look, keys, lambda value: self.tell(value))
            job.requests.key = self.service.handing_out()
        train = getattr(self.module, self.entry)
        self.loop = as_iterator(self.entry, train, train(self.job))

    def run(self, steps: int, keys: Sequence[int] = ()) -> dict[str, Any]:
        """Pull `steps` steps. The reply holds their losses, so all GPU work they depend on has finished by then. keys: of requests that
        are given ahead."""
        if self.service:
            self.service.begin(keys)
        if self.limit and not self.steps and self.device.type == "cuda":
            # so that a loop that needs more is told so by torch; the parent looks by itself
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit / total_memory(0)))
        losses = [self._step() for _ in range(steps)]
        if self.service:
            self.service.tell_all()
        values = self._finite(in_clean_thread(lambda: read(losses, self.device)))
        return {"losses": values, "compiled": compiled_graphs()}

    def _finite(self, losses: list[float]) -> list[float]:
        """The losses of the last steps. Raises ContractError where one of them is no number."""
        for step, value in enumerate(losses, self.steps - len(losses) + 1):
            if not math.isfinite(value):
                raise ContractError(
                    f"The answers to request {step} are not finite"
                    if self.serves
                    else f"Step {step} yielded the loss {value}, so training diverged or overflowed"
                )
        return losses

    def _step(self) -> torch.Tensor:
        if self.mark:
            if _profiler_enabled():
                self.own_recording = self.steps
            with record_function(f"{self.mark}{self.steps}"):
                pass  # a moment: around the step it would be cut off where the loop starts or stops its profiler
        try:
            loss = next(self.loop)
        except StopIteration:
            endless = "job.requests" if self.serves else "job.batches"
            raise ContractError(
                f"`{self.entry}(job)` stopped after {self.steps} step{'s' * (self.steps != 1)}. It must go on for as long as "
                f"it is asked. {endless} never ends, so loop over it without a fixed number of steps"
            ) from None
        self.steps += 1
        line = standing_at(self.loop)
        if self.service:
            return self.service.answer(loss, line)
        if self.ahead is not None and self.batches.drawn > self.steps + self.ahead:
            raise ContractError(
                f"When step {self.steps} was made, {self.batches.drawn} batches of job.batches had been "
                f"drawn, and a pipeline may be {self.ahead} ahead. Batches that are made before the clock "
                "starts run out, so make them as fast as you use them",
                line,
            )
        return checked_loss(loss, self.steps, self.device, line)

    def weights(self, file: str, each: bool = False) -> None:
        """Write the trained weights, tied tensors once, to `file` in the exchange folder. each: the other ranks write samples of theirs."""

        def save() -> None:
            trained = of_rank_weights(self.job, self.model, self.rank, each and self.ranks > 1)
            if self.rank and not each:
                return
            tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in trained.items()}
            safetensors.torch.save_file(tensors, self.home / "exchange" / of_rank(file, self.rank))

        in_clean_thread(save)

    def logs(self) -> list[dict[str, float | None]]:
        return read_logs(self.job.logs, self.steps, self.device)

    def counted(self) -> dict[str, float]:
        """What the job counts, per step so far."""
        return {name: count() / max(self.steps, 1) for name, count in self.counters.items()}

    def recorded_since(self, step: int) -> bool:
        """Whether the loop's own profiler was on in this step (counted from 0) or later, which a trace may not tell."""
        return self.own_recording >= step

    def start_profiler(self, with_stack: bool = False) -> None:
        """Start the profiler of the first rank; it records from `profile` on."""
        # It takes a second or so, in which a loader's workers fill their queue: steps before that is used up wait for nothing
        if not self.rank:
            self.recorder = Recorder(self.device, with_stack)

    def profile(self, steps: int, file: str) -> dict[str, Any]:
        """After `start_profiler`: record `steps` steps of `steps` + 2 into `file` in the exchange folder."""
        if self.rank:
            return self.run(steps + 2)
        assert self.recorder is not None
        if self.service:
            self.service.begin(())
        read_losses = partial(read, device=self.device)
        losses = self.recorder.record(steps, self.home / "exchange" / file, self._step, read_losses)
        if self.service:
            self.service.tell_all()
        return {"losses": self._finite(losses), "compiled": self.compilations.count()}

    def release(self) -> None:
        """Give back what the allocator keeps for later: another loop may need it meanwhile."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def peak_memory(self) -> int | None:
        """Bytes at the allocator's peak, or null without a GPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    # ---- asked of the trusted arm only

    def compare(self, file: str, stretch: bool = False, ranks: int = 1) -> dict[str, Any]:
        """Compare the weights in `file` with this process's, and with samples of so many ranks. Needs `start(keep_initial=True)`."""

        def compare() -> dict[str, Any]:
            assert self.comparison is not None
            given, *others = (received(self.home / "exchange" / of_rank(file, rank)) for rank in range(ranks))
            rate = self.job.lr * self.steps
            return self.comparison.compare(trained_tensors(self.job, self.model), given, stretch, rate, others)

        return in_clean_thread(compare)

    def remember(self) -> None:
        """Keep the weights, a step before they are compared."""
        assert self.comparison is not None
        self.comparison.remember(trained_tensors(self.job, self.model))

    def evaluate(self, file: str | None = None) -> dict[str, Any]:
        """Loss and accuracy on the held-out data, of the weights in `file` or of this process's own."""

        def evaluate() -> dict[str, Any]:
            tensors = trained_tensors(self.job, self.model)
            tensors = received_for(tensors, self.home / "exchange" / file) if file else tensors
            return finite(self.workload.evaluate(tensors, self.device, **self.options))

        return in_clean_thread(evaluate)


def _set_up(spec: dict[str, Any]) -> None:
    """What holds for this process."""
    whereabouts.tell(Path(spec["home"]), spec.get("rank", 0))
    threading.excepthook = of_a_thread
    if spec["pretended"]:
        pretend(**spec["pretended"])
    if spec["threads"]:
        torch.set_num_threads(spec["threads"])
    if spec["exact_memory"]:
        _return_memory()
    if spec["counted"]:
        # PyTorch's ways to share a tensor between processes need sockets, and none lead to others here: it goes through a pipe, by value
        ForkingPickler.register(torch.Tensor, lambda tensor: (pickle.loads, (pickle.dumps(tensor),)))
    if os.environ.get("TRITON_INTERPRET") == "1":
        # the fork server has imported it to compile; whether it interprets is decided when it is imported
        for name in [name for name in sys.modules if re.match(r"triton(\.(?!_C)|$)", name)]:
            del sys.modules[name]


def _join_ranks(rank: int, ranks: int, device: torch.device, home: Path) -> None:
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        backend,
        store=torch.distributed.FileStore(str(home / "tmp" / "ranks"), ranks),
        rank=rank,
        world_size=ranks,
        device_id=device if backend == "nccl" else None,
    )


def _return_memory() -> None:
    """Have the C library give back blocks of 64 KB and more when they are freed: https://man7.org/linux/man-pages/man3/mallopt.3.html"""
    # as it is by default it keeps them, and they fall to pieces when something small and long-lived is put among them
    m_mmap_threshold = -3
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)
