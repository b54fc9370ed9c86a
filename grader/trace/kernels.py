"""What the name of a kernel or of an operator tells: what it does, and on which units.

Names of cuBLAS, cuDNN and CUTLASS hold the instruction (`s16816gemm`, `ffma`). What no name tells, as of Triton's, stays unknown."""

import re
from functools import lru_cache

MOST_KNOWN = 4096  # names whose answers are kept: long ones take a while
# Operators that launch a matrix product or a convolution (an attention is two products).
MATMUL_OP = re.compile(
    r"aten::_?(mm|addmm|_?addmm_activation|bmm|baddbmm|addbmm|mv|addmv|dot|linear|matmul|scaled_mm|grouped_mm"
    r"|conv(olution|_?transpose|_?depthwise)?\w*|cudnn_convolution\w*|miopen_convolution\w*|slow_conv\w*|thnn_conv\w*"
    r"|cudnn_rnn\w*|scaled_dot_product_\w+|flash_attention\w*|efficient_attention\w*|cudnn_attention\w*)$"
    r"|triton_tem_|extern_kernels\."
)
# The patterns for kernels are searched for in names in lower case: five times as fast as re.IGNORECASE. None has \w*:
# a name may have a million letters, and would be gone through to its end from many of them.
# Attention in one kernel. `ATTENTION` names it, `BESIDE_ATTENTION` what only prepares its inputs or its cache.
ATTENTION = re.compile(
    r"attn|attention|flash_?(fwd|bwd|mla|decod)|sdpa|fmha|(?<![a-z])mmha|(?<![a-z])mha_(fwd|bwd|varlen)|gqa_decode|kernel_mha|xqa|natten"
    r"|(^| )_?fwd_kernel(_stage\d)?(\.kd)?$|(^| )_?bwd_kernel(_dkdv|_dk_dv|_dq)?(\.kd)?$|grouped_kernel_stage\d|decode_(grouped_)?att_m_|sage_?fwd"
    r"|device_kernelin\d+flash|(?<![a-z])pa_(bf16|fp16|ragged|decode|persistent)|mla_([aw]\d|decode|prefill|fwd)|(prefill|decode)with\w{0,200}kvcache"
    # linear attention and state spaces: flash-linear-attention's and Mamba's
    r"|(chunk|parallel)_(\w{1,200}_)?(fwd|bwd)_(kernel|d[a-z]+_kernel)|delta_rule|scaled_dot_kkt|recompute_w_u|fused_recurrent_|_bmm_chunk|mqa_logits"
)
BESIDE_ATTENTION = re.compile(
    r"triton_(_\d|poi|red|per|for|spl|mix)|reshape_and_cache|store_?kv|kv_indices|rotary|_quant|concat_and_cache|metadata|copy_page|set_kv|set_mla|gather_cache|softmax"
    r"|causal_conv|(l2|layer_?|rms_?)norm|cumsum|gating_kernel|attn_(states|mask|bias|lse)|attention_mask"
)
# Of attention the kernels that also skip what a causal mask hides: FlashAttention's, cuDNN's, and what FlexAttention compiles.
# The memory-efficient kernel (fmha) is not one of them.
FLASH = re.compile(r"flash|flex_attention")
# Matrix products of mixtures of experts, of quantised weights, and of Triton.
EXPERTS = re.compile(
    r"(?<!triton__)fused_?moe(?!_(align|sum|gate))|moe_(fused|gemm|wna16|mmq|stage\d|matmul)|fmoe|moefcgemm|moe_kernel_fused|moe\w{0,200}_stage\d"
)
QUANTISED = re.compile(
    r"marlin|machete|awq_(gemm|gemv)|gptq_?(gemm|marlin)|gemm_half_q_half|gemm_forward_4bit|kgemm|exl2|mul_mat(_vec)?_q|tinygemm|qserve"
    r"|bmm_\w{0,200}(e4m3|e2m1|e5m2|bfloat16|fp16|fp32)|deep_?gemm|flatmm|a8w8|w8a8|w4a16|a16w4|fp8_matmul|nvfp4_gemm|mxfp4_gemm"
)
TRITON_PRODUCT = re.compile(
    r"triton_tem_|triton_mm|(?<![a-z])matmul_(ogs|kernel|persistent)|_matmul(_kernel)?$|(?<![a-z])_?(batched_|grouped_|scaled_)?(mm|bmm|addmm)_kernel"
    r"|(?<![a-z])_?[gq]mm_kernel|(block|int8|fp8)_scaled_mm|wv_?splitk|batch_?matmul|grouped_?matmul|matmul(v\d|\w{0,200}common|$)"
    r"|grouped_mm|scaled_mm|(?<![a-z])_?lora_(shrink|expand)|sgmv|bgmv"
)
# Kernels that are a matrix product or a convolution (an attention is two products). Layout changes, casts and reductions that
# such an operator launches beside it are not.
MATMUL_KERNEL = re.compile(
    r"(?<!fb)gemm(?!a_?(rms|norm|fused))|gemv|nvjet|xmma|cutlass(?!::\w+_t\b)|winograd|convolve|_conv|conv_|conv[123]d|conv2|convolutionforward"
    r"|convolutionbackward|scudnn|fprop|dgrad|wgrad|fft2d_(r2c|c2r)|cijk_|s\d+cudnn|first_layer_fwd"
)
NO_MATMUL_KERNEL = re.compile(
    r"elementwise_kernel|reduce_kernel|splitkreduce|reducesplitk|triton_(poi|red|per|for)_|nchwtonhwc|nhwctonchw"
    r"|converttensor|compute\w{0,200}offsets|reduce_wgrad|epilogue::impl|scal_kernel|multi_tensor_apply|softmax|layer_norm"
    r"|batch_norm|bn_(fw|bw)|nccl|postgsu|moe_(align|sum)|::(routing|finalize|activation|permute)::|im2d2col|precompute_indices"
    r"|src2dst|gemm_preprocess|_transdata|causal_conv1d|reduce_1block|_memset$|castai(core|cpu)"
)
# Kernels that exist only for inputs of 16 bits and less, so that they run on tensor cores whatever their name says.
ONLY_HALF = re.compile(
    rf"{EXPERTS.pattern}|marlin|machete|awq_|gptq|gemm_forward_4bit|gemm_half_q_half|deep_?gemm|flash_?mla|xqa|sage_?(fwd|attn)"
    r"|_?attn_(fwd|bwd)|flashattn|flashattention|(prefill|decode)with\w{0,200}kvcache|unified_attention|paged_attention|fmhasm100"
)
# Fused multiply-add on the CUDA cores. These signs are exact, so they are asked first: `volta_sgemm_fp16` reads
# half precision and does not use tensor cores; neither does any matrix-vector product.
ORDINARY_UNITS = re.compile(
    r"ffma|simt|awq_gemv|_dlops|(?<![a-z])g?[sdcz]gemm|gemv|gemmk1|depthwise|winograd|fft2d|scudnn|(dgrad|wgrad)\w{0,200}_engine"
    r"|implicit_convolve|precomputed_convolve"
)
# Instruction shapes (m16n8k16 is 16816), or a type that only tensor cores multiply at speed.
TENSOR_CORES = re.compile(
    r"nvjet|(16816|1688|884|8816|16832|16864|161616)(gemm|cudnn|fprop|dgrad|wgrad)|tensorop|tensor\d+x|wgmma|[hi]mma_"
    r"|tf32|bf16|bfloat16|fp16|f16|half|e4m3|e5m2|e2m1|mxfp4|nvfp4|fp8|flash_(fwd|bwd)"
    r"|mfma|cijk_\w{0,200}_mi\d+x|xdl|cijk_[a-z]+_[a-z]+_(b|h|f8|b8|i8)"  # AMD: MFMA instructions by name, or 16-bit types
)
# bf16 and fp16 inputs, and what is shorter. nvjet codes the input type in its first letter: t bfloat16, h float16, s float32, q fp8.
HALF = re.compile(
    r"bf16|bfloat16|fp16|(?<![a-z])h?f16|half|nvjet_(sm\d+_)?[thqv]|e4m3|e5m2|e2m1|mxfp4|nvfp4|fp8|[a-z]_h(16816|1688|884)gemm"
    r"|flash_(fwd|bwd)|cijk_[a-z]+_[a-z]+_(b|h|f8|b8)"  # Tensile writes the types after the layouts: BBS, HHS, S
)
NOT_HALF = re.compile(
    r"cijk_[a-z]+_[a-z]+_(s|d|c|z)(_|[bs]_)|tf32|f32f32|f64f64|(?<![a-z])[sdcz]gemm|nvjet_(sm\d+_)?s|_s1688gemm|scudnn|aligned_f32|_f32_|<float|float const"
)


