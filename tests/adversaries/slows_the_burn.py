"""Each turn's first steps are slowed down, so that the loader's workers fill their queues before the timed part."""

from tests import variants
from tests.adversaries import wrap

CATEGORY = "timing"
LABS = ("2a_workers",)
CONTROL = "half fix"


def source(lab: str) -> str:
    fed = variants.half_fix(lab).replace("num_workers=2", "num_workers=2, prefetch_factor=500")
    return wrap(
        """
        def train(job):
            import time

            last = time.monotonic()
            turn = 0
            for loss in steps(job):
                now = time.monotonic()
                turn = 0 if now - last > 1.0 else turn + 1
                if turn < 8:
                    time.sleep(0.15)
                last = time.monotonic()
                yield loss
        """,
        lab,
        fed,
    )
