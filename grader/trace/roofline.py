"""Arithmetic of operators by their shapes: floating-point operations, and the fewest bytes they can move.

A multiplication and an addition are two operations. Bytes: each input read once, each output written once, nothing kept
in a cache from before. What the shapes do not tell is None."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from grader.devices import peaks as peaks  # here for the notebooks, too

Shape = tuple[int, ...]

# Bytes of an element, by the names that torch.profiler gives to types.
ITEM_SIZES = {
    **dict.fromkeys(("double", "long", "long int", "unsigned long", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int", "unsigned int", "c10::complex<c10::Half>"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int", "unsigned short"), 2),
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz"), 1),
    "c10::complex<double>": 16,
}
NO_TENSOR = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "Generic", "Device", "Optional")
# Of the tensors in a list the profiler records the shapes, up to some tens of them, and never the types: no bytes follow.
LIST = '"TensorList"'
MOST_ELEMENTS = 2**50  # of one tensor; whatever claims more is no tensor
# of one tensor: torch's operators take no more, and a product takes as long as the square of their number
MOST_SIZES = 64


@dataclass(frozen=True)
class Tensor:
    shape: Shape
    item: int | None  # bytes of an element, None where its type is not known

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int | None:
        return None if self.item is None else self.elements * self.item


@dataclass(frozen=True)
class Work:
    """Of one call."""

    flops: int | None
    bytes: int | None


def inputs(dims: str | None, types: str | None) -> list[Tensor | None]:
    """An operator's inputs by "Input Dims" and "Input type" (JSON); None for one that is no single tensor; empty for nonsense."""
    shapes = _shapes(dims)
    try:
        names = msgspec.json.decode(types or "[]", type=list[str])
    except msgspec.MsgspecError:
        return []
    found: list[Tensor | None] = []
    for position, shape in enumerate(shapes):
        name = names[position] if position < len(names) else None
        # Without types a scalar cannot be told from a number that is a tensor.
        wanted = name not in NO_TENSOR if name is not None else bool(shape)
        sizes = _real(shape) if wanted else None
        found.append(None if sizes is None else Tensor(sizes, ITEM_SIZES.get(name or "")))
    return found


def _shapes(dims: str | None) -> list[list[int | list[int]]]:
    """One for each input; of a list of tensors a list of theirs. Empty when they make no sense."""
    try:
        return msgspec.json.decode(dims or "[]", type=list[list[int | list[int]]])
    except msgspec.MsgspecError:
        return []


def _real(shape: Sequence[int | list[int]]) -> Shape | None:
    """The shape, if it is one tensor's."""
    if len(shape) > MOST_SIZES:
        return None
    sizes = tuple(size for size in shape if isinstance(size, int) and size >= 0)
    return sizes if len(sizes) == len(shape) and prod(sizes) <= MOST_ELEMENTS else None


def largest_input(dims: str) -> int:
    """The numbers in an operator's largest input, a tensor or a list of them. 0 where the shapes make no sense."""
    return max(map(_elements, _shapes(dims)), default=0)


def _elements(shape: list[int | list[int]]) -> int:
    """How many a tensor of this shape holds, or the tensors of these shapes."""
    lists = [each for each in shape if isinstance(each, list)] if shape and isinstance(shape[0], list) else [shape]
    return sum(prod(sizes) for each in lists if each and (sizes := _real(each)) is not None)


# --- matrix products and convolutions ----------------------------------------------------------------------------
# Each formula takes the shapes of the inputs (None: no tensor), the output's shape where it is known, and how many
# gradients are computed; it returns the operations, which inputs are read, and the elements written. Shapes that do not
# fit raise ValueError, IndexError or TypeError, and the work is unknown.

Formula = Callable[[list[Shape | None], Shape | None, int], tuple[int, tuple[int, ...], int]]


def _mm(first: int, batched: bool = False) -> Formula:
    """a (.., n, k) times b (.., k, m), at positions first and first + 1; an input before them is added."""

    def formula(shapes, output, grads):
        (*batch, n, k), (*other, inner, m) = shapes[first], shapes[first + 1]
        if k != inner or batch != other or bool(batch) != batched:
            raise ValueError
        return 2 * prod(batch) * n * k * m, tuple(range(first + 2)), prod(batch) * n * m

    return formula


