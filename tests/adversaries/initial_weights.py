"""job.weights returns weights that were never trained."""

from tests.adversaries import once

CATEGORY = "work"


def source(lab: str) -> str:
    return once("first = {n: t.clone() for n, t in job.model.state_dict().items()}\njob.weights = lambda: first", lab)
