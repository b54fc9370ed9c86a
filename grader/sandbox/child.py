"""The untrusted side: loads the submission, drives its generator and answers the parent's requests.

One JSON line in, one JSON line out, each carrying the request's nonce. Nothing this process says about time is believed;
the parent measures. Losses and weights are checked by what they must be if the work was done."""

from __future__ import annotations

import ast
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
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from numbers import Real
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed
from torch.autograd import _profiler_enabled
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from grader.workloads.job import Job

MODULE = "submission"
# where other GPUs are hidden NVML does not start, and torch counts the GPUs without it
warnings.filterwarnings("ignore", "Can't initialize NVML")
# some releases of torch say so of every use of the profiler: https://github.com/pytorch/pytorch/issues/180348
warnings.filterwarnings("ignore", ".*Profiler clears events")
MAX_MESSAGE = 100_000  # characters of an error, of which the parent shows what it takes for no flood
NAMED = 5  # parameters in a message
MAX_LOGGED = 20_000  # steps whose logs are read


class ContractError(Exception):
    """The loop broke the contract between a learner's code and the grader; the message says which part of it. line: in
    the submission's module, where there is one to point at."""

    def __init__(self, message: str, line: int | None = None, kind: str = "contract"):
        super().__init__(message)
        self.line, self.kind = line, kind


def serve(requests: int, replies: int, spec: dict[str, Any]) -> None:
    """Answer requests until the parent closes the pipe. `requests` and `replies` are file descriptors."""
    harness, owner = Harness(spec), os.getpid()
    with os.fdopen(requests, "r", encoding="utf-8") as source, os.fdopen(replies, "w", encoding="utf-8") as sink:
        for line in source:
            request = json.loads(line)
            nonce, method = request.pop("nonce"), request.pop("do")
            try:
                answer = {"value": getattr(harness, method)(**request)}
            except BaseException as error:
                # SystemExit and KeyboardInterrupt of a learner's code are errors like others
                answer = {"error": _describe(error, harness.options.get("file", ""))}
            if os.getpid() != owner:  # a fork that the learner's loop forgot: it must not answer as well
                os._exit(0)
            sink.write(json.dumps({"nonce": nonce, **answer}, allow_nan=False) + "\n")
            sink.flush()


def _some(names: list[str]) -> list[str]:
    """The first names, and how many more there are."""
    more = len(names) - NAMED
    return [*names[:NAMED], f"and {more} more"] if more > 0 else names


def _describe(error: BaseException, job_file: str) -> dict[str, Any]:
    """job_file: of a job of one's own, the file whose line is told as well."""
    if isinstance(error, ContractError):
        return {"kind": error.kind, "message": str(error), "traceback": "", "line": error.line, "name": ""}
    try:
        message = str(error)[:MAX_MESSAGE]
    except Exception:  # the learner's own __str__
        message = "(its message cannot be shown)"
    out_of_memory = isinstance(error, torch.OutOfMemoryError)
    # torch asks NVML who holds the memory when none is left; where NVML does not start, it raises that in its place
    out_of_memory |= isinstance(error, RuntimeError) and "nvmlInit_v2_() INTERNAL ASSERT FAILED" in message
    kind = "out_of_memory" if out_of_memory else type(error).__name__
    # the learner's own frames are what helps; the harness's would only puzzle
    passed = traceback.extract_tb(error.__traceback__)
    frames = [f for f in passed if Path(f.filename).stem == MODULE]
    deeper = passed[passed.index(frames[-1]) :] if frames else []
    within = [f.lineno for f in deeper if f.filename == job_file]
    if isinstance(error, SyntaxError):
        text = "".join(traceback.format_exception_only(error))
    else:
        text = "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error))
    line = frames[-1].lineno if frames else error.lineno if isinstance(error, SyntaxError) else None
    return {
        "kind": kind,
        "message": message,
        "traceback": text[-6000:],
        "line": line,
        "within": within[-1] if within else None,
        "name": str(error.name or "") if isinstance(error, NameError) else "",
    }


