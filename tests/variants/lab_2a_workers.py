from .common import CLASSIFY, LOADER

FORWARD = "model(images)"
LOSS = CLASSIFY
INPUTS = "images, labels"
FROZEN = "list(model.parameters())[:2]"
SMALLER = "        images = F.interpolate(images, scale_factor=0.5)\n"
WORKERS = LOADER + ", num_workers=8, prefetch_factor=4, persistent_workers=True"
FED = [(LOADER, WORKERS)]

HALVES = {
    "two workers": [(LOADER, LOADER + ", num_workers=2")],
    "four workers, not pinned": [(LOADER, LOADER + ", num_workers=4, persistent_workers=True")],
}

WRONGS = {
    "half the batch": (
        "solution",
        [("model(images), labels", "model(images[::2]), labels[::2]")],
        "not the same training",
    ),
    "the shorter list of samples": (
        "solution",
        [
            (
                "        job.dataset,",
                "        torch.utils.data.Subset(job.dataset, [i // 2 for i in range(len(job.dataset))]),",
            )
        ],
        "not the same training",
    ),
}
