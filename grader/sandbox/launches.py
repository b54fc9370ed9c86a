"""What a call of the submission's does with memory and kernels, written down for a process that has nothing of the submission's.

The record is a safetensors file. Its metadata hold one JSON text, "call": kernels (their texts, and what these name), storages,
steps and the result. A tensor is [storage, type, bytes before it, shape, strides]. Who has written it may have made it all up:
`relaunch` takes it for no more than a program in a small language."""

import ast
import contextlib
import inspect
import json
import operator
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.sandbox.contract import ContractError, type_in_words

# what makes, fills, copies or views memory, and calculates nothing
STORING = re.compile(
    r"aten::((new_)?(empty|zeros|ones|full)(_like|_strided|_permuted)?|scalar_tensor|zero_?|fill_?|set_|copy_?|_to_copy|clone"
    r"|detach_?|alias|lift|lift_fresh|resize_|is_pinned|_pin_memory|(_unsafe_)?view|_reshape_alias"
    r"|as_strided_?|slice|select|diagonal|split(_with_sizes)?|unbind|unfold|expand|unsqueeze_?|squeeze_?|permute|transpose_?|t_?)$"
)
FILLING = re.compile(r"aten::((new_)?(zeros|ones|full)|scalar_tensor|zero_?$|fill)")
COPYING = re.compile(r"aten::(copy_?|_to_copy|clone|_pin_memory)$")
PLAIN = (torch.Tensor, torch.nn.Parameter)  # a class of one's own hides what its operators do
KEPT_BYTES = 1 << 20  # of memory that was there before the call, as a table is; of more than that only the size is told


