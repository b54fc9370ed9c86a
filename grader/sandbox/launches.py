"""What a call of a function did to tensors, noted so that it can be done again with other numbers in them."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.sandbox.contract import ContractError

# what makes, fills, copies or views memory, and calculates nothing
STORING = re.compile(
    r"aten::((new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?|scalar_tensor|zero_?|fill_?|set_|copy_?|_to_copy|clone"
    r"|detach_?|alias|lift|lift_fresh|resize_|is_pinned|_pin_memory|(_unsafe_)?view|_reshape_alias"
    r"|as_strided_?|slice|select|diagonal|split(_with_sizes)?|unbind|unfold|expand|unsqueeze_?|squeeze_?|permute|transpose_?|t_?)$"
)


class Launches(TorchDispatchMode):
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
            for result, new in zip(tensors_in((results,)), tensors_in((again,)), strict=False):
                if result.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # else a view, or in place
                    result.copy_(new)


@contextlib.contextmanager
def no_python_of(file: str, kernel: Any) -> Iterator[None]:
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
