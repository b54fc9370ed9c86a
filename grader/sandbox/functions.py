"""What is asked of a child where the submission is a function and not a loop."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.sandbox.contract import ContractError, type_in_words
from grader.sandbox.reading import compiled_graphs, finite, in_clean_thread, read
from grader.sandbox.weights import received


class Functions:
    """Of one child. home: its folder; options: the workload's."""

    def __init__(self, workload: Any, options: dict[str, Any], device: torch.device, home: Path) -> None:
        self.workload, self.options, self.device, self.home = workload, options, device, home
        self.module: Any = None  # the submission, once it is loaded
        # Triton's classes of kernels, as they were written and compiled, and what launches those, as it is without the submission
        self.kernel: Any = None
        self.launch: Any = None
        self.compiled: Any = None
        self.made: Any = None
        self.call: tuple[Any, Launches, torch.Tensor] | None = None  # the last one's inputs, what it did, its result
        self.timed: dict[str, Any] = {}  # the case that is timed
        self.look: Any = None  # makes one number of a result

    def number(self, entry: str, seed: int) -> float:
        """The number that the submission's function returns for the job of `seed`."""
        job = self.workload.make_job(seed, self.device, **self.options)
        step, epoch = job.step, len(job.loader)  # the function may put something else in their places
        value = getattr(self.module, entry)(job)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ContractError(f"`{entry}(job)` must return a number, but it returned {type_in_words(value)}")
        if not math.isfinite(value) or value <= 0:
            raise ContractError(f"`{entry}(job)` must return a positive number, but it returned {value}")
        if step.made < epoch:  # a rate can be calculated from what the job knows of itself
            made = f"{step.made} step" + "s" * (step.made != 1)
            raise ContractError(
                f"`{entry}(job)` made {made} with job.step, but an epoch has {epoch}. It must measure the "
                "job's steps over one epoch or more"
            )
        return float(value)

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
        """Call the function, write its result to `file` in the exchange folder, and remember what it did, for `again`. Returns the
        operators of torch that calculated, and how many kernels of Triton's were launched."""
        function = getattr(self.module, entry)
        # A first call does not count, in which an autotuner may try things out; what it leaves of its own inputs is of no use.
        # the CPU's generator takes 32 bits of a seed
        function(*self.workload.inputs(seed + (1 << 31), self.device, **case))
        tensors = self.workload.inputs(seed, self.device, **case)
        before = [_memory(tensor) for tensor in tensors]
        done = Launches()
        with self._noted(done), done:
            result = function(*tensors)
        if type(result) not in PLAIN:
            raise ContractError(f"`{entry}` must return a new tensor like x, but it returned {type_in_words(result)}")
        for i, (tensor, was) in enumerate(zip(tensors, before, strict=True), 1):
            if _memory(tensor) != was:
                rule = f"`{entry}` must return a new tensor and leave its inputs as they are"
                raise ContractError(f"{rule}, but it wrote to input {i} of {len(tensors)}")
        self.call = tensors, done, result
        self._write_result(result, file)
        return {"operators": sorted(done.operators)[:20], "launches": done.launches, "compiled": compiled_graphs()}

    def again(self, seed: int, file: str, case: dict[str, Any]) -> None:
        """Put inputs drawn from `seed` where those of the last call lie, launch its kernels and make its copies once more, and
        write the result to `file`. The function is not called."""
        assert self.call is not None
        tensors, done, result = self.call

        @torch.inference_mode()  # the call may have been in it: nothing else may write its tensors
        def repeat() -> None:
            for tensor, new in zip(tensors, self.workload.inputs(seed, self.device, **case), strict=True):
                bare(tensor).copy_(new)
            with no_python_of(self.module.__file__, self.kernel):
                done.repeat()
            self._write_result(result, file)

        in_clean_thread(repeat)

    @contextlib.contextmanager
    def _noted(self, done: Launches) -> Iterator[None]:
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
        safetensors.torch.save_file({"result": bare(result).contiguous().cpu()}, self.home / "exchange" / file)

    def inputs(self, seed: int, case: dict[str, Any]) -> None:
        """Prepare for the calls that are to be timed."""
        self.timed, self.call = case, None  # the memory is needed
        x = self.workload.inputs(seed, self.device, **case)[0]
        self.look = self.workload.Look(*x.shape, x.dtype, self.device)
        read([self.look(x)], self.device)

    def calls(self, entry: str, seed: int, count: int) -> dict[str, Any]:
        """Call the function `count` times, each time with inputs newly drawn from `seed`. The reply holds a look at every result, so
        all of them are there by then."""
        function, looks = getattr(self.module, entry), []
        for tensors in self.workload.anew(seed, self.device, count, **self.timed):
            result = function(*tensors)
            # an object of its own could answer the look and hold nothing
            looks.append(self.look(result) if _is_like(result, tensors[0]) else torch.tensor(math.nan))
        values = read(looks, self.device)
        return {"looks": [look if math.isfinite(look) else None for look in values], "compiled": compiled_graphs()}

    def largest_error(self, seed: int, file: str, case: dict[str, Any]) -> dict[str, Any]:
        """Asked of the trusted arm only: of the result in `file`, in units of what is allowed; null where a number is none."""
        tensors = self.workload.inputs(seed, self.device, **case)
        result, x = received(self.home / "exchange" / file).get("result"), tensors[0]
        if result is None or result.shape != x.shape or result.dtype != x.dtype:
            shown = "nothing" if result is None else f"{tuple(result.shape)}, {result.dtype}"
            return {"differs": f"it is {shown} in place of {tuple(x.shape)}, {x.dtype}"}
        return finite({"largest_error": self.workload.off(result.to(self.device), tensors, case["type"])})


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