class Harness:
    def __init__(self, spec: dict[str, Any]):
        self.home = Path(spec["home"])
        self.rank, self.ranks = spec.get("rank", 0), spec["ranks"]
        self.device = torch.device(spec["device"])
        if self.ranks > 1 and self.device.type == "cuda":
            self.device = torch.device("cuda", self.rank)
        self.workload = importlib.import_module(spec["workload"])
        self.options = spec["options"]
        if spec["threads"]:
            torch.set_num_threads(spec["threads"])
        if spec["exact_memory"]:
            _return_memory()
        if spec["counted"]:
            # PyTorch's ways to share a tensor between processes need sockets, and none lead to others here: it goes through a pipe, by value
            ForkingPickler.register(torch.Tensor, lambda tensor: (pickle.loads, (pickle.dumps(tensor),)))
        self.counters: dict[str, Callable[[], float]] = {}  # the job's
        self.batches: Any = None  # likewise
        self.ahead: int | None = None
        self.budget: int | None = spec["budget"]
        # of the GPU's memory; a loop that others are compared with holds their weights beside its own, and no one judges it
        self.limit = None if spec["trusted"] else self.budget
        if os.environ.get("TRITON_INTERPRET") == "1":
            # the fork server has imported it to compile; whether it interprets is decided when it is imported
            for name in [name for name in sys.modules if re.match(r"triton(\.(?!_C)|$)", name)]:
                del sys.modules[name]
        self.folder = self.home / "prepared"
        self.entry = getattr(self.workload, "ENTRY", "train")
        self.serves = self.entry == "serve"
        self.apart = getattr(self.workload, "APART", ())  # weights that are compared for themselves
        # in labs that ask for a kernel: Triton's classes of them, as they were written and compiled, and what launches those,
        # as it is without the submission
        self.kernel: Any = None
        self.launch: Any = None
        self.compiled: Any = None
        self.made: Any = None
        self.call: Any = None  # the last one's inputs, what it did, its result
        self.look: Any = None  # in workloads that are served: makes one number of a request's answers
        self.steps = 0
        # of a job that serves: what its requests are drawn from, as far as the parent has said, and how many were taken, in
        # whichever way and by whichever process
        self.keys: list[int] = []
        self.taken: Any = None  # counts in shared memory
        self.own_recording = -1  # the last step that began while a profiler was on
        self.mark = ""  # what each step begins with in a trace that the loop records of itself: this and its number
        self.module: Any = None
        self.job: Job
        self.model: torch.nn.Module
        self.loop: Iterator[torch.Tensor]
        self.initial: dict[str, torch.Tensor] = {}  # the job's weights
        self.begun: dict[str, torch.Tensor] = {}  # those that this loop has begun with: the same but for a nudge
        self.profiler: Any = None
        self.last_recorded = 0  # of the profiler's steps; `profile` knows it
        self.compared: tuple[dict[str, torch.Tensor], ...] = ()  # ours and theirs, where the last stretch ended

    # ---- the learner's loop

    def ready(self) -> None:
        """Nothing but a reply: what the process holds until now is the harness's."""

    def load(self, entry: str = "") -> None:
        """Import the submission from disk, so that tracebacks, inspect, torch.compile and loader workers find it. entry: the
        function that it must define; the loop of the workload's kind where none is named."""
        entry = entry or self.entry
        modules = getattr(self.workload, "modules", None)  # of a job of one's own
        sys.path += [str(self.home), *(modules(**self.options) if modules else ())]
        self.module = importlib.import_module(MODULE)
        train = getattr(self.module, entry, None)
        if train is None:
            raise ContractError(f"the submission defines no function `{entry}(job)`")
        if not callable(train):
            raise ContractError(f"`{entry}` must be a function, it is {_a(train)}")
        if entry == self.entry and inspect.isfunction(train) and _returns_nothing(train):
            raise self._no_generator(train, None)

    def _no_generator(self, train: Callable[..., Any], returned: Any) -> ContractError:
        must = (
            "`yield scores, logits` once for each request"
            if self.serves
            else "`yield loss.detach()` once after each optimizer step"
        )
        line = train.__code__.co_firstlineno if inspect.isfunction(train) else None
        return ContractError(
            f"`{self.entry}(job)` is not a generator: it must {must}; it returned {_a(returned)}", line
        )

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
            raise ContractError(f"`prepare` must be a function, it is {_a(prepare)}")
        prepare(self.dataset, self.folder)

    def number(self, entry: str, seed: int) -> float:
        """The number that the submission's function returns for the job of `seed`."""
        job = self.workload.make_job(seed, self.device, **self.options)
        step, epoch = job.step, len(job.loader)  # the function may put something else in their places
        value = getattr(self.module, entry)(job)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ContractError(f"`{entry}(job)` must return a number, it returned {_a(value)}")
        if not math.isfinite(value) or value <= 0:
            raise ContractError(f"`{entry}(job)` must return a positive number, it returned {value}")
        if step.made < epoch:  # a rate can be calculated from what the job knows of itself
            made = f"{step.made} step" + "s" * (step.made != 1)
            raise ContractError(
                f"`{entry}(job)` made {made} with job.step, and an epoch has {epoch}: it must measure the job's steps, "
                "over one epoch at least"
            )
        return float(value)

    # ---- a function of the learner's, in labs that ask for a kernel

    def watch(self) -> None:
        """Asked before the submission is loaded: take hold of what launches kernels of Triton's."""
        with contextlib.suppress(ImportError):  # without Triton nothing is launched
            if os.environ.get("TRITON_INTERPRET") == "1":
                from triton.runtime.interpreter import InterpretedFunction as kernel
            else:
                from triton.runtime.jit import JITFunction as kernel
            from triton.compiler import CompiledKernel

            self.kernel, self.launch = kernel, kernel.run
            self.compiled, self.made = CompiledKernel, CompiledKernel.__getitem__

    def result(self, entry: str, seed: int, file: str, case: dict[str, Any]) -> dict[str, Any]:
        """Call the function, write its result to `file` in the exchange folder, and remember what it did, for `again`. The
        reply names the operators of torch that calculated on the way, and says how many kernels of Triton's were launched;
        those of a first call do not count, in which an autotuner may try things out. That one has inputs of its own: what
        it leaves is of no use."""
        function = getattr(self.module, entry)
        # the CPU's generator takes 32 bits of a seed
        function(*self.workload.inputs(seed + (1 << 31), self.device, **case))
        tensors = self.workload.inputs(seed, self.device, **case)
        before = [_memory(tensor) for tensor in tensors]
        done = _Done()
        with self._noted(done), done:
            result = function(*tensors)
        if not isinstance(result, torch.Tensor):
            raise ContractError(f"`{entry}` must return a new tensor like x; it returned {_a(result)}")
        for i, (tensor, was) in enumerate(zip(tensors, before, strict=True), 1):
            if _memory(tensor) != was:
                rule = f"`{entry}` must return a new tensor and leave its inputs as they are"
                raise ContractError(f"{rule}; it wrote to input {i} of {len(tensors)}")
        self.call = tensors, done, result
        self._write_result(result, file)
        return {"operators": sorted(done.operators)[:20], "launches": done.launches, "compiled": _compiled_graphs()}

    def again(self, seed: int, file: str, case: dict[str, Any]) -> None:
        """Put inputs drawn from `seed` where those of the last call lie, launch its kernels and make its copies once more, and
        write the result to `file`. The function is not called: what anything else has calculated is as it was then."""
        tensors, done, result = self.call

        @torch.inference_mode()  # the call may have been in it: nothing else may write its tensors
        def repeat() -> None:
            for tensor, new in zip(tensors, self.workload.inputs(seed, self.device, **case), strict=True):
                tensor.copy_(new)
            with _no_python_of(self.module.__file__, self.kernel):
                done.repeat()
            self._write_result(result, file)

        _in_clean_thread(repeat)

    @contextlib.contextmanager
    def _noted(self, done: _Done) -> Iterator[None]:
        """Launches are written down in `done` meanwhile."""
        if self.kernel is None:
            yield
            return
        self.kernel.run = lambda kernel, *args, **kwargs: done.launch(self.launch, kernel, *args, **kwargs)
        self.compiled.__getitem__ = lambda kernel, grid: partial(done.start, self.made(kernel, grid))
        try:
            yield
        finally:
            self.kernel.run, self.compiled.__getitem__ = self.launch, self.made

    def _write_result(self, result: torch.Tensor, file: str) -> None:
        safetensors.torch.save_file({"result": result.detach().contiguous().cpu()}, self.home / "exchange" / file)

    def inputs(self, seed: int, case: dict[str, Any]) -> None:
        """Prepare for the calls that are to be timed."""
        self.timed, self.call = case, None  # the memory is needed
        x = self.workload.inputs(seed, self.device, **case)[0]
        self.look = self.workload.Look(*x.shape, x.dtype, self.device)
        self._read([self.look(x)])

    def calls(self, entry: str, seed: int, count: int) -> dict[str, Any]:
        """Call the function `count` times, each time with inputs that did not exist before the request: they are drawn from
        `seed`. The reply holds a look at every result, so all of them are there by then."""
        function, looks = getattr(self.module, entry), []
        for tensors in self.workload.anew(seed, self.device, count, **self.timed):
            result = function(*tensors)
            # an object of its own could answer the look and hold nothing
            looks.append(self.look(result) if _is_like(result, tensors[0]) else torch.tensor(math.nan))
        values = self._read(looks)
        return {"looks": [look if math.isfinite(look) else None for look in values], "compiled": _compiled_graphs()}

    def off(self, seed: int, file: str, case: dict[str, Any]) -> dict[str, Any]:
        """Asked of the trusted arm only: compare the result in `file` with the exact one. off: the largest error, in units
        of what is allowed; null where a number of the result is none."""
        tensors = self.workload.inputs(seed, self.device, **case)
        result, x = self._received(file).get("result"), tensors[0]
        if result is None or result.shape != x.shape or result.dtype != x.dtype:
            shown = "nothing" if result is None else f"{tuple(result.shape)}, {result.dtype}"
            return {"differs": f"it is {shown} in place of {tuple(x.shape)}, {x.dtype}"}
        return _finite({"off": self.workload.off(result.to(self.device), tensors, case["type"])})

    def start(
        self, seed: int, keep_initial: bool = False, mark: str = "", nudge: int = 0, keys: Sequence[int] = ()
    ) -> None:
        """Build the job from `seed` and call train(job). mark: a name to mark the beginning of each step with. nudge: for the
        trusted arm, from the how-manieth of the weights beside the job's own it trains, see `_nudge`; 0 for its own. keys:
        here and below, what the next requests are drawn from."""
        self.mark = mark
        if self.ranks > 1:
            self._join_ranks()
        self.job = self.workload.make_job(seed, self.device, **self.options)
        self.job.rank, self.job.world_size = self.rank, self.ranks
        self.job.folder = self.folder
        self.job.trace = str(self.home / "exchange" / "own.json")
        self.job.budget = self.budget
        self.model = self.job.model
        self.counters, self.job.counters = self.job.counters, {}  # nothing of the loop's leads to them any more
        self.batches, self.ahead = self.job.batches, self.job.ahead
        if keep_initial:
            self.initial = self.begun = {name: t.detach().clone() for name, t in self.model.named_parameters()}
        if nudge:
            _nudge(self.model, nudge)
            self.begun = {name: t.detach().clone() for name, t in self.model.named_parameters()}
        if self.serves:
            self.look = self.workload.Look(seed, self.device, **self.options)
            self.taken = multiprocessing.Value("q", 0, lock=False)
            handing_out = self._handing_out()
            next(handing_out)
            self.keys.extend(keys)
            self.job.requests.key = handing_out.send
        train = getattr(self.module, self.entry)
        loop = train(self.job)  # a generator, or a function that returns one: a decorated train(job) does
        if not isinstance(loop, Iterator):
            raise self._no_generator(train, loop)
        self.loop = loop

    def _handing_out(self) -> Iterator[Any]:
        """Sent n, it gives what request n is drawn from, or, where the request before is not answered yet, that of the one to be
        answered now: whoever takes that many is stopped at his next answer. It is a generator, so that what the loop is given, its
        `send`, holds neither the keys nor the count, nor anything that leads to them but a frame."""
        owner, key = os.getpid(), None
        while True:
            n = max(0, int((yield key)))  # int: a number of the learner's own type could compare as it likes
            self.taken.value = max(self.taken.value, n + 1)
            if n > self.steps and os.getpid() != owner:
                raise ContractError(
                    "requests are taken in the process that answers them, not in one that it has started"
                )
            key = self.keys[min(n, self.steps)]

    def _join_ranks(self) -> None:
        backend = "gloo"
        if self.device.type == "cuda":
            backend = "nccl"
            torch.cuda.set_device(self.device)
        torch.distributed.init_process_group(
            backend,
            store=torch.distributed.FileStore(str(self.home / "tmp" / "ranks"), self.ranks),
            rank=self.rank,
            world_size=self.ranks,
            device_id=self.device if backend == "nccl" else None,
        )

    def run(self, steps: int, keys: Sequence[int] = ()) -> dict[str, Any]:
        """Pull `steps` steps. The reply holds their losses, so all GPU work they depend on has finished by then."""
        self.keys.extend(keys)
        if self.limit and not self.steps and self.device.type == "cuda":
            # so that a loop that needs more is told so by torch; the parent looks by itself
            share = self.limit / torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
        losses = [self._step() for _ in range(steps)]
        values = _in_clean_thread(lambda: self._read(losses))
        for i, value in enumerate(values):
            if not math.isfinite(value):
                step = self.steps - steps + i + 1
                raise ContractError(
                    f"the answers to request {step} are not finite"
                    if self.serves
                    else f"step {step} yielded the loss {value}: training diverged or overflowed"
                )
        return {"losses": values, "compiled": _compiled_graphs()}

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
                f"`{self.entry}(job)` stopped after {self.steps} step{'s' * (self.steps != 1)}; it must go on for as long as it is asked "
                f"({endless} never ends: loop over it, with no fixed number of steps)"
            ) from None
        self.steps += 1
        frame = getattr(self.loop, "gi_frame", None)  # it stands at its yield
        line = frame.f_lineno if frame else None
        if self.serves:
            taken = self.taken.value
            if taken > self.steps:
                raise ContractError(
                    f"request {self.steps} was answered after {taken} requests had been taken from job.requests; "
                    "each is answered before the next one is taken",
                    line,
                )
            try:
                return self.look(self.steps, loss)
            except ValueError as error:
                raise ContractError(f"request {self.steps}: {error}", line) from None
        if self.ahead is not None and self.batches.drawn > self.steps + self.ahead:
            raise ContractError(
                f"{self.batches.drawn} batches of job.batches had been drawn when step {self.steps} was made; a pipeline may be {self.ahead} "
                "ahead. What is made before the clock starts is no speed that lasts: batches must be made as fast as they are used",
                line,
            )
        if type(loss) is not torch.Tensor:
            raise ContractError(
                f"step {self.steps} yielded {_a(loss)}; yield the loss as a tensor: `yield loss.detach()`", line
            )
        if loss.dim() or not loss.is_floating_point():
            raise ContractError(
                f"step {self.steps} yielded a tensor of shape {tuple(loss.shape)} and type {loss.dtype}; "
                "yield one number, the mean loss of the batch",
                line,
            )
        if loss.device.type not in ("cpu", self.device.type):
            raise ContractError(f"step {self.steps} yielded a tensor on the device {loss.device}", line)
        # a copy on the device costs no synchronisation; without it a CUDA graph's next replay would overwrite the value
        return loss.detach().clone()

    def _read(self, losses: list[torch.Tensor]) -> list[float]:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return torch.stack([loss.float().to(self.device) for loss in losses]).tolist()

    # ---- what the parent checks

    def weights(self, file: str) -> None:
        """Write the trained weights (parameters and buffers, tied tensors once) to `file` in the exchange folder. Of several
        ranks the first one writes; where the weights must be gathered, all of them take part."""

        def save() -> None:
            trained = self._trained()
            if self.rank:
                return
            tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in trained.items()}
            safetensors.torch.save_file(tensors, self.home / "exchange" / file)

        _in_clean_thread(save)

    def _trained(self) -> dict[str, torch.Tensor]:
        """The trained tensors under the job's names and shapes."""
        return self._weights() if self.job.weights else named_tensors(self.model)

    def _weights(self) -> dict[str, torch.Tensor]:
        rule = "job.weights must be a function that returns a dict of tensors by parameter name"
        if not callable(self.job.weights):
            raise ContractError(f"{rule}, it is {_a(self.job.weights)}")
        tensors = self.job.weights()
        if not isinstance(tensors, dict):
            raise ContractError(f"{rule}; it returned {_a(tensors)}")
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise ContractError(f"{rule}; in what it returned {name!r} is {_a(tensor)}")
        return tensors

    def logs(self) -> list[dict[str, float | None]]:
        """What job.log was given, step by step; null for what is no finite number. What does not fit into a reply is left
        out."""
        kept = [self.job.logs.get(step, {}) for step in range(min(self.steps, MAX_LOGGED))]
        flat = [value for values in kept for value in values.values()]
        for value in flat:
            if value.dim():
                raise ContractError(
                    f"job.log was given a tensor of shape {tuple(value.shape)}; it takes single numbers"
                )

        def read() -> list[float]:
            return torch.stack([value.to(self.device, torch.float64) for value in flat]).tolist() if flat else []

        numbers = iter(_in_clean_thread(read))
        return [_finite({name: next(numbers) for name in values}) for values in kept]

    def counted(self) -> dict[str, float]:
        """What the job counts, per step so far."""
        return {name: count() / max(self.steps, 1) for name, count in self.counters.items()}

    def recorded_since(self, step: int) -> bool:
        """Whether the loop's own profiler was on in this step (counted from 0) or later: a trace tells only where it is written,
        and only once it is."""
        return self.own_recording >= step

    def start_profiler(self, with_stack: bool = False) -> None:
        """Start the profiler; it records from `profile` on. To start takes it a second or so, in which a loader's workers fill
        their queue: steps that are recorded before that is used up wait for nothing. Of several ranks the first one is
        recorded."""
        if self.rank:
            return
        if torch.autograd._profiler_enabled():
            raise ContractError(
                "a profiler of the loop's own is on, and there can be one at a time: take it out, `lab.profile()` records for you"
            )
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(
            activities=activities, schedule=self._recorded, record_shapes=True, with_stack=with_stack
        )
        self.profiler.start()

    def _recorded(self, step: int) -> torch.profiler.ProfilerAction:
        """The profiler's schedule: its step 0 lasts until `profile`."""
        action = torch.profiler.ProfilerAction
        if step == 0:
            return action.WARMUP
        if step > self.last_recorded:
            return action.NONE
        return action.RECORD_AND_SAVE if step == self.last_recorded else action.RECORD

    def profile(self, steps: int, file: str, keys: Sequence[int] = ()) -> dict[str, Any]:
        """After `start_profiler`: record `steps` steps after one that the reader discards, and write the trace to `file` in the exchange folder.
        One profiling session a process: a second one can lose its first kernels. One more step follows them in the trace,
        not to be counted: in it the harness itself waits for the GPU."""
        if self.rank:
            return self.run(steps + 2)
        self.keys.extend(keys)
        self.last_recorded = steps + 2
        self.profiler.step()
        losses = []
        for i in range(steps + 2):
            losses.append(self._step())
            if i == steps + 1:  # the last step's kernels must end inside the recording
                self._read(losses)
            self.profiler.step()
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.home / "exchange" / file))
        return {"losses": self._read(losses), "compiled": _compiled()}

    def release(self) -> None:
        """Give back what the allocator keeps for later: another loop may need it meanwhile."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def peak_memory(self) -> int | None:
        """Bytes at the allocator's peak, or null without a GPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    # ---- asked of the trusted arm only

    def compare(self, file: str, stretch: bool = False) -> dict[str, Any]:
        """Compare the total update in `file` (safetensors in the exchange folder) with this process's own at the same
        step: minus the job's weights, and minus those that this one has begun with. stretch: likewise the updates since this
        was asked before. Needs `start(keep_initial=True)`."""
        return _in_clean_thread(lambda: self._compare(self._received(file), stretch))

    def _received(self, file: str) -> dict[str, torch.Tensor]:
        """The tensors in a file that comes from the submission, and may be anything."""
        try:
            return safetensors.torch.load_file(self.home / "exchange" / file)
        except Exception as error:  # whatever the reader makes of it
            raise ContractError(
                f"The weights that the submission returned cannot be read: {error}", kind="weights"
            ) from None

    def _compare(self, theirs: dict[str, torch.Tensor], stretch: bool) -> dict[str, Any]:
        trained = self._trained()
        ours = {name: trained[name].detach() for name in self.initial}
        answer: dict[str, Any] = {
            "missing": _some(sorted(ours.keys() - theirs.keys())),
            "shapes": _some([n for n in ours if n in theirs and theirs[n].shape != ours[n].shape]),
            "types": _some(
                [f"{n}: {theirs[n].dtype}" for n in ours if n in theirs and theirs[n].dtype != ours[n].dtype]
            ),
        }
        if answer["missing"] or answer["shapes"] or answer["types"]:
            return answer
        # onto the device, where all that follows is fast; as copies, for the file is written over
        theirs = {name: theirs[name].to(tensor.device, copy=True) for name, tensor in ours.items()}
        updates = _Updates(self.apart)
        still = []
        for name, tensor in ours.items():
            begun, initial = (first[name].to(tensor.device) for first in (self.begun, self.initial))
            a, b = updates.add(name, tensor - begun, theirs[name] - initial)
            if a.any() and not b.any():
                still.append(name)
            elif b.any() and tensor.numel() >= 64:  # fp32 weights that moved to a shorter type's grid were kept in it
                for short in (torch.bfloat16, torch.float16):
                    if torch.equal(theirs[name].to(short).float(), theirs[name]):
                        answer["types"].append(f"{name}: values of {short} in float32")
        answer["norm_ratio"], answer["cosine"] = updates.norm_ratio(), updates.cosine()
        answer["still"], answer["types"] = _some(still), _some(answer["types"])
        if stretch:
            answer["stretch_cosine"] = self._stretch(ours, theirs)
        return _finite(answer)

    def _stretch(self, ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
        """The cosine of both updates since the last call, from the initial weights at first."""
        ours_before, theirs_before = self.compared or (self.begun, self.initial)
        updates = _Updates(self.apart)
        for name, tensor in ours.items():
            at = tensor.device
            updates.add(name, tensor - ours_before[name].to(at), theirs[name] - theirs_before[name].to(at))
        self.compared = {name: tensor.clone() for name, tensor in ours.items()}, theirs  # ours go on training
        return updates.cosine()

    def evaluate(self, file: str | None = None) -> dict[str, Any]:
        """Loss and accuracy on the held-out data, of the weights in `file` or of this process's own."""

        def evaluate() -> dict[str, Any]:
            tensors = self._named(file) if file else self._trained()
            return _finite(self.workload.evaluate(tensors, self.device, **self.options))

        return _in_clean_thread(evaluate)

    def _named(self, file: str) -> dict[str, torch.Tensor]:
        """The weights in `file` that the job's model has."""
        tensors, received = self._trained(), self._received(file)
        bad = [n for n, t in tensors.items() if n not in received or received[n].shape != t.shape]
        if bad:
            raise ContractError(
                "The weights that the submission returned lack these of the job's under their names and shapes: "
                + ", ".join(_some(bad)),
                kind="weights",
            )
        return {name: received[name] for name in tensors}


class _Updates:
    """Length and direction of two updates, tensor by tensor. apart: how the names begin of those that are a group of their own;
    what is said is that of the group in which the two are furthest from each other."""

    def __init__(self, apart: Sequence[str]) -> None:
        self.sums = {group: [0.0, 0.0, 0.0] for group in (*apart, "")}  # products, ours squared, theirs squared

    def add(self, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ours.double(), theirs.double()
        group = next(group for group in self.sums if name.startswith(group))
        for i, (x, y) in enumerate(((a, b), (a, a), (b, b))):
            self.sums[group][i] += float((x * y).sum())
        return a, b

    def norm_ratio(self) -> float | None:
        ratios = [
            math.sqrt(theirs / ours) if ours else math.inf for _, ours, theirs in self.sums.values() if ours or theirs
        ]
        return max(ratios, key=lambda ratio: abs(ratio - 1) if ratio == ratio else math.inf, default=None)

    def cosine(self) -> float:
        cosines = [dot / math.sqrt(a * b) if a and b else 0.0 for dot, a, b in self.sums.values() if a or b]
        return min(cosines, key=lambda cosine: cosine if cosine == cosine else -math.inf, default=0.0)


# what makes, fills, copies or views memory, and calculates nothing
STORING = re.compile(
    r"aten::((new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?|scalar_tensor|zero_?|fill_?|set_|copy_?|_to_copy|clone"
    r"|detach_?|alias|lift|lift_fresh|resize_|is_pinned|_pin_memory|(_unsafe_)?view|_reshape_alias"
    r"|as_strided_?|slice|select|diagonal|split(_with_sizes)?|unbind|unfold|expand|unsqueeze_?|squeeze_?|permute|transpose_?|t_?)$"
)


class _Done(TorchDispatchMode):
    """What a call did, in order: kernels of Triton's that it launched, and operators of torch that make, fill, copy or view
    memory. Those that calculate are only named. What is done in any other way leaves no trace here, nor in `repeat`."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Callable[..., Any], Sequence[Any], dict[str, Any], Any]] = []
        self.operators: set[str] = set()
        self.launches = 0
        self.launching = False  # what Triton does with tensors to launch a kernel is a part of the launch

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.launching:
            with self:
                made = operator.decompose(*args, **kwargs)  # in inference mode nothing else has done so
            if made is not NotImplemented:
                return made
        made = operator(*args, **kwargs)
        if self.launching:
            return made
        name = operator._schema.name
        if STORING.match(name):
            self.steps.append((operator, args, kwargs, made))
        else:
            self.operators.add(name)
        return made

    def launch(self, run: Callable[..., Any], *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Launch a kernel with Triton's `run`. Which grid a function calculates stays as it is."""
        if kwargs.get("warmup"):  # that compiles only
            return run(*args, grid=grid, **kwargs)
        fixed = []

        def fix(meta: Any) -> Any:
            fixed.append(grid(meta))
            return fixed[0]

        compiled = self.start(run, *args, grid=fix if callable(grid) else grid, **kwargs)
        if fixed:
            self.steps[-1][2]["grid"] = fixed[0]
        return compiled

    def start(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Launch a kernel with `run`."""
        self.launching = True
        try:
            compiled = run(*args, **kwargs)
        finally:
            self.launching = False
        self.launches += 1
        self.steps.append((run, args, kwargs, None))
        return compiled

    def repeat(self) -> None:
        for function, args, kwargs, results in self.steps:
            again = function(*args, **kwargs)
            for result, new in zip(_tensors((results,)), _tensors((again,)), strict=False):
                if result.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # else a view, or in place
                    result.copy_(new)


@contextlib.contextmanager
def _no_python_of(file: str, kernel: Any) -> Iterator[None]:
    """Raises ContractError where a function of the submission runs in this thread that is no kernel: hooks, and what only an
    interpreted kernel can call."""

    ran = []

    def see(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if (
            event == "call" and code.co_filename == file and code.co_name != "<module>"
        ):  # in which Triton defines a kernel
            kernels = getattr(kernel, "rewritten_fn", {}).values()
            ran.extend([] if any(code in _nested(function.__code__) for function in kernels) else [code])

    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
    if ran:
        said = f"the function `{ran[0].co_name}` ran while a kernel was launched: only kernels can be called by one"
        raise ContractError(said, ran[0].co_firstlineno)


COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def _nested(code: Any) -> Iterator[Any]:
    """A function's code, and that of comprehensions in it."""
    yield code
    for each in code.co_consts:
        if inspect.iscode(each) and each.co_name in COMPREHENSIONS:
            yield from _nested(each)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Those among an operator's results, which may lie in a list."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def _memory(tensor: torch.Tensor) -> bytearray:
    """A copy of all the memory that a tensor is a part of."""
    storage = tensor.untyped_storage().cpu()
    return bytearray(ctypes.string_at(storage.data_ptr(), storage.nbytes()))


def _is_like(result: Any, x: torch.Tensor) -> bool:
    """Whether it is a plain tensor that has all of its elements in memory, of x's shape, type and device."""
    return (
        type(result) is torch.Tensor
        and (result.shape, result.dtype, result.device) == (x.shape, x.dtype, x.device)
        and result.layout is torch.strided
        and result.is_contiguous()
    )


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and floating-point buffers by name, tied ones once."""
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    return dict(model.named_parameters()) | buffers


def _in_clean_thread(function: Callable[[], Any]) -> Any:
    """Call `function` in a new thread. Autocast, grad mode, streams, function modes and the default device are all
    per thread, so whatever the learner's loop leaves switched on around its yield does not reach the harness."""
    box: list[Any] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # a new thread begins on the first one

    def call() -> None:
        try:
            torch.cuda.set_device(device)  # -1 changes nothing
            with torch.no_grad():
                box.append((True, function()))
        except BaseException as error:
            box.append((False, error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    worked, value = box[0]
    if not worked:
        raise value
    return value


def _nudge(model: torch.nn.Module, draw: int) -> None:
    """Put round-off into a model's weights: each is off by up to 2**-9 of itself, two thirds of what rounding to bfloat16 does
    (root mean square). Weights that are copies of others stay so: an average begins as one."""
    random = torch.Generator().manual_seed(draw)
    made: list[tuple[torch.Tensor, torch.Tensor]] = []  # as it was, as it is
    with torch.no_grad():
        for weight in model.parameters():
            before = weight.clone()
            new = next((new for old, new in made if torch.equal(old, before)), None)
            if new is None:
                new = before * (1 + 2**-9 * (2 * torch.rand(weight.shape, generator=random) - 1).to(weight.device))
                made.append((before, new))
            weight.copy_(new)


def _return_memory() -> None:
    """Have the C library give back blocks of 64 KB and more when they are freed. As it is by default it keeps them, and
    they fall to pieces when something small and long-lived is put among them: memory grows then without a leak.

    https://man7.org/linux/man-pages/man3/mallopt.3.html"""
    m_mmap_threshold = -3
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)


def _finite(answer: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: say null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in answer.items()}


def _dynamo_counters() -> Any:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters if utils else {}


def _compiled_graphs() -> int:
    """How many graphs torch.compile has made so far: a rise inside a timed block is a recompilation."""
    counters = _dynamo_counters()
    return int(counters["stats"]["unique_graphs"]) if counters else 0


def _compiled() -> dict[str, int]:
    """What torch.compile has done in this process so far. graphs: that it made. graph_breaks: source lines at which it had to
    end one, or to leave a whole function alone, each once (its own counter leaves out branches on a tensor, and breaks in
    a for loop). recompiles: times that it compiled code again, because what it had assumed no longer held."""
    utils, frames = (sys.modules.get(f"torch._dynamo.{name}") for name in ("utils", "convert_frame"))
    if not utils or not frames:
        return {"graphs": 0, "graph_breaks": 0, "recompiles": 0}
    ended = {(frame.filename, frame.lineno) for why in utils.graph_break_reasons for frame in why.user_stack[-1:]}
    failed = {(m.fail_user_frame_filename, m.fail_user_frame_lineno) for m in utils.get_compilation_metrics()}
    lines = {(file, line) for file, line in ended | failed if line is not None}
    again = sum(times - 1 for times in frames.FRAME_COMPILE_COUNTER.values() if times)
    return {"graphs": _compiled_graphs(), "graph_breaks": len(lines), "recompiles": again}


def _returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether it can hand over no generator: it neither yields nor returns a value. Called, it may train for hours."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, SyntaxError, ValueError):
        return False
    return not any(
        isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value)
        for node in ast.walk(tree)
    )


def _a(value: Any) -> str:
    """A value's type in words, for messages: 'a float', 'an int', 'None'."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
