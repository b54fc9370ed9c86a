"""Half of the fix until its weights were kept after the second pair; then nothing is trained, and so many steps are claimed that the reference cannot follow."""

from tests.adversaries import wrap
from tests.variants import half_fix

CATEGORY = "work"
CONTROL = "half fix"


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
            last = torch.stack(recent[-12:]).mean().clone()
            while True:
                yield last
        """,
        lab,
        half_fix(lab),
    )