def _addbmm(shapes, output, grads):
    flops, read, _ = _mm(1, batched=True)(shapes, output, grads)
    return flops, read, shapes[1][1] * shapes[2][2]


def _mv(first: int) -> Formula:
    def formula(shapes, output, grads):
        (n, k), (inner,) = shapes[first], shapes[first + 1]
        if k != inner:
            raise ValueError
        return 2 * n * k, tuple(range(first + 2)), n

    return formula


def _dot(shapes, output, grads):
    ((n,), (m,)) = shapes[:2]
    if n != m:
        raise ValueError
    return 2 * n, (0, 1), 1


def _linear(shapes, output, grads):
    (*batch, k), (*m, inner) = shapes[0], shapes[1]
    if k != inner or len(m) > 1:
        raise ValueError
    return 2 * prod(batch) * k * prod(m), (0, 1, 2), prod(batch) * prod(m)


def _matmul(shapes, output, grads):
    a, b = shapes[0], shapes[1]
    (*batch_a, n, k) = a if len(a) > 1 else (1, *a)
    (*batch_b, inner, m) = b if len(b) > 1 else (*b, 1)
    if k != inner:
        raise ValueError
    batch = prod(np.broadcast_shapes(batch_a, batch_b))
    return 2 * batch * n * k * m, (0, 1), batch * n * m


def _conv_flops(x: Shape, weight: Shape, output: Shape) -> int:
    """Each output is a product with one filter: 2 x output x (channels of a group x filter); transposed, with the roles swapped."""
    transposed = x[1] == weight[0] and (output[1] != weight[0] or prod(output) > prod(x))
    if not len(x) == len(weight) == len(output) or not (transposed or output[1] == weight[0]):
        raise ValueError
    return 2 * prod(x if transposed else output) * prod(weight[1:])


def _conv(shapes, output, grads):
    if output is None:
        raise ValueError
    return _conv_flops(shapes[0], shapes[1], output), (0, 1, 2), prod(output)


def _conv_transpose(shapes, output, grads):
    x, weight = shapes[0], shapes[1]
    if len(x) != len(weight) or x[1] != weight[0]:
        raise ValueError
    return 2 * prod(x) * prod(weight[1:]), (0, 1, 2), prod(output or ())


def _conv_backward(shapes, output, grads):
    """The gradients of input and weight cost a convolution each. grads = 1: the weight's only, as of a first layer."""
    gradient, x, weight = shapes[:3]
    written = prod(weight) + (prod(x) if grads == 2 else 0)
    return grads * _conv_flops(x, weight, gradient), (0, 1, 2), written


def _attention(first: int) -> Formula:
    """Queries (.., s, d), keys (.., t, d), values (.., t, e) at `first` and after it; before them the output's gradient.

    Forward: two products. Backward: five, one of them the scores once more. A causal mask is not in the shapes; with
    one, about half of this is computed. As torch.utils.flop_counter counts."""

    def formula(shapes, output, grads):
        (*batch, s, d), (*_, t, inner), (*_, length, e) = shapes[first : first + 3]
        if d != inner or t != length:
            raise ValueError
        scores, values = 2 * prod(batch) * s * t * d, 2 * prod(batch) * s * t * e
        if first == 0:
            return scores + values, (0, 1, 2), prod(batch) * s * e
        written = sum(prod(shape) for shape in shapes[first : first + 3])
        return 3 * scores + 2 * values, (0, 1, 2, 3), written

    return formula


