"""What prepare() should do, one by one, is done by the workload's own make_job, before anybody has asked for prepare()."""

from tests.adversaries import copies

CATEGORY = "timing"
LABS = ("2d_formats",)
CONTROL = "copies"

PATCHED = """

import grader.workloads.tiles as workload

made = workload.make_job


def make_job(seed, device, **options):
    from pathlib import Path

    job = made(seed, device, **options)
    folder = Path.home() / "prepared"
    if not (folder / "0").exists():
        really_prepare(job.dataset, folder)
    return job


workload.make_job = make_job
"""


def source(lab: str) -> str:
    return copies(lab).replace("def prepare(", "def really_prepare(") + PATCHED
