from grader.kinds.kernel import Bench, Cases, KernelLab, Roof

LAB = KernelLab(
    name="3i_triton",
    title="A kernel of your own: one in place of four",
    phase=3,
    goal="Write bias, GELU, residual and layer norm as one Triton kernel. It must be right for every shape and type, and as fast as the memory.",
    entry="fused",
    forms={
        # 268 MB a tensor: more than any cache holds, and long enough for the launches to hide
        "cuda": Bench(timed={"rows": 32768, "width": 4096, "type": "bfloat16"}, calls=400),
        # Triton's interpreter runs the kernel, on a few rows; how fast it is says nothing
        "cpu": Bench(timed=None, threads=1, environment={"TRITON_INTERPRET": "1"}),
    },
    # widths well below the next power of two: what is added beyond a row's end shows
    cases=(
        Cases(
            name="shapes",
            title="Right for every shape",
            points=30,
            sizes={
                "a power of two": {"rows": (3, 40), "width": 512, "type": "float32"},
                "no power of two": {"rows": (3, 40), "width": (513, 700), "type": "float32"},
                "wide rows": {"rows": (2, 6), "width": (4200, 5500), "type": "float32"},
                "narrow rows": {"rows": (3, 40), "width": (9, 12), "type": "float32"},
                "a single row": {"rows": 1, "width": (130, 190), "type": "float32"},
                "rows that lie apart": {"rows": (3, 40), "width": (65, 95), "type": "float32", "gap": (1, 64)},
            },
            hints=(
                "Which shapes did you have in mind when you wrote it? Which ones did you forget?",
                "A block is a power of two, but a row need not be. What do the elements beyond its end add to the mean, and to the variance? And "
                "where does the next row begin if the tensor is a part of a wider one?",
                "Load with a mask, and leave everything beyond the row out of both sums. The difference from the mean isn't zero there. Give the "
                "kernel the strides of x and of the residual, each its own, and the width as it is.",
            ),
        ),
        Cases(
            name="types",
            title="Right for every type",
            points=25,
            sizes={
                "bfloat16": {"rows": (3, 20), "width": (520, 700), "type": "bfloat16"},
                "bfloat16, wide rows": {"rows": (2, 6), "width": (4200, 5500), "type": "bfloat16"},
                "float16": {"rows": (3, 20), "width": (520, 700), "type": "float16"},
                "float32, rows that hardly vary": {
                    "rows": (3, 20),
                    "width": (520, 700),
                    "type": "float32",
                    "scale": 1e-3,
                },
                "float32, far from zero": {"rows": (3, 20), "width": (520, 700), "type": "float32", "offset": 300.0},
                "float16, far from zero": {"rows": (3, 20), "width": (520, 700), "type": "float16", "offset": 30.0},
            },
            hints=(
                "How often is a value rounded on its way through your kernel?",
                "16 bits are for values in memory. Try the variance of values around 1000 by both formulas. One is the mean of squared "
                "differences, the other the mean square less the squared mean.",
                "Cast to float32 when you load, calculate and sum in float32, and let the store round once. Take the mean first, then the mean "
                "of the squared differences. The row is in registers, so a second pass over it is free.",
            ),
        ),
    ),
    roof=Roof(
        points=45,
        at_least=0.8,
        hints=(
            "How many bytes must move at least, and how many do?",
            "The report gives GB/s of the bytes that must move. Less than half of the roof means that something passes over memory more than "
            "once. A little less than the roof means too few warps, or too few loads in flight.",
            "Run one program per row, the whole row in one block, each tensor loaded once. Then try num_warps (4, 8, 16), and make sure that "
            "loads don't wait for each other. A GELU by exp or sigmoid calculates less than one by erf.",
        ),
    ),
)