class Launches(TorchDispatchMode):
    """What a call did, in order: Triton kernels that it launched, what it filled and copied, names of operators that calculate."""

    def __init__(self, inputs: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.launches = 0
        # what Triton does with tensors to launch a kernel, and what is done here, is none of the call's
        self.quiet = False
        self.kernels: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self.steps: list[list[Any]] = []
        self.kept: dict[str, torch.Tensor] = {}
        self._held: list[Any] = []  # an address is another's as soon as nobody holds what lies there
        self._places: dict[int, int] = {}
        for i, tensor in enumerate(inputs):
            self._place(tensor, {"input": i, "before": tensor.storage_offset() * tensor.element_size()})

    def write(self, result: Any, file: Path) -> None:
        """The record of a call that returned `result`."""
        call = {"kernels": self.kernels, "steps": self.steps, "result": self._tensor(result), "storages": self.storages}
        safetensors.torch.save_file(self.kept, file, {"call": json.dumps(call)})

    # ---- what torch does

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.quiet:
            return operator(*args, **kwargs)
        if set(types) - set(PLAIN):
            raise ContractError("A tensor of a class of its own cannot be looked at. Use plain tensors")
        with self:
            made = operator.decompose(*args, **kwargs)  # in inference mode nothing else has done so
        if made is not NotImplemented:
            return made
        name = operator._schema.name
        if not STORING.match(name):
            self.operators.add(name)
            return operator(*args, **kwargs)
        given = {a.name: value for a, value in zip(operator._schema.arguments, args, strict=False)} | kwargs
        described = [self._tensor(value) for value in given.values() if isinstance(value, torch.Tensor)]
        made = operator(*args, **kwargs)
        if isinstance(made, torch.Tensor):
            self._place(made, None if name == "aten::set_" else {})
            if FILLING.match(name):
                self._fill(self._tensor(made), name, given)
            elif COPYING.match(name):
                self.steps.append(["copy", self._tensor(made), described[-1]])
        return made

    def _fill(self, made: list[Any], name: str, given: dict[str, Any]) -> None:
        value = given.get("fill_value", given.get("value", given.get("s", int("ones" in name))))
        if isinstance(value, torch.Tensor):
            self.steps.append(["copy", made, self._tensor(value)])
        else:
            self.steps.append(["fill", made, value])

    def _place(self, tensor: torch.Tensor, what: dict[str, Any] | None) -> int:
        """The number of a tensor's storage. what: said of one that nobody saw yet; None where it was there before the call."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._places:
            number = self._places[address] = len(self.storages)
            self._held.append(storage)
            self.storages.append({"device": tensor.device.type} | (what or {}))
            if what is None and storage.nbytes() <= KEPT_BYTES:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                self.kept[str(number)] = whole.cpu().clone()
        number = self._places[address]
        self.storages[number]["bytes"] = storage.nbytes()  # it may have grown
        return number

    def _tensor(self, tensor: torch.Tensor) -> list[Any]:
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            raise ContractError(
                f"A kernel takes plain tensors, and this is {type_in_words(tensor)} of the layout {tensor.layout}"
            )
        with self._quietly():
            before = tensor.storage_offset() * tensor.element_size()
            kind = str(tensor.dtype).removeprefix("torch.")
            return [self._place(tensor, None), kind, before, list(tensor.shape), list(tensor.stride())]

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        was, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = was

    # ---- what Triton does

    def launch(self, run: Callable[..., Any], kernel: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup"):  # that compiles only
            return run(kernel, *args, grid=grid, **kwargs)
        sizes: list[int] = []

        def fixed(meta: Any) -> Any:
            sizes[:] = map(operator.index, grid(meta))  # here: an interpreter's numbers are none afterwards
            return tuple(sizes)

        step = self._step(kernel, args, {k: v for k, v in kwargs.items() if k != "warmup"})
        with self._quietly():
            compiled = run(kernel, *args, grid=fixed if callable(grid) else grid, **kwargs)
        self._launched(step, sizes if callable(grid) else grid)
        return compiled

    def start(self, start: Callable[..., Any], compiled: Any, grid: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch what is compiled with Triton's `start`."""
        options = {name: getattr(compiled.metadata, name, None) for name in ("num_warps", "num_stages", "num_ctas")}
        step = self._step(compiled.src.fn, args, {k: v for k, v in options.items() if v is not None})
        with self._quietly():
            result = start(*args, **kwargs)
        self._launched(step, grid)
        return result

    def _step(self, kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        # before the launch: what it will write to may hold something now
        named = {name: self._value(value) for name, value in kwargs.items()}
        return ["launch", self._kernel(kernel), [], [self._value(arg) for arg in args], named]

    def _launched(self, step: list[Any], grid: Sequence[Any]) -> None:
        step[2] = [*map(operator.index, grid)]
        self.steps.append(step)
        self.launches += 1

    def _kernel(self, kernel: Any) -> int:
        """Its number among those of the call."""
        for number, known in enumerate(self.kernels):
            if known["held"] == id(kernel):
                return number
        number, fn = len(self.kernels), kernel.fn
        self._held.append(kernel)
        try:
            text = textwrap.dedent(inspect.getsource(fn))
            found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name | ast.arg)]
        except (OSError, SyntaxError) as error:
            raise ContractError(f"The text of the kernel `{kernel.__name__}` cannot be found: {error}") from None
        own = {node.arg for node in found if isinstance(node, ast.arg)}
        own |= {node.id for node in found if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names = {node.id for node in found if isinstance(node, ast.Name)} - own
        said = {"held": id(kernel), "text": text, "line": fn.__code__.co_firstlineno, "names": {}}
        said["unspecialised"] = list(getattr(kernel, "do_not_specialize", None) or ())
        self.kernels.append(said)
        free = {
            name: cell.cell_contents for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        }
        for name, value in (fn.__globals__ | free).items():
            if name in names:
                with contextlib.suppress(ContractError):  # a decorator's, say; whoever needs it says that it lacks
                    said["names"][name] = self._value(value)
        return number

    def _value(self, given: Any) -> Any:
        """In JSON: a number or a text as it is, and for anything else {what it is: what it holds}."""
        if given is None or isinstance(given, bool | str):
            return given
        if isinstance(given, Integral):
            return int(given)
        if isinstance(given, Real):
            return float(given)
        if isinstance(given, list | tuple):
            return {"items": [self._value(each) for each in given]}
        if isinstance(given, torch.Tensor):
            return {"tensor": self._tensor(given)}
        if isinstance(given, ModuleType):
            return {"module": given.__name__}
        home, own_name = (getattr(getattr(given, "fn", given), name, "") for name in ("__module__", "__name__"))
        kind = type(given).__name__
        if kind in ("constexpr", "dtype"):
            return {kind: self._value(given.value) if kind == "constexpr" else str(given)}
        if kind == "TensorDescriptor":
            named = {name: self._value(value) for name, value in vars(given).items() if name != "base"}
            return {"descriptor": [self._tensor(given.base), named]}
        if kind == "TensorWrapper":
            return {"reinterpreted": [self._tensor(given.base), self._value(given.dtype)]}
        if own_name and str(home).split(".")[0] == "triton":
            return {"function": [home, own_name]}
        if kind in ("JITFunction", "InterpretedFunction"):
            return {"kernel": self._kernel(given)}
        raise ContractError(f"A kernel takes tensors and numbers, and this is {type_in_words(given)}")


class Triton:
    """What launches kernels of Triton's, as it is without the submission."""

    def __init__(self, interpreted: bool) -> None:
        self.kernel: Any = None  # the classes of kernels, as they were written and compiled
        with contextlib.suppress(ImportError):  # without Triton nothing is launched
            if interpreted:
                from triton.runtime.interpreter import InterpretedFunction as kernel
            else:
                from triton.runtime.jit import JITFunction as kernel
            from triton.compiler import CompiledKernel

            self.kernel, self.run = kernel, kernel.run
            self.compiled, self.made = CompiledKernel, CompiledKernel.__getitem__

    @contextlib.contextmanager
    def noted(self, done: Launches) -> Iterator[None]:
        """Launches are written down in `done` meanwhile."""
        if self.kernel is None:
            yield
            return
        self.kernel.run = lambda kernel, *args, **kwargs: done.launch(self.run, kernel, *args, **kwargs)
        self.compiled.__getitem__ = lambda kernel, grid: partial(done.start, self.made(kernel, grid), kernel, grid)
        try:
            yield
        finally:
            self.kernel.run, self.compiled.__getitem__ = self.run, self.made