# ---------------------------------------------------------------- kernels launched once more

# what makes, fills, copies or views memory, and calculates nothing
STORING = re.compile(
    r"aten::((new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?|scalar_tensor|zero_?|fill_?|set_|copy_?|_to_copy|clone"
    r"|detach_?|alias|lift|lift_fresh|resize_|is_pinned|_pin_memory|(_unsafe_)?view|_reshape_alias"
    r"|as_strided_?|slice|select|diagonal|split(_with_sizes)?|unbind|unfold|expand|unsqueeze_?|squeeze_?|permute|transpose_?|t_?)$"
)


PLAIN = (torch.Tensor, torch.nn.Parameter)  # a class of one's own calculates when it is asked for anything
DETACH = torch.Tensor.detach  # a new tensor over the same memory, with no attribute of its own


class Launches(TorchDispatchMode):
    """What a call did, in order: kernels of Triton's that it launched, and operators of torch that make, fill, copy or view
    memory. Those that calculate are only named; nothing else is seen, or repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Callable[..., Any], Sequence[Any], dict[str, Any], Any]] = []
        self.operators: set[str] = set()
        self.launches = 0
        self.launching = False  # what Triton does with tensors to launch a kernel is a part of the launch

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if set(types) - set(PLAIN):
            raise ContractError("A tensor of a class of its own cannot be looked at. Use plain tensors")
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
            if results is None:  # a launch, which asks nothing of the submission's: no hook, no object of its own
                args, kwargs = [bare(arg) for arg in args], {name: bare(arg) for name, arg in kwargs.items()}
            again = function(*args, **kwargs)
            for result, new in zip(tensors_in((results,)), tensors_in((again,)), strict=False):
                result = bare(result)
                if result.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # else a view, or in place
                    result.copy_(new)


def bare(given: Any) -> Any:
    """What a launch is given or has made, without what could calculate when it is asked for anything, or before the kernel runs."""
    if isinstance(given, torch.Tensor):
        if type(given) not in PLAIN:
            raise ContractError(f"A kernel takes plain tensors, and this is {type_in_words(given)}")
        return DETACH(given)
    if hasattr(given, "pre_run_hooks"):  # the kernel
        given.pre_run_hooks = []
    elif hasattr(given, "data_ptr") or isinstance(getattr(given, "base", None), torch.Tensor):
        if not type(given).__module__.startswith("triton."):
            raise ContractError("A kernel takes tensors and numbers, no objects of your own that have an address")
        given = copy.copy(given)  # a descriptor of a tensor, or a tensor of another type
        given.base = bare(given.base)
    return given


@contextlib.contextmanager
def no_python_of(file: str, kernel: Any) -> Iterator[None]:
    """Raises ContractError where a function of the submission runs in this thread that is no kernel: a hook, say."""

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
        said = f"The function `{ran[0].co_name}` ran while a kernel was launched. A kernel can call only other kernels"
        raise ContractError(said, ran[0].co_firstlineno)


COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def _nested(code: Any) -> Iterator[Any]:
    """A function's code, and that of comprehensions in it."""
    yield code
    for nested in code.co_consts:
        if inspect.iscode(nested) and nested.co_name in COMPREHENSIONS:
            yield from _nested(nested)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Those among an operator's results, which may lie in a list."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, torch.Tensor):
            yield value
