"""What came from the loaders: how much of it, and how long it was waited for."""

from __future__ import annotations

import torch


class Loading:
    def __init__(self) -> None:
        self.wait_s = 0.0
        self.count = 0  # of batches
        # how many of each size, since step `since`: read for training, or while no gradients are made, as for an evaluation
        self.batches: dict[bool, dict[int | None, int]] = {True: {}, False: {}}
        self.since = 0
        self.loader = {"workers": 0, "prefetch": 0, "batch": 0}  # of the one with most workers

    def steps_begin(self, step: int) -> None:
        """What was read before may be of an evaluation, or a data set that is read once."""
        self.batches, self.since, self.wait_s = {True: {}, False: {}}, step, 0.0

    def told(self) -> list[list[int]]:
        """Size and count of the batches that were read for training. Where none was, some read them without gradients."""
        batches = self.batches[True] or self.batches[False]
        return [[size, count] for size, count in batches.items() if isinstance(size, int)]

    def waited(self, iterator, seconds: float, came: bool) -> None:
        self.wait_s += seconds
        if not came:
            return
        self.count += 1
        batch = _batch_size(getattr(iterator, "_index_sampler", None))
        batches = self.batches[torch.is_grad_enabled()]
        batches[batch] = batches.get(batch, 0) + 1
        workers = getattr(iterator, "_num_workers", 0)
        if workers >= self.loader["workers"] and self.count % 17 == 1:  # looking costs something
            prefetch = getattr(iterator, "_prefetch_factor", None) or 0
            size = batch if isinstance(batch, int) else 0
            self.loader = {"workers": workers, "prefetch": prefetch, "batch": size}


def _batch_size(sampler) -> int | None:
    """Of a sampler of batches, also within one that repeats it without an end, as timm's and YOLO's."""
    size = getattr(sampler, "batch_size", None)
    return size if size is not None else getattr(getattr(sampler, "sampler", None), "batch_size", None)
