"""Numpy calculates in a hook that Triton calls before each launch."""

from tests.adversaries import BY_NUMPY, copied

CATEGORY = "work"
LABS = ("3i_triton",)


def source(lab: str) -> str:
    return copied(
        BY_NUMPY,
        edits=[
            (
                "    ready = right",
                "    ready = torch.empty_like(x, memory_format=torch.contiguous_format)\n    make = lambda: right",
            ),
            ("    chain[(", "    chain.pre_run_hooks[:] = [lambda *_, **named: ready.copy_(make())]\n    chain[("),
        ],
    )
