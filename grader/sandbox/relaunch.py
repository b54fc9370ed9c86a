"""A call's launches, fills and copies made once more, from a record (see `launches`) that may be made up."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from safetensors import safe_open
from triton.runtime.jit import reinterpret

from grader.sandbox.contract import ContractError
from grader.sandbox.kernel_text import found, kernel_of

LARGER = "The record of a call has a tensor that is larger than its memory"


class Relaunch:
    """Called with inputs like the recorded call's it returns what the kernels make of them. All else is done before: it is timed."""

    def __init__(self, file: Path, device: torch.device, folder: Path) -> None:
        """folder: for the kernels' texts."""
        self.device, self.folder = device, folder
        self.inputs: tuple[torch.Tensor, ...] = ()
        self.there: dict[int, torch.UntypedStorage] = {}  # of this call
        self.kernels: dict[int, Any] = {}
        with _readable(), safe_open(file, "pt") as record:
            self.call = json.loads((record.metadata() or {})["call"])
            self.kept = {int(name): self._on_device(int(name), record.get_tensor(name)) for name in record.keys()}  # noqa: SIM118
            for number in range(len(self.call["kernels"])):
                self._kernel(number)
            self.steps = [self._step(*step) for step in self.call["steps"]]
            self.result = self._tensor(self.call["result"])
            self.launches = sum(step[0] == "launch" for step in self.call["steps"])

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.inputs, self.there = inputs, dict(self.kept)
        for step in self.steps:
            step()
        with _readable():
            result = self.result()
        self.inputs, self.there = (), {}
        return result

    def _step(self, what: str, first: Any, second: Any, *others: Any) -> Callable[[], Any]:
        if what == "launch":
            args, named = others
            launch = self._kernel(first)[tuple(int(n) for n in second)]
            values = [self._value(arg) for arg in args]
            options = {name: self._value(value) for name, value in named.items()}

            def launched() -> None:
                with _readable():  # what goes wrong in the launch itself is the kernel's
                    args, named = [make() for make in values], {name: make() for name, make in options.items()}
                launch(*args, **named)

            return launched
        if what in ("copy", "fill"):
            target, source = self._tensor(first), self._tensor(second) if what == "copy" else lambda: second

            def written() -> None:
                with _readable():
                    to, value = target(), source()
                (to.copy_ if what == "copy" else to.fill_)(value)

            return written
        raise ContractError(f"The record of a call has a step `{what}`")

    def _on_device(self, number: int, contents: torch.Tensor) -> torch.UntypedStorage:
        return contents.to(self._device(self.call["storages"][number])).untyped_storage()

    def _device(self, said: dict[str, Any]) -> torch.device:
        return torch.device("cpu") if said["device"] == "cpu" else self.device

    def _tensor(self, said: list[Any]) -> Callable[[], torch.Tensor]:
        number, kind, before, shape, strides = said
        dtype, about = getattr(torch, kind), self.call["storages"][number]
        input_number, device = about.get("input"), self._device(about)
        needed = (
            0 if 0 in shape else dtype.itemsize * (1 + sum((n - 1) * k for n, k in zip(shape, strides, strict=True)))
        )

        last: list[Any] = [None, None]  # where the last call's tensor lay, and that tensor: so nothing else lies there

        def make() -> torch.Tensor:
            start, home = before, device
            if input_number is not None:
                given = self.inputs[input_number]
                storage, home = given.untyped_storage(), given.device
                start += given.storage_offset() * given.element_size() - about["before"]
            elif number not in self.there:
                storage = torch.empty(about["bytes"], dtype=torch.uint8, device=device).untyped_storage()
                self.there[number] = storage
            else:
                storage = self.there[number]
            place = storage._cdata, start, storage.nbytes()
            if place != last[0]:
                if start % dtype.itemsize or start < 0 or (needed and start + needed > storage.nbytes()):
                    raise ContractError(LARGER)
                made = torch.empty(0, dtype=dtype, device=home).set_(storage, start // dtype.itemsize, shape, strides)
                last[:] = place, made
            return last[1]

        if min([0, *strides]) < 0:
            raise ContractError(LARGER)
        return make

    def _kernel(self, number: int) -> Any:
        if number not in self.kernels:
            self.kernels[number] = None  # where it needs itself it does not have it
            said = self.call["kernels"][number]
            names = {}
            for name, value in said["names"].items():
                with contextlib.suppress(ContractError):  # a kernel that needs it is told so
                    names[str(name)] = self._value(value)()
            file = self.folder / f"kernel_{number}.py"
            self.kernels[number] = kernel_of(said["text"], said["line"], names, said["unspecialised"], file)
        return self.kernels[number]

    def _value(self, said: Any) -> Callable[[], Any]:
        """What gives the value in each call: its tensors lie elsewhere each time."""
        if not isinstance(said, dict):
            return lambda: said
        ((what, held),) = said.items()
        if what == "items":
            each = [self._value(item) for item in held]
            return lambda: tuple(make() for make in each)
        if what == "tensor":
            return self._tensor(held)
        if what == "reinterpreted":
            base, kind = self._tensor(held[0]), self._value(held[1])
            return lambda: reinterpret(base(), kind())
        if what == "descriptor":
            from triton.tools.tensor_descriptor import TensorDescriptor  # older releases have none

            base, named = (
                self._tensor(held[0]),
                {name: _listed(self._value(value)()) for name, value in held[1].items()},
            )
            return lambda: TensorDescriptor(base(), **named)
        fixed = self._fixed(what, held)
        return lambda: fixed

    def _fixed(self, what: str, held: Any) -> Any:
        match what:
            case "kernel":
                return self._kernel(held)
            case "constexpr":
                return tl.constexpr(self._value(held)())
            case "dtype":
                return tl.dtype(held)
            case "module":
                return found(held, "")
            case "function":
                return found(*held)
        raise ContractError(f"The record of a call has a value of the kind `{what}`")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ContractError:
        raise
    except Exception as error:  # whatever a record that is made up leads to
        raise ContractError(f"The record of a call cannot be read: {type(error).__name__}: {error}") from None
