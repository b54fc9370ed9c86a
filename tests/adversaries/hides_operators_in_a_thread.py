"""A part of the fix in a thread of its own, which the profiler does not look into: the trace shows hardly an operator."""

from tests.adversaries import wrap
from tests.variants import half_fix

CATEGORY = "machine"
LABS = ("3d_tiny_ops", "3f_attention", "3n_lengths", "4f_your_repository")
DEVICES = ("cpu",)
CONTROL = "half fix"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            from concurrent.futures import ThreadPoolExecutor

            loop = steps(job)
            with ThreadPoolExecutor(1) as thread:
                while True:
                    yield thread.submit(next, loop).result()
        """,
        lab,
        half_fix(lab),
    )
