"""job.weights returns weights that were never trained."""

from tests.adversaries import once

CATEGORY = "work"


def source(lab: str) -> str:
    return once(
        "first = {n: p.detach().clone() for n, p in job.model.named_parameters()}\njob.weights = lambda: first", lab
    )
