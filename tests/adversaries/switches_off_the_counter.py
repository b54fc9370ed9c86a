"""Threads of the training process read the samples, and whatever the loop is given that could count them is set back."""

from tests.adversaries import edit, in_threads

CATEGORY = "work"
LABS = ("2a_workers",)
CONTROL = "threads"


def source(lab: str) -> str:
    return edit(
        in_threads(lab),
        [
            (
                "    pool = ThreadPoolExecutor(128)\n",
                """    pool = ThreadPoolExecutor(128)
    counters, job.counters = job.counters, {}
    for each in [*vars(job.dataset).values(), *counters.values()]:
        if hasattr(each, "value"):
            each.value = -(10**9)
    counters.clear()
    job.dataset.main = 0
""",
            )
        ],
    )
