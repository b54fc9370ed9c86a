"""The wait for the storage, which is what the lab is about on a CPU, is switched off in the data set."""

from tests.adversaries import once

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return once("job.dataset.read_s = 0.0", lab)
