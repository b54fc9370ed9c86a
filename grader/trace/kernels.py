"""What the name of a kernel or of an operator tells: what it does, and on which units.

Names of cuBLAS, cuDNN and CUTLASS hold the instruction (`s16816gemm`, `ffma`), Triton's do not. What no name tells stays
unknown."""

from __future__ import annotations

import re

# Operators that launch a matrix product or a convolution (an attention is two products).
MATMUL_OP = re.compile(
    r"aten::_?(mm|addmm|_?addmm_activation|bmm|baddbmm|addbmm|mv|addmv|dot|linear|matmul|scaled_mm|grouped_mm"
    r"|conv(olution|_?transpose|_?depthwise)?\w*|cudnn_convolution\w*|miopen_convolution\w*|slow_conv\w*|thnn_conv\w*"
    r"|cudnn_rnn\w*|scaled_dot_product_\w+|flash_attention\w*|efficient_attention\w*|cudnn_attention\w*)$"
    r"|triton_tem_|extern_kernels\."
)
# The patterns for kernels are searched for in names in lower case: five times as fast as re.IGNORECASE.
# Kernels that are one. Layout changes, casts and reductions that such an operator launches beside it are not.
MATMUL_KERNEL = re.compile(
    r"(?<!fb)gemm|gemv|nvjet|xmma|cutlass(?!::\w+_t\b)|winograd|convolve|_conv|conv_|conv[123]d|conv2|scudnn|fprop|dgrad|wgrad"
    r"|flash_(fwd|bwd)|flash_attn|fmha|triton_tem_|fft2d_(r2c|c2r)|cijk_|s\d+cudnn|first_layer_fwd"
)
NO_MATMUL_KERNEL = re.compile(
    r"elementwise_kernel|reduce_kernel|splitkreduce|reducesplitk|triton_(poi|red|per|for)_|nchwtonhwc|nhwctonchw"
    r"|converttensor|compute\w*offsets|reduce_wgrad|epilogue::impl|scal_kernel|multi_tensor_apply|softmax|layer_norm"
    r"|batch_norm|bn_(fw|bw)|nccl"
)
# Fused multiply-add on the ordinary units. These signs are exact, so they are asked first: `volta_sgemm_fp16` reads
# half precision and does not use tensor cores; neither does any matrix-vector product.
ORDINARY_UNITS = re.compile(
    r"ffma|simt|(?<![a-z])g?[sdcz]gemm|gemv|gemmk1|depthwise|winograd|fft2d|scudnn|(dgrad|wgrad)\w*_engine"
    r"|implicit_convolve|precomputed_convolve"
)
# Instruction shapes (m16n8k16 is 16816), or a type that only tensor cores multiply at speed.
TENSOR_CORES = re.compile(
    r"nvjet|(16816|1688|884|8816|16832|16864|161616)(gemm|cudnn|fprop|dgrad|wgrad)|tensorop|tensor\d+x|wgmma|[hi]mma_"
    r"|tf32|bf16|bfloat16|fp16|f16|half|e4m3|e5m2|flash_(fwd|bwd)"
)
# bf16 and fp16 inputs, and what is shorter. nvjet codes the input type in its first letter: t bfloat16, h float16, s float32, q fp8.
HALF = re.compile(
    r"bf16|bfloat16|fp16|(?<![a-z])h?f16|half|nvjet_(sm\d+_)?[thq]|e4m3|e5m2|[a-z]_h(16816|1688|884)gemm|flash_(fwd|bwd)"
)
NOT_HALF = re.compile(
    r"tf32|f32f32|f64f64|(?<![a-z])[sdcz]gemm|nvjet_(sm\d+_)?s|_s1688gemm|scudnn|aligned_f32|_f32_|<float|float const"
)


# Attention in one kernel, and of these the ones that also skip what a causal mask hides: FlashAttention, cuDNN's, and what
# FlexAttention compiles. The memory-efficient kernel (fmha) is not one of them.
ATTENTION = re.compile(r"flash_?(fwd|bwd|attn)|flashattn|sdpa|fmha|flex_attention")
FLASH = re.compile(r"flash|flex_attention")

