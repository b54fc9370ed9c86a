"""The lever for attention that is written out: softmax(q @ k.T * scale + mask) @ v becomes one call of scaled_dot_product_attention.

A product that may be the scores of attention is kept as a promise, `Scores`. What is done to it decides: a softmax chain that
ends in the product with v is fused, anything else computes the scores as written. Code that is compiled is left alone."""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

PLAIN = (torch.Tensor, torch.nn.Parameter)
WIDEST = 256  # head dimension of fused kernels
FACTS = {
    getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "layout")
} | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.type, torch.Tensor.numel, torch.Tensor.is_floating_point}  # fmt: skip
MATMUL = torch.matmul
PRODUCTS = {MATMUL, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__}
CASTS = (torch.Tensor.to, torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.type_as)
SCALES = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__)
SHARES = (torch.div, torch.Tensor.div, torch.Tensor.__truediv__)
SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
FILLS = (torch.masked_fill, torch.Tensor.masked_fill)
SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)
EINSUM = torch.einsum  # all of these before they are patched


class Scores(torch.Tensor):
    """q @ k, where k is transposed already, and what followed; nothing of it is computed yet."""

    @staticmethod
    def __new__(cls, q, k, calls=(), scale=1.0, mask=None, softmax=False, dropout=0.0, dtype=None):
        shape = (*q.shape[:-1], k.shape[-1])
        new = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype or q.dtype, device=q.device)
        new.q, new.k, new.calls, new.value = q, k, calls, None
        new.scale, new.mask, new.softmaxed, new.dropout = scale, mask, softmax, dropout
        return new

    def then(self, call, **changed) -> Scores:
        state = {"scale": self.scale, "mask": self.mask, "softmax": self.softmaxed, "dropout": self.dropout}
        return Scores(
            self.q, self.k, (*self.calls, call), dtype=changed.pop("dtype", self.dtype), **{**state, **changed}
        )

    def computed(self) -> torch.Tensor:
        """As the job wrote it."""
        if self.value is None:
            self.value = MATMUL(self.q, self.k)
            for function, args, kwargs in self.calls:
                self.value = function(*(self.value if each is None else each for each in args), **kwargs)
        return self.value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        found = _followed(func, args, kwargs)
        if found is not None:
            return found
        args = torch.utils._pytree.tree_map(
            lambda each: each.computed() if isinstance(each, Scores) else each, (args, kwargs)
        )
        return func(*args[0], **args[1])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(f"{func} took attention's scores in a way that can't be followed")


def _followed(func, args, kwargs):
    """The promise after this call, or attention's result; None where the scores must be computed."""
    scores = next((each for each in args if isinstance(each, Scores)), None)
    if scores is None or scores.value is not None or sum(isinstance(each, Scores) for each in args) > 1:
        return None
    if func is EINSUM:
        args = (*args[1:], args[0])
    if args[0] is not scores and func not in (torch.mul, torch.add):
        return None
    others = [each for each in args if each is not scores]
    call = (func, tuple(None if each is scores else each for each in args), kwargs)
    if scores.softmaxed:
        return _after_softmax(scores, func, others, kwargs, call)
    if func in SCALES + SHARES and len(others) == 1 and isinstance(others[0], (int, float)) and not kwargs:
        return (
            scores.then(call, scale=scores.scale * others[0] if func in SCALES else scores.scale / others[0])
            if scores.mask is None
            else None
        )
    if func in FILLS and len(others) == 2 and isinstance(others[1], (int, float)):
        return _masked(scores, call, torch.where(others[0], float(others[1]), 0.0))
    if func in SUMS and len(others) == 1 and isinstance(others[0], torch.Tensor) and not kwargs:
        return _masked(scores, call, others[0])
    if func in SOFTMAX:
        named = (
            dict(zip(("dim", "_stacklevel", "dtype") if func is F.softmax else ("dim", "dtype"), others, strict=False))
            | kwargs
        )
        if named.get("dim") in (-1, scores.dim() - 1):
            return scores.then(call, softmax=True, dtype=named.get("dtype") or scores.dtype)
        return None
    return _cast(scores, func, others, kwargs, call)


