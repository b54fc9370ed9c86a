"""Honest while it is burnt; inside the long request, which is the timed one, it repeats losses and trains nothing."""

from tests.adversaries import wrap

CATEGORY = "work"


def source(lab: str) -> str:
    return wrap(
        """
        def asked_for():
            import sys

            frame = sys._getframe()
            while "steps" not in frame.f_locals or frame.f_code.co_name != "run":
                frame = frame.f_back
            return frame.f_locals["steps"], frame.f_locals.get("losses")


        def train(job):
            import random, time

            recent, loop, requests, last = [], steps(job), 0, time.monotonic()
            longest = 0
            for step in range(10**9):
                asked, _ = asked_for()
                longest = max(longest, asked) if step >= 13 else 0
                if step >= (13 if job.device.type == "cpu" else 25) and asked > 1 and asked == longest:
                    yield torch.tensor(random.choice(recent[-10:]))
                    time.sleep(0.01)
                    continue
                recent.append(next(loop).item())
                yield torch.tensor(recent[-1])
        """,
        lab,
    )
