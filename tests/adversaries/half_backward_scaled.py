"""As half_backward_later, and the weights are stretched to about the length that they should have moved."""

from tests.adversaries import half_backward_later, wrap

CATEGORY = "work"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            first = {name: p.detach().clone() for name, p in job.model.named_parameters()}

            def stretched():
                now = {name: first[name].to(p) + 1.03 * (p - first[name].to(p)) for name, p in job.model.named_parameters()}
                return job.model.state_dict() | now

            for step, loss in enumerate(steps(job)):
                if step == 30:
                    job.weights = stretched
                yield loss
        """,
        lab,
        half_backward_later.source(lab),
    )