LAYOUT_KERNEL = re.compile(r"nchwtonhwc|nhwctonchw")  # cuDNN's, between its layouts
# Collectives, sends and receives: NCCL and RCCL, those of serving engines and of symmetric memory, exchanges of experts.
COMMUNICATION = re.compile(
    r"nccl(dev)?kernel|ncclsym|(inter|intra)node(_ll)?::|rccl|mscclpp|mscclkernel|nvshmem|(^|[^a-z])mori(::|_)|(?<![a-z])ep_?(dispatch|combine)|deep_ep|pplx|quick_?reduce"
    r"|cross_device_reduce|(one|two)_?shot|multimem|lamport|symmetric_memory|userbuffers|(^|[^a-z])hcom_|hccl|oneccl|send_?recv|(hybrid|nixl)_ep|uccl|moe_?all_?to_?all|moecomm"
    r"|moea2a|moe_?distribute_?(dispatch|combine)|(?<![a-z])a2a(?![a-z])|all2all|(?<![a-z])barrier_all|local_device_load"
    r"|(?<!block)(?<!warp)all_?reduce|all_?gather(?!ed)|reduce_?scatter|all_?to_?all|put_signal|wait_signal"
)
NO_COMMUNICATION = re.compile(r"triton_(poi|red|per|for|spl|mix)_|at::native::")


