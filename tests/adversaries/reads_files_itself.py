"""A data set of its own opens the image files, past the one that waits for the storage."""

from tests.adversaries import edit, starter

CATEGORY = "work"
LABS = ("2a_workers",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return edit(
        starter(lab),
        [
            (
                "    loader = DataLoader(job.dataset",
                "    data = type(job.dataset)(job.dataset.files, job.dataset.labels, job.dataset.size)\n    loader = DataLoader(data",
            )
        ],
    )
