"""A chain of operations that calculate little and move much: layer norm of (residual + GELU of (x + bias)).

A function of it takes (x, bias, residual, weight, shift): x and residual (rows, width), a row may lie further apart than its
width; bias, weight and shift (width,); all of one type. It returns a new tensor (rows, width) of that type."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

EPSILON = 1e-5
# How far off a number y of the result may be, in units of 1 + |y|. Of 16-bit types three times the last place: a result that
# is calculated in float32 and rounded once is within it, one that is rounded at every step is not. Of float32 what is left of
# sums far from zero.
WITHIN = {"float32": 1e-4, "bfloat16": 3 * 2**-8, "float16": 3 * 2**-11}
EVERY = 1024  # one element in so many is another in each call: few enough to cost next to nothing, see anew()

PART = 2048  # rows

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(
    seed: int,
    device: torch.device,
    *,
    rows: int,
    width: int,
    type: str,
    gap: int = 0,
    offset: float = 0.0,
    scale: float = 1.0,
) -> Tensors:
    """Random inputs, the same for the same seed. gap: elements between the end of a row and the next one, in x and the
    residual. offset: the mean of the residual. scale: of x, bias and residual; rows that hardly vary show EPSILON."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    x, residual = scale * draw(rows, width + gap), scale * draw(rows, width + gap) + offset
    tensors = (x[:, :width], scale * draw(width), residual[:, :width], 1 + 0.2 * draw(width), draw(width))
    kind = getattr(torch, type)
    x, bias, residual, weight, shift = (tensor if tensor.dtype == kind else _cast(tensor, kind) for tensor in tensors)
    return x, bias, residual, weight, shift


def _cast(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """In another type, with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=tensor.device).copy_(tensor)


def anew(seed: int, device: torch.device, count: int, **case: Any) -> Iterator[Tensors]:
    """The inputs of `count` calls, each unlike any before: from `seed`, and for each call a bias, in x and the residual one element of
    each EVERY, where they lie. Which ones only a look at all tells: a result of old ones is off by 0.045 in a look, by more later."""
    x, bias, residual, *others = inputs(seed, device, **case)
    both = torch.stack([x, residual])  # so that one launch writes to both: beside a call's own there is room for few
    x, residual = both
    generator = torch.Generator(device).manual_seed(seed + 1)
    parts = both.numel() // EVERY
    biases = torch.randn(count, *bias.shape, generator=generator, device=device).to(x.dtype)
    places = torch.randint(EVERY, (count, parts), generator=generator, device=device)
    places += EVERY * torch.arange(parts, device=device)
    values = torch.randn(count, parts, generator=generator, device=device).to(x.dtype)
    for bias, place, new in zip(biases, places, values, strict=True):
        both.view(-1)[place] = new
        yield x, bias, residual, *others


def plain(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    """The chain, one operation after the other."""
    hidden = F.gelu(x + bias, approximate="tanh")
    return F.layer_norm(residual + hidden, x.shape[-1:], weight, shift, EPSILON)


def exact(tensors: Tensors) -> torch.Tensor:
    """The chain in float64."""
    return plain(*(tensor.double() for tensor in tensors))


def off(result: torch.Tensor, tensors: Tensors, kind: str) -> float:
    """The largest error of a result on the same device, in units of what is allowed of that type."""
    x, bias, residual, weight, shift = tensors
    errors = []
    for part in (slice(first, first + PART) for first in range(0, len(x), PART)):  # in float64 all rows take several GB
        right = exact((x[part], bias, residual[part], weight, shift))
        errors.append(((result[part].double() - right).abs() / (1 + right.abs())).max())
    return torch.stack(errors).max().item() / WITHIN[kind]


def roof(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """What moves the same bytes and calculates next to nothing: read two tensors, write one."""
    return x + residual


def nothing(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """A result that costs nothing to make: what is left is the price of looking at it."""
    return x


class Look:
    """Looks at results (rows, width): each becomes one number that every element has a part in, about N(0, 1) where they
    are. An element left out, or old, changes it; the last digits of a type hardly do."""

    def __init__(self, rows: int, width: int, kind: torch.dtype, device: torch.device):
        generator = torch.Generator(device).manual_seed(0)
        signs = lambda n: torch.randint(2, (n,), generator=generator, device=device).mul(2).sub(1)  # noqa: E731
        self.rows, self.columns = signs(rows).float(), signs(width).to(kind)
        self.scale = (rows * width) ** -0.5

    def __call__(self, result: torch.Tensor) -> torch.Tensor:
        return (result @ self.columns).float().dot(self.rows) * self.scale
