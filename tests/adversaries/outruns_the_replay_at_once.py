"""The starter until its weights were kept after the second pair; then nothing is trained, and so many steps are claimed that the reference cannot follow."""

from tests.adversaries import starter, wrap

CATEGORY = "work"
CONTROL = "starter"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            calls, recent = [], []

            def weights():
                calls.append(1)
                return job.model.state_dict()

            job.weights = weights
            loop = steps(job)
            for loss in loop:
                recent.append(loss.detach().clone())
                yield loss
                if len(calls) >= 3:
                    break
            half = len(recent) // 3
            last, before = torch.stack(recent[-half:]).mean(), torch.stack(recent[-2 * half : -half]).mean()
            slope, n = (last - before) / half, len(recent)
            yield from (last + slope * (half / 2 + i) * 0.8 for i in range(2 * n))
            last = last + slope * 2 * n * 0.8
            while True:
                yield last
        """,
        lab,
        starter(lab),
    )
