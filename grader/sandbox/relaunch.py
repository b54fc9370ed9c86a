"""A call's launches, fills and copies made once more, from a record (see `launches`) that may be made up."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton.language as tl
from safetensors import safe_open
from triton.runtime.jit import reinterpret

from grader.sandbox.contract import ContractError
from grader.sandbox.kernel_text import found, kernel_of


class Relaunch:
    """Called with inputs like the recorded call's it returns what the kernels make of these."""

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
            self.launches = sum(step[0] == "launch" for step in self.call["steps"])

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.inputs, self.there = inputs, dict(self.kept)
        for step in self.call["steps"]:
            self._make(*step)
        result = self._tensor(self.call["result"])
        self.inputs, self.there = (), {}
        return result

    def _make(self, what: str, first: Any, second: Any, *others: Any) -> None:
        """One step."""
        if what == "launch":
            with _readable():
                args, named = others
                grid = tuple(int(n) for n in second)
                values = [self._value(arg) for arg in args]
                options = {name: self._value(value) for name, value in named.items()}
            self._kernel(first)[grid](*values, **options)
        elif what == "copy":
            self._tensor(first).copy_(self._tensor(second))
        elif what == "fill":
            self._tensor(first).fill_(second)
        else:
            raise ContractError(f"The record of a call has a step `{what}`")

    def _on_device(self, number: int, contents: torch.Tensor) -> torch.UntypedStorage:
        return contents.to(self._device(self.call["storages"][number])).untyped_storage()

    def _device(self, said: dict[str, Any]) -> torch.device:
        return torch.device("cpu") if said["device"] == "cpu" else self.device

    def _tensor(self, said: list[Any]) -> torch.Tensor:
        with _readable():
            return self._described(said)

    def _described(self, said: list[Any]) -> torch.Tensor:
        number, kind, before, shape, strides = said
        dtype = getattr(torch, kind)
        about = self.call["storages"][number]
        if "input" in about:
            given = self.inputs[about["input"]]
            storage, device = given.untyped_storage(), given.device
            before += given.storage_offset() * given.element_size() - about["before"]
        else:
            device = self._device(about)
            if number not in self.there:
                self.there[number] = torch.empty(about["bytes"], dtype=torch.uint8, device=device).untyped_storage()
            storage = self.there[number]
        end = before + dtype.itemsize * (1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)))
        if (
            before % dtype.itemsize
            or before < 0
            or min([0, *strides]) < 0
            or (0 not in shape and end > storage.nbytes())
        ):
            raise ContractError("The record of a call has a tensor that is larger than its memory")
        return torch.empty(0, dtype=dtype, device=device).set_(storage, before // dtype.itemsize, shape, strides)

    def _kernel(self, number: int) -> Any:
        if number not in self.kernels:
            self.kernels[number] = None  # where it needs itself it does not have it
            said = self.call["kernels"][number]
            names = {}
            for name, value in said["names"].items():
                with contextlib.suppress(ContractError):  # a kernel that needs it is told so
                    names[str(name)] = self._value(value)
            file = self.folder / f"kernel_{number}.py"
            self.kernels[number] = kernel_of(said["text"], said["line"], names, said["unspecialised"], file)
        return self.kernels[number]

    def _value(self, said: Any) -> Any:
        if not isinstance(said, dict):
            return said
        ((what, held),) = said.items()
        match what:
            case "items":
                return tuple(self._value(each) for each in held)
            case "tensor":
                return self._tensor(held)
            case "kernel":
                return self._kernel(held)
            case "constexpr":
                return tl.constexpr(self._value(held))
            case "dtype":
                return tl.dtype(held)
            case "module":
                return found(held, "")
            case "function":
                return found(*held)
            case "reinterpreted":
                return reinterpret(self._tensor(held[0]), self._value(held[1]))
            case "descriptor":
                from triton.tools.tensor_descriptor import TensorDescriptor  # older releases have none

                named = {name: self._value(value) for name, value in held[1].items()}
                return TensorDescriptor(self._tensor(held[0]), **{k: _listed(v) for k, v in named.items()})
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