def is_matmul_kernel(name: str) -> bool | None:
    """True, False, or None where the name does not tell (then the operator that launched it does)."""
    lower = name.lower()
    if is_attention(name):
        return True
    if NO_MATMUL_KERNEL.search(lower) or is_communication(name):
        return False
    if any(sign.search(lower) for sign in (MATMUL_KERNEL, EXPERTS, QUANTISED, TRITON_PRODUCT)):
        return True
    return False if name.startswith(("void at::native::", "at::native::", "triton_")) else None


def on_tensor_cores(name: str) -> bool | None:
    """Whether a matmul kernel runs on tensor cores; None where the name does not tell."""
    name = name.lower()
    if ORDINARY_UNITS.search(name):
        return False
    return True if TENSOR_CORES.search(name) or ONLY_HALF.search(name) else None


def has_half_inputs(name: str) -> bool | None:
    """Whether a matmul kernel reads bf16, fp16 or 8-bit floats; None where the name does not tell."""
    name = name.lower()
    if HALF.search(name) or ONLY_HALF.search(name):
        return True
    return False if NOT_HALF.search(name) else None


@lru_cache(MOST_KNOWN)
def is_communication(name: str) -> bool:
    """Whether a kernel is a collective or a send or receive between GPUs."""
    lower = name.lower()
    return COMMUNICATION.search(lower) is not None and not NO_COMMUNICATION.search(lower)


@lru_cache(MOST_KNOWN)
def is_attention(name: str) -> bool:
    """Whether a kernel is an attention, or a part of one that computes."""
    lower = name.lower()
    return ATTENTION.search(lower) is not None and not BESIDE_ATTENTION.search(lower)


def changes_layout(name: str) -> bool:
    """Whether a kernel is a conversion between cuDNN's layouts, NCHW and NHWC."""
    return LAYOUT_KERNEL.search(name.lower()) is not None


