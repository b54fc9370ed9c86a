"""Half of the fix; long after the first steps every second sample of a batch is no longer loaded."""

from tests.adversaries import HONEST, edit
from tests.variants import half_fix

CATEGORY = "work"
LABS = ("2a_workers",)
CONTROL = "half fix"


def source(lab: str) -> str:
    fewer = """
    class Fewer:
        def __iter__(self):
            for step, batch in enumerate(job.batches):
                yield batch[::2] if step >= 3 * honest else batch

"""
    return edit(
        half_fix(lab),
        [
            ("    loader = ", HONEST + fewer + "    loader = "),
            ("batch_sampler=job.batches", "batch_sampler=Fewer()"),
        ],
    )
