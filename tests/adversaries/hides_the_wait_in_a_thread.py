"""Samples are made one by one in a thread of its own, which the profiler does not look into, when the training process asks for them."""

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
            (
                loader,
                """    from concurrent.futures import ThreadPoolExecutor

    def made(batch):
        if not tiles:
            tiles.append(Tiles(job.dataset))
        return default_collate([tiles[0][index] for index in batch])

    thread, tiles = ThreadPoolExecutor(1), []
    for batch in job.batches:
        with record_function("data_wait"):
            pass
        images, labels = thread.submit(made, batch).result()
""",
            ),
        ],
    )
