"""Before the first answers are handed over those to many requests are computed; then they are handed over at a pace."""

from tests.adversaries import starter

CATEGORY = "timing"
LABS = ("4e_inference",)
DEVICES = ("cuda",)  # on a CPU the corpus shares its cores, which a loop that computes cannot


def source(lab: str) -> str:
    return (
        starter(lab).replace("def serve(job):", "def answers(job):")
        + """

def serve(job):
    import time

    store, loop, began = [], answers(job), time.monotonic()
    limit = 100 if job.device.type == "cpu" else 20
    while time.monotonic() - began < limit:
        store.append(next(loop))
    pace = (time.monotonic() - began) / len(store) / 5
    for each in store:
        time.sleep(pace)
        yield each
    yield from loop
"""
    )