PRODUCTS: tuple[tuple[re.Pattern[str], Formula], ...] = tuple(
    (re.compile(rf"aten::({pattern})$"), formula)
    for pattern, formula in (
        (r"mm|_scaled_mm", _mm(0)),
        (r"addmm_?|_?addmm_activation", _mm(1)),
        (r"bmm", _mm(0, batched=True)),
        (r"baddbmm_?", _mm(1, batched=True)),
        (r"addbmm_?", _addbmm),
        (r"mv", _mv(0)),
        (r"addmv_?", _mv(1)),
        (r"v?dot", _dot),
        (r"linear", _linear),
        (r"matmul", _matmul),
        (r"conv_transpose\dd|\w*convolution_transpose|slow_conv_transpose\dd", _conv_transpose),
        (r"convolution_backward", _conv_backward),
        (
            r"conv[123]d|_?convolution|(cudnn|mkldnn|miopen)_convolution(_relu|_add_relu)?|convolution_overrideable"
            r"|_conv_depthwise2d|conv_depthwise3d|(_?slow|thnn)_conv\w*_forward|_?slow_conv[23]d|thnn_conv2d",
            _conv,
        ),
        (r"scaled_dot_product_attention|_scaled_dot_product_\w+_attention(_for_cpu|_overrideable)?", _attention(0)),
        (r"_scaled_dot_product_\w+_attention(_for_cpu|_overrideable)?_backward", _attention(1)),
    )
)

# One product, none of which calls another.
MATRIX_PRODUCT = re.compile(r"aten::(mm|_scaled_mm|addmm_?|_?addmm_activation|bmm|baddbmm_?|addbmm)$")
FITTING = 16  # bytes


def fits_tensor_cores(tensors: list[Tensor | None]) -> bool | None:
    """Whether a matrix product's sizes are all multiples of 16 bytes, as the fast kernels want them; None where a type is not known.
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#requirements-tc"""
    operands = [t for t in tensors if t and len(t.shape) in (2, 3)]
    if not operands or any(t.item is None for t in operands):
        return None
    return all(size * t.item % FITTING == 0 for t in operands for size in t.shape[-2:] if t.item)


# --- everything else: about no arithmetic, only bytes ------------------------------------------------------------

_UNARY = (
    r"relu6?|gelu|silu|elu|celu|selu|mish|softplus|leaky_relu|hardtanh|hardswish|hardsigmoid|sigmoid|tanh|exp2?|expm1"
    r"|log|log2|log1p|sqrt|rsqrt|reciprocal|neg|abs|sign|sin|cos|erf|floor|ceil|round|pow|square|clamp(_min|_max)?"
    r"|isnan|isinf|bitwise_not|logical_not|_softmax|_log_softmax|triu|tril|nan_to_num|dropout|native_dropout"
    r"|cumsum|cumprod|logcumsumexp|_cum(sum|prod)|flip|roll"
)
_BINARY = (
    r"add|sub|rsub|mul|div|remainder|fmod|maximum|minimum|atan2|lerp|addcmul|addcdiv|where|masked_fill|bitwise_and"
    r"|bitwise_or|logical_and|logical_or|eq|ne|lt|le|gt|ge|mse_loss"
)
_GRADIENT = (
    r"(threshold|gelu|silu|elu|mish|softplus|leaky_relu|hardtanh|hardswish|hardsigmoid|sigmoid|tanh|native_dropout)"
    r"_backward|_(log_)?softmax_backward_data"
)
_NORM = (
    r"(native|cudnn|miopen|_native|_fused)_(batch|layer|group|rms)_norm(_legit\w*)?(_backward)?|_batch_norm_with_update"
    r"|batch_norm_backward"
)
# The output is as large as the inputs are together, broadcast.
ELEMENTWISE = re.compile(rf"aten::({_UNARY}|{_BINARY}|{_GRADIENT}|{_NORM})_?$")
COMPARISON = re.compile(r"aten::(eq|ne|lt|le|gt|ge|isnan|isinf|logical_\w+)$")  # writes one byte each
# The output is small, or it is one of the recorded tensors, as the gradient of a pooling is as large as its input. A
# kernel that the compiler made gets its outputs as arguments.
EACH_ONCE = re.compile(
    r"aten::(sum|mean|prod|std|var|var_mean|amax|amin|max|min|argmax|argmin|any|all|norm|linalg_vector_norm|nll_loss\w*"
    r"|masked_(scatter_?|select)|_?unique(2|_dim|_consecutive)?|topk|kthvalue|mode|(nan)?median|bincount|histc|nonzero|searchsorted"
    r"|upsample_\w+_backward|grid_sampler_[23]d_backward|_?cross_entropy\w*|binary_cross_entropy\w*|\w*pool[123]d\w*|embedding_dense_backward|_fused_(adamw?|sgd)_)$"
    r"|triton_(poi|red|per|for)_"
)
COPY = re.compile(r"aten::copy_$")  # writes the first input, reads the second
FILL = re.compile(r"aten::(fill_|zero_)$")
EMBEDDING = re.compile(r"aten::embedding$")  # reads and writes as many rows as there are indices
# A few rows of the first input.
ROWS = re.compile(r"aten::(_?index_put(_impl)?_?|index_copy_?|(index|scatter)_(add|reduce)_?|scatter_?|gather)$")
SORT = re.compile(r"aten::(arg)?sort$")  # reads and writes keys and places once for each byte of a key
PLACE = 8  # bytes of a place