UNKNOWN = "unknown"
# What a kernel is for, where it is no product or convolution: the first of these whose sign its name holds.
FAMILIES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("fused by a compiler", r"triton_(_\d|poi|red|per|for|spl|mix)|nvfuser"),
        (
            "optimizer",
            r"multi_tensor_apply|adam|(fused|apply)_?(sgd|optimizer)|rowwise_adagrad|koptimizer",
        ),
        (
            "caching keys and values",
            r"reshape_and_cache|store_?kv|kv_indices|concat_and_cache|copy_page|set_kv|set_mla|kvcache",
        ),
        ("softmax and loss", r"softmax|nll_loss|cross_entropy|bce_|mse_"),
        (
            "normalisation",
            r"batch_?norm|(?<![a-z])bn_?(fw|bw)|(layer|group|rms|instance|l2)_?norm|rowwisemoments|gammabeta"
            r"|computefusedparams|computeinternalgradients|computebackwardfusedparams|::ln_(fwd|bwd)|rmsnorm",
        ),
        ("quantising", r"quant|qparam|to_float_cuda|cvt_fp|to_fp(4|8)|fp8rowwise"),
        (
            "routing to experts",
            r"src2dst|masked_m_|seg_indptr|(pre|post)_reorder|gateup_input|routing|moe|expert|topkgating|bitmatrix",
        ),
        ("positions", r"rotary|rope|position"),
        (
            "embedding, index, sort",
            r"embedding|index|indices|gather|scatter|krn_partial|compute_grad_weight|sort|topk|nonzero|bucketize|offsets|rocprim"
            r"|sampling|argmax",
        ),
        ("pooling and resizing", r"pool|upsample|interpolate|grid_sampler"),
        (
            "layout, copy, cast",
            r"copy_kernel|copy_device|copy_async|catarray|nchwtonhwc|nhwctonchw|converttensor|tensortransform|transpose|permute"
            r"|im2col|im2d2col|col2im|vol2col|roll_cuda|flip_kernel|triu|tril|dense_representation|transdata|(^|aicore_)cast|castai|concat[dv]|(^|_)(strided)?slice(d|v2)?$",
        ),
        ("random and dropout", r"dropout|distribution_|philox|random_|bernoulli"),
        ("reduction", r"reduce|cub::|scan_|cumsum|lpnorm|dot_do_o|postgsu"),
        (
            "elementwise",
            r"elementwise|functor|pointwise|fill|add_tensor|op_tensor|subtensorop|activation|_kernel_impl|scalepackedtensor|silu|gelu|swiglu"
            r"|act_and_mul|epilogue|geglu|zeroslike|(^|aicore_)(adds?|subs?|muls?|(real)?divs?|sqrt|rsqrt|neg|exp|log|pow|square|addcmul|addcdiv|axpy)$",
        ),
    )
)
FIRST = ("fused by a compiler",)  # even where the name looks like a product
CONVOLUTION = re.compile(r"conv(?!ert)|[fd]prop|dgrad|wgrad|winograd|cudnn_|s\d+cudnn|fft2d|first_layer_fwd")
MEMCPY = re.compile(r"(?:Memcpy|Copy)\s*([A-Z])[a-z]*(?:to|2|To)([A-Z])")


def direction(name: str) -> str | None:
    """ "HtoD" of a copy from host to device, by whatever vendor's name; None for what is no copy."""
    copy = MEMCPY.match(name)
    return f"{copy[1]}to{copy[2]}".replace("M", "H") if copy else None  # M is Intel's host memory


@lru_cache(MOST_KNOWN)
def family(name: str) -> str:
    """What a GPU event is for, by its name: "gemm on tensor cores", "normalisation", "copy HtoD", ..."""
    if way := direction(name):
        return f"copy {way}"
    if name.startswith("Memset"):
        return "memset"
    if is_communication(name):
        return "communication"
    if is_attention(name):
        return "attention"
    lower = name.lower()
    found = next((found for found, pattern in FAMILIES if pattern.search(lower)), UNKNOWN)
    if found not in FIRST and is_matmul_kernel(name):
        units = {True: " on tensor cores", False: " on CUDA cores", None: ""}[on_tensor_cores(name)]
        return ("conv" if CONVOLUTION.search(lower) else "gemm") + units
    return found


def is_unknown(name: str) -> bool:
    """Whether a kernel's name tells nothing of what it is for."""
    return family(name) == UNKNOWN
