"""Replaces the harness's own functions: numpy answers in place of the kernel, and launches are claimed."""

from tests.adversaries import BY_NUMPY, ahead, copied

CATEGORY = "work"
LABS = ("3i_triton",)
FORGES = """
import inspect
import sys

harness = sys.modules["grader.sandbox.functions"].Functions


def answer(self, seed, file, case):
    tensors = self.workload.inputs(seed, self.device, **case)
    result = right(*(t.cpu() for t in tensors)).to(tensors[0].dtype)
    self._write_result(result, file)
    return result


def forged(method):
    def asked(self, *args, **named):
        given = inspect.signature(method).bind(self, *args, **named).arguments
        reply = method(self, *args, **named)  # writes down a launch
        answer(self, *(given[name] for name in ("seed", "file", "case")))
        return reply and {**reply, "operators": [], "launches": 1, "compiled": 0}

    return asked


for name in ("result", "again"):
    setattr(harness, name, forged(getattr(harness, name)))
"""


def source(lab: str) -> str:
    return ahead(FORGES, copied(BY_NUMPY))
