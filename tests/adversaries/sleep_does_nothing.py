"""time.sleep is replaced by nothing, so that the storage answers at once."""

from tests.adversaries import ahead, starter

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return ahead("import time\n\ntime.sleep = lambda seconds: None", starter(lab))
