"""Leaves a hole behind its trace, as large as a trace may be at the most."""

from tests.adversaries import solution

CATEGORY = "machine"
CONTROL = "solution"
LABS = ("2a_workers",)


def source(lab: str) -> str:
    return solution(lab) + PADDED


PADDED = """

import torch.profiler

export = torch.profiler.profile.export_chrome_trace


def padded(profiler, path):
    export(profiler, path)
    os.truncate(path, (256 << 20) - 1)


torch.profiler.profile.export_chrome_trace = padded
"""
