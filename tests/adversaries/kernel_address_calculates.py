"""Numpy calculates when Triton asks the tensor that a kernel copies for its address; the code has the name of no file."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)

CALCULATING = """
import torch
{right}

def calculating(ready, tensors, ask):
    def answer():
        ready.copy_(right(*(t.cpu() for t in tensors)))
        return ask()
    return answer
"""


def source(lab: str) -> str:
    return copied(
        f'exec(compile({CALCULATING.format(right=BY_NUMPY)!r}, "elsewhere", "exec"))',
        edits=[
            (
                "    ready = right(*(t.cpu() for t in tensors)).to(x.device, x.dtype)\n",
                """    ready = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for name in ("untyped_storage", "data_ptr"):
        setattr(ready, name, calculating(ready, tensors, getattr(ready, name)))
""",
            )
        ],
    )