def is_product(name: str) -> bool:
    """Whether there is a formula for the operations of this operator."""
    return any(pattern.match(name) for pattern, _ in PRODUCTS)


def is_known(name: str) -> bool:
    """Whether the work of this operator follows from its inputs (of some, with the output's shape)."""
    others = (ELEMENTWISE, EACH_ONCE, COPY, FILL, EMBEDDING, ROWS, SORT)
    return is_product(name) or any(pattern.match(name) for pattern in others)


def work(name: str, tensors: list[Tensor | None], output: Shape | None = None, grads: int = 2) -> Work:
    """Work of one call. tensors: of `inputs`; output: the output's shape (for convolutions); grads: how many, see `_conv_backward`."""
    for pattern, formula in PRODUCTS:
        if pattern.match(name):
            try:
                flops, read, written = formula([t.shape if t else None for t in tensors], output, grads)
            except (ValueError, IndexError, TypeError):
                return Work(None, None)
            known = [tensors[position] for position in read if position < len(tensors)]
            item = known[1].item if known[1] else None  # an operand everywhere, never a bias
            return Work(flops, _sum([*(t.bytes for t in known if t), None if item is None else written * item]))
    present = [t for t in tensors if t]
    if not present:
        return Work(0, None) if is_known(name) else Work(None, None)
    if COPY.match(name) or FILL.match(name):
        source = tensors[1] if COPY.match(name) and len(tensors) > 1 else None
        return Work(0, _sum([t.bytes for t in (tensors[0], source) if t]))
    if EMBEDDING.match(name):
        if len(present) < 2 or len(present[0].shape) != 2 or present[0].item is None:
            return Work(0, None)
        rows = present[1].elements * present[0].shape[1] * present[0].item
        return Work(0, _sum([2 * rows, present[1].bytes]))
    if ROWS.match(name):  # of a large table no more than what is put there, or taken from there
        first, others = present[0], present[1:]
        touched = min(first.elements, max((t.elements for t in others), default=first.elements))
        return Work(0, _sum([first.item and touched * first.item, *(t.bytes for t in others)]))
    if SORT.match(name):
        keys, item = present[0].elements, present[0].item
        return Work(0, None if item is None else 2 * keys * (item + PLACE) * item)
    if EACH_ONCE.match(name):
        return Work(0, _sum([t.bytes for t in present]))
    if ELEMENTWISE.match(name):
        largest = max(t.elements for t in present)
        item = max((t.item or 0) for t in present if t.elements == largest) or None
        if COMPARISON.match(name):
            item = 1
        try:
            elements = prod(np.broadcast_shapes(*(t.shape for t in present)))
        except ValueError:  # a normalisation's weights do not broadcast
            elements = largest
        return Work(0, _sum([*(t.bytes for t in present), None if item is None else elements * item]))
    return Work(None, None)


def _sum(parts: list[int | None]) -> int | None:
    return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)


def bound_by(flops: float, bytes_moved: float, peak_flops: float, peak_bytes: float) -> str:
    """ "compute" when arithmetic at its peak would take longer than the bytes at theirs, else "memory"."""
    return "compute" if flops / peak_flops > bytes_moved / peak_bytes else "memory"
