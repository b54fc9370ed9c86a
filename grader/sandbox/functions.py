"""What is asked of a child where the submission is a function and not a loop."""

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from grader.sandbox.contract import ContractError, type_in_words
from grader.sandbox.launches import PLAIN, Launches, Triton
from grader.sandbox.reading import compiled_graphs, finite, read
from grader.sandbox.weights import received

if TYPE_CHECKING:
    from grader.sandbox.relaunch import Relaunch


class Functions:
    """Of one child. home: its folder; options: the workload's."""

    def __init__(self, workload: Any, options: dict[str, Any], device: torch.device, home: Path) -> None:
        self.workload, self.options, self.device, self.home = workload, options, device, home
        self.module: Any = None  # the submission, once it is loaded
        self.triton: Triton
        self.relaunch: Relaunch | None = None  # in a child without a submission: what another one recorded
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
        self.triton = Triton(os.environ.get("TRITON_INTERPRET") == "1")

    def result(self, entry: str, seed: int, file: str, record: str, case: dict[str, Any]) -> dict[str, Any]:
        """Call the function, and write its result to `file` in the exchange folder, and to `record` what it did, for `again`.
        Returns the operators of torch that calculated, and how many graphs torch.compile has made."""
        function = getattr(self.module, entry)
        # A first call does not count, in which an autotuner may try things out; what it leaves of its own inputs is of no use.
        # the CPU's generator takes 32 bits of a seed
        function(*self.workload.inputs(seed + (1 << 31), self.device, **case))
        tensors = self.workload.inputs(seed, self.device, **case)
        done = Launches(tensors)

        def noted(*given: torch.Tensor) -> Any:
            with self.triton.noted(done), done:
                return function(*given)

        result = self._of_call(noted, entry, tensors)
        self._write_result(result, file)
        done.write(result, self.home / "exchange" / record)
        return {"operators": sorted(done.operators)[:20], "compiled": compiled_graphs()}

    def again(self, record: str, seed: int, file: str, case: dict[str, Any]) -> dict[str, Any]:
        """Of a child without a submission: do `record` with inputs drawn from `seed`, into `file`. Returns the number of kernels."""
        from grader.sandbox.relaunch import Relaunch  # without Triton there are no such labs

        self.relaunch = Relaunch(self.home / "exchange" / record, self.device, self.home / "tmp")
        tensors = self.workload.inputs(seed, self.device, **case)
        self._write_result(self._of_call(self.relaunch, "the kernel", tensors), file)
        return {"launches": self.relaunch.launches}

    def _of_call(self, function: Callable[..., Any], name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the function returns, a tensor, for inputs that it leaves as they are."""
        before = [_memory(tensor) for tensor in tensors]
        result = function(*tensors)
        if type(result) not in PLAIN:
            raise ContractError(f"`{name}` must return a new tensor like x, but it returned {type_in_words(result)}")
        for i, (tensor, was) in enumerate(zip(tensors, before, strict=True), 1):
            if _memory(tensor) != was:
                rule = f"`{name}` must return a new tensor and leave its inputs as they are"
                raise ContractError(f"{rule}, but it wrote to input {i} of {len(tensors)}")
        return result

    def _write_result(self, result: torch.Tensor, file: str) -> None:
        safetensors.torch.save_file({"result": result.detach().contiguous().cpu()}, self.home / "exchange" / file)

    def inputs(self, seed: int, case: dict[str, Any]) -> None:
        """Prepare for the calls that are to be timed."""
        self.timed = case
        x = self.workload.inputs(seed, self.device, **case)[0]
        self.look = self.workload.Look(*x.shape, x.dtype, self.device)
        read([self.look(x)], self.device)

    def calls(self, entry: str, seed: int, count: int) -> dict[str, Any]:
        """Call the function `count` times, with inputs newly drawn from `seed`. The reply looks at every result, so all are there then."""
        function, looks = self.relaunch or getattr(self.module, entry), []
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
