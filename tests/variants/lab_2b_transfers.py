from .common import CLASSIFY

FORWARD = "model(images)"
LOSS = CLASSIFY

HALVES = {
    "pinned, one stream": [
        ("*tiles.shape[1:])", "*tiles.shape[1:], pin_memory=job.device.type == 'cuda')"),
    ],
    "bytes, blocking, from pageable memory": [
        (
            "    tiles, classes = job.dataset.images, job.dataset.labels\n",
            "    tiles = torch.stack([((tile + 1.5) * 64).to(torch.uint8) for tile in job.dataset.images])\n"
            "    classes = job.dataset.labels\n",
        ),
        ("*tiles.shape[1:])", "*tiles.shape[1:], dtype=torch.uint8)"),
        ("staged.to(job.device)", "staged.to(job.device).float().div_(64).sub_(1.5)"),
    ],
}

WRONGS = {
    "bytes that are never converted": (
        "solution",
        [("pixels.float().div_(64).sub_(1.5)", "pixels.float()")],
        "not the same training",
    ),
    "labels of other tiles": (
        "solution",
        [("(source, 0, index, out", "(source, 0, index if source is tiles else index.roll(1), out")],
        "not the same training",
    ),
    "one pinned buffer, filled while it is read": (
        "starter",
        [
            ("*tiles.shape[1:])", "*tiles.shape[1:], pin_memory=job.device.type == 'cuda')"),
            ("staged.to(job.device)", "staged.to(job.device, non_blocking=True)"),
            ("classes[index].to(job.device)", "classes[index]"),
            ("for index in batch])", "for index in batch]).to(job.device, non_blocking=True)"),
        ],
        "GPU: not the same training",
    ),
    "all tiles kept on the GPU": (
        "starter",
        [
            ("job.dataset.images, job.dataset.labels", "job.dataset.images.to(job.device), job.dataset.labels"),
            ("    staged = torch.empty(job.batches.batch_size, *tiles.shape[1:])\n", ""),
            ("        torch.index_select(tiles, 0, torch.tensor(batch), out=staged)\n", ""),
            ("staged.to(job.device)", "tiles[torch.tensor(batch, device=job.device)]"),
        ],
        "GPU: Don't keep the data set on the GPU",
    ),
}
