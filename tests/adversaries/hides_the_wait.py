"""The range that should hold the wait for data holds nothing, and reads leave no mark: the samples are made after it."""

from tests.adversaries import connection_kept, edit

CATEGORY = "machine"
LABS = ("2c_transforms",)
DEVICES = ("cpu",)  # the form without workers
CONTROL = "connection kept"


def source(lab: str) -> str:
    half = connection_kept(lab)
    loader = half[half.index("    loader = DataLoader") : half.index("        images = images.to")]
    return edit(
        half,
        [
            ("DataLoader, Dataset\n", "Dataset, default_collate\nfrom torch.profiler import record_function\n"),
            ("archive.connect()\n", "archive.connect()\n        self.database.set_trace_callback(None)\n"),
            (
                loader,
                """    tiles = Tiles(job.dataset)
    for batch in job.batches:
        with record_function("data_wait"):
            pass
        images, labels = default_collate([tiles[index] for index in batch])
""",
            ),
        ],
    )
