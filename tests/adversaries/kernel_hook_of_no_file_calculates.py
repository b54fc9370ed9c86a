"""Numpy calculates in a hook that Triton calls before each launch; the code has the name of no file."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)

CALCULATING = """
import torch
{right}

def calculating(ready, tensors):
    return lambda *_, **named: ready.copy_(right(*(t.cpu() for t in tensors)))
"""


def source(lab: str) -> str:
    return copied(
        f'exec(compile({CALCULATING.format(right=BY_NUMPY)!r}, "elsewhere", "exec"))',
        edits=[
            (
                "    ready = right(*(t.cpu() for t in tensors)).to(x.device, x.dtype)\n",
                """    ready = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chain.pre_run_hooks[:] = [calculating(ready, tensors)]
""",
            )
        ],
    )