LAYOUT_KERNEL = re.compile(r"nchwtonhwc|nhwctonchw")  # cuDNN's, between its layouts
COMMUNICATION = re.compile(r"nccl(dev)?kernel|rccl|nvshmem|(one|two)_?shot_?all_?reduce|multimem|cross_device_reduce")


def is_matmul_kernel(name: str) -> bool | None:
    """True, False, or None where the name does not tell (then the operator that launched it does)."""
    lower = name.lower()
    if NO_MATMUL_KERNEL.search(lower):
        return False
    if MATMUL_KERNEL.search(lower):
        return True
    return False if name.startswith(("void at::native::", "at::native::", "triton_")) else None


def on_tensor_cores(name: str) -> bool | None:
    """Whether a matmul kernel runs on tensor cores; None where the name does not tell."""
    name = name.lower()
    if ORDINARY_UNITS.search(name):
        return False
    return True if TENSOR_CORES.search(name) else None


def has_half_inputs(name: str) -> bool | None:
    """Whether a matmul kernel reads bf16, fp16 or 8-bit floats; None where the name does not tell."""
    name = name.lower()
    if HALF.search(name):
        return True
    return False if NOT_HALF.search(name) else None


def is_communication(name: str) -> bool:
    """Whether a kernel is a collective or a send or receive between GPUs."""
    return COMMUNICATION.search(name.lower()) is not None


def changes_layout(name: str) -> bool:
    """Whether a kernel is a conversion between cuDNN's layouts, NCHW and NHWC."""
    return LAYOUT_KERNEL.search(name.lower()) is not None


# What a kernel is for, where it is no product or convolution: the first of these whose sign its name holds.
FAMILIES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("attention", r"flash_?(fwd|bwd|attn)|fmha|attention|sdpa"),
        ("fused by a compiler", r"triton_(poi|red|per|for|spl|mix)_|nvfuser"),
        ("optimizer", r"multi_tensor_apply|fused_?(adam|sgd|optimizer)|adamfunctor"),
        ("softmax and loss", r"softmax|nll_loss|cross_entropy|bce_|mse_"),
        (
            "normalisation",
            r"batch_?norm|(?<![a-z])bn_?(fw|bw)|(layer|group|rms|instance)_?norm|rowwisemoments|gammabeta"
            r"|computefusedparams|computeinternalgradients|::ln_(fwd|bwd)",
        ),
        ("embedding, index, sort", r"embedding|index|gather|scatter|krn_partial|compute_grad_weight|sort|topk|nonzero"),
        ("pooling and resizing", r"pool|upsample|interpolate|grid_sampler"),
        (
            "layout, copy, cast",
            r"copy_kernel|copy_device|catarray|nchwtonhwc|nhwctonchw|converttensor|tensortransform|transpose|permute"
            r"|im2col|col2im|vol2col|roll_cuda|flip_kernel|triu|tril",
        ),
        ("random and dropout", r"dropout|distribution_|philox|random_|bernoulli"),
        ("reduction", r"reduce|cub::|scan_|cumsum|lpnorm"),
        ("elementwise", r"elementwise|functor|pointwise|fill|add_tensor|op_tensor|activation|_kernel_impl"),
    )
)
FIRST = ("attention", "fused by a compiler")  # even where the name looks like a product
CONVOLUTION = re.compile(r"conv|[fd]prop|dgrad|wgrad|winograd|\d*cudnn_|s\d+cudnn|fft2d|first_layer_fwd")
MEMCPY = re.compile(r"(?:Memcpy|Copy)\s*([A-Z]to[A-Z])|CopyHostToDevice")


def family(name: str) -> str:
    """What a GPU event is for, by its name: "gemm on tensor cores", "normalisation", "copy HtoD", ..."""
    if copy := MEMCPY.match(name):
        return f"copy {copy[1] or 'HtoD'}"
    if name.startswith("Memset"):
        return "memset"
    if is_communication(name):
        return "communication"
    lower = name.lower()
    found = next((found for found, pattern in FAMILIES if pattern.search(lower)), "other")
    if found not in FIRST and is_matmul_kernel(name):
        units = {True: " on tensor cores", False: " on ordinary units", None: ""}[on_tensor_cores(name)]
        return ("conv" if CONVOLUTION.search(lower) else "gemm") + units
    return found
