"""The first losses of a job: what it makes gradients of."""

from __future__ import annotations

import contextlib
import sys

import torch


class Losses:
    """Those of backward(), and apart from them those of autograd.grad, which is many a job's way to a penalty."""

    def __init__(self, wanted: int) -> None:
        self.left = {"backward": wanted, "grad": wanted}  # so many more
        self.waiting: dict[str, list[torch.Tensor]] = {"backward": [], "grad": []}
        self.read_so_far: dict[str, list[float]] = {"backward": [], "grad": []}

    def wanted(self, by: str) -> bool:
        return self.left[by] > 0

    def keep(self, tensors, by: str) -> None:
        """One number of each. by: `backward` or `grad`."""
        for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
            tensor = _unwrapped(tensor)
            if _is_plain(tensor):
                with _outside():
                    self.waiting[by].append(tensor.detach().clone() if tensor.numel() == 1 else tensor.detach().mean())
                self.left[by] -= 1

    def read(self) -> None:
        with _outside():
            for by, waiting in self.waiting.items():
                self.read_so_far[by] += [loss.item() for loss in waiting]
        self.ask_no_more()

    def ask_no_more(self) -> None:
        """What was not read is not waited for."""
        self.waiting = {"backward": [], "grad": []}

    @property
    def values(self) -> list[float]:
        return self.read_so_far["backward"] or self.read_so_far["grad"]


def _is_plain(tensor) -> bool:
    """Whether its mean is a number, which one rank alone can read."""
    plain = isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.layout is torch.strided
    return plain and tensor.numel() > 0 and not hasattr(tensor, "device_mesh")


def _unwrapped(tensor):
    """What torch.func has around it, as long as its function runs."""
    functions = torch._C._functorch
    while isinstance(tensor, torch.Tensor) and functions.is_functorch_wrapped_tensor(tensor):
        tensor = functions.get_unwrapped(tensor)
    return tensor


def _outside():
    """Of torch.func's functions: what is computed within one gets lost with it."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    return sys.modules["torch._functorch.pyfunctorch"].temporarily_clear_interpreter_stack()
