"""What prepare() should do, one by one, is done by the workload's own make_job, before anybody has asked for prepare()."""

from tests import variants

CATEGORY = "timing"
LABS = ("2d_formats",)
CONTROL = "half fix"
COPIED = "copied to the disk, one by one, as small files"

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
    return variants.halves(lab)[COPIED].replace("def prepare(", "def really_prepare(") + PATCHED
