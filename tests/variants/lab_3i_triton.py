UNMADE = True  # the starter has none of what is asked for: halves of the fix are edits of the solution

HALVES = {"one warp a row": [("num_warps=min(16, max(1, block // 512))", "num_warps=1")]}

HONEST: dict[str, list[tuple[str, str]]] = {}

WRONGS = {
    "the mask forgotten in the variance": (
        "solution",
        [("tl.where(inside, y - mean, 0.0)", "y - mean")],
        "no power of two: off by",
    ),
    "the stride of a row taken for its width": (
        "solution",
        [("row * x_stride", "row * width"), ("row * residual_stride", "row * width")],
        "rows that lie apart: off by",
    ),
    "mean square less squared mean": (
        "solution",
        [
            (
                "variance = tl.sum(centred * centred, axis=0) / width",
                "variance = tl.sum(y * y, axis=0) / width - mean * mean",
            )
        ],
        "float32, far from zero: off by",
    ),
    "no epsilon": (
        "solution",
        [("tl.rsqrt(variance + epsilon)", "tl.rsqrt(variance)")],
        "float32, rows that hardly vary: off by",
    ),
    "calculated in 16 bits": ("solution", [(".to(tl.float32)", "")], "bfloat16: The submission raised"),
    "float32 for every result": ("solution", [("dtype=x.dtype", "dtype=torch.float32")], "in place of"),
    "layer norm left to torch": (
        "solution",
        [("    return out", "    return torch.nn.functional.layer_norm(out, (width,))")],
        "operators of torch calculated: aten::native_layer_norm",
    ),
    "numpy": (
        "solution",
        [
            ("@triton.jit\n", ""),
            ("    rows, width = x.shape\n", "    return torch.from_numpy(x.float().numpy() * 1)\n"),
        ],
        "launched no kernel that is decorated with @triton.jit",
    ),
}