def _after_softmax(scores, func, others, kwargs, call):
    if func is F.dropout:
        named = {"p": 0.5, "training": True, **dict(zip(("p", "training", "inplace"), others, strict=False)), **kwargs}
        if scores.dropout or named.get("inplace"):
            return None
        return scores.then(call, dropout=named["p"] if named["training"] else 0.0)
    if (
        func is EINSUM
        and len(others) == 2
        and _letters(others[1], lambda a, b, out: a[-1] == b[-2] and out == a[:-1] + b[-1])
    ):
        return _fused(scores, others[0])
    if func in PRODUCTS and len(others) == 1:
        return _fused(scores, others[0])
    return _cast(scores, func, others, kwargs, call)


def _cast(scores, func, others, kwargs, call):
    """Only the precision changes: the fused kernel sums in float32 anyway."""
    if func not in CASTS or kwargs.keys() - {"dtype"}:
        return None
    to = kwargs.get("dtype", others[0] if others else None)
    to = {
        torch.Tensor.float: torch.float32,
        torch.Tensor.half: torch.float16,
        torch.Tensor.bfloat16: torch.bfloat16,
    }.get(func, to)
    to = to.dtype if isinstance(to, torch.Tensor) else to
    return scores.then(call, dtype=to) if isinstance(to, torch.dtype) and len(others) <= 1 else None


def _masked(scores, call, mask):
    if not mask.is_floating_point() or torch.broadcast_shapes(mask.shape, scores.shape) != scores.shape:
        return None
    return scores.then(call, mask=mask if scores.mask is None else scores.mask + mask)


def _fused(scores, v):
    q, k = scores.q, scores.k.transpose(-2, -1)
    same = isinstance(v, torch.Tensor) and v.dtype == q.dtype and v.shape[:-1] == k.shape[:-1]
    if not same and not (torch.is_autocast_enabled(q.device.type) and v.shape[:-1] == k.shape[:-1]):
        return None
    mask = scores.mask
    if mask is not None:
        mask = mask.to(torch.get_autocast_dtype(q.device.type) if torch.is_autocast_enabled(q.device.type) else q.dtype)
    told("scaled_dot_product_attention in place of a softmax chain")
    with torch._C.DisableTorchFunctionSubclass():
        return F.scaled_dot_product_attention(q, k, v, mask, scores.dropout, scale=scores.scale)


def _letters(equation, fits) -> bool:
    """Whether a product of two, as einsum spells it, is the one that `fits` says."""
    if not isinstance(equation, str) or "." in equation:
        return False
    left, _, out = equation.replace(" ", "").partition("->")
    a, _, b = left.partition(",")
    return len(a) == len(b) == len(out) >= 3 and a[:-2] == b[:-2] and fits(a, b, out)


def _may_be_scores(q, k) -> bool:
    if type(q) not in PLAIN or type(k) not in PLAIN or q.dim() not in (3, 4) or k.dim() != q.dim():
        return False
    return (
        q.shape[:-2] == k.shape[:-2]
        and 8 <= q.shape[-1] == k.shape[-2] <= WIDEST
        and k.stride(-2) == 1 < k.stride(-1)
        and q.is_floating_point()
        and q.dtype == k.dtype
        and torch.is_grad_enabled()
    )


def told(what) -> None:
    """Set by `pull`."""


def pull(note) -> None:
    """note: told that attention was fused."""
    global told
    told = note

    def product(original):
        @functools.wraps(original)
        def call(*args, **kwargs):
            if not torch.compiler.is_compiling() and len(args) == 2 and not kwargs and _may_be_scores(*args):
                return Scores(*args)
            return original(*args, **kwargs)

        PRODUCTS.add(call)  # a method is looked up by its name when `__torch_function__` is told
        return call

    def einsum(equation, *operands):
        if not torch.compiler.is_compiling() and len(operands) == 2:
            q, k = operands
            if isinstance(k, torch.Tensor) and _letters(
                equation, lambda a, b, out: a[-1] == b[-1] and out == a[:-1] + b[-2]
            ):
                k = k.transpose(-2, -1)
                if _may_be_scores(q, k):
                    return Scores(q, k)
        return EINSUM(equation, *operands)

    for owner, name in (
        (torch, "matmul"),
        (torch, "bmm"),
        *((torch.Tensor, name) for name in ("matmul", "bmm", "__matmul__")),
    ):
        setattr(owner, name, product(getattr(owner, name)))
    torch.einsum = functools.wraps(EINSUM)(einsum)
