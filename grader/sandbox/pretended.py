"""In a child: what PyTorch would show and do on an older or smaller GPU, as far as it can be had on a newer one.

Not pretended: how fast its units are and how Triton compiles. Autocast inside of a compiled function is traced by its arguments, so
bf16 stays fast there."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from grader.devices import Pretence, native

_properties, _memory_info = torch.cuda.get_device_properties, torch.cuda.mem_get_info


def total_memory(device: int) -> int:
    """Bytes of the GPU that is really here."""
    return int(_properties(device).total_memory)


class _Properties:
    """A GPU's own, but for what is pretended."""

    def __init__(self, own: Any, **pretended: Any):
        self.__dict__.update(pretended, _own=own)

    def __getattr__(self, name: str) -> Any:
        if name == "_own":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._own, name)


def pretend(capability: Sequence[int], total: int) -> None:
    """Have PyTorch in this process see such a GPU, see `Pretence`. Before CUDA is initialised."""
    seen = Pretence((capability[0], capability[1]), total)
    units = native(seen.capability)
    _show(seen)
    _compile_for_the_real()
    torch.cuda._lazy_call(lambda: _limit(total))
    if "tf32" not in units:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # cuBLAS and cuDNN keep to fp32, whatever they are told
    if "bf16" not in units:
        _slow_bf16()
    if "flash" not in units:
        for backend in ("flash", "cudnn"):
            _without(backend)


def _show(seen: Pretence) -> None:
    major, minor = seen.capability

    def properties(device: Any = None) -> Any:
        return _Properties(_properties(device), major=major, minor=minor, name=seen.name, total_memory=seen.total)

    def memory_info(device: Any = None) -> tuple[int, int]:
        free, total = _memory_info(device)
        return seen.left(free, total - free), seen.total

    torch.cuda.get_device_capability = lambda device=None: seen.capability
    torch.cuda.get_device_name = lambda device=None: seen.name
    torch.cuda.get_device_properties = properties
    torch.cuda.mem_get_info = memory_info


def _compile_for_the_real() -> None:
    """A kernel that Triton made for the pretended GPU could not be loaded here."""
    # not above: it takes a second, and only a pretence needs it
    from torch._dynamo.device_interface import CudaInterface

    def capability(device: Any = None) -> int:
        own = _properties(device)
        return int(own.major) * 10 + int(own.minor)

    CudaInterface.get_compute_capability = staticmethod(capability)  # type: ignore[assignment, method-assign]


def _limit(memory: int) -> None:
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total_memory(device)), device)


def _slow_bf16() -> None:
    """Autocast to bf16 changes nothing: without TF32 that is as slow as emulation on the CUDA cores."""
    enter = torch.autocast.__enter__

    def entered(self: Any) -> Any:
        if self.device == "cuda" and self.fast_dtype is torch.bfloat16:
            self._enabled = False
        return enter(self)

    torch.autocast.__enter__ = entered  # type: ignore[method-assign]


def _without(backend: str) -> None:
    """No attention kernel of this backend: every switch for it leaves it off."""
    switch = getattr(torch._C, f"_set_sdp_use_{backend}")
    switch(False)
    setattr(torch._C, f"_set_sdp_use_{backend}", lambda enabled: switch(False))
