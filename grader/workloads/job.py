"""What a learner's loop is given: everything that defines the *work*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset, Sampler


@dataclass
class Job:
    """One training job.

    model: seeded weights, on the CPU. dataset: map-style. batches: an endless batch sampler; which samples, in which
    order. lr: learning rate. device: where to train. weights: leave it None, unless the loop changes the shapes of the
    parameters; then set it to a function that returns them under their original names and shapes."""

    model: torch.nn.Module
    dataset: Dataset
    batches: Batches
    lr: float
    device: torch.device
    weights: Callable[[], dict[str, torch.Tensor]] | None = None


class Batches(Sampler[list[int]]):
    """Endless batches of `batch_size` indices below `count`: one random permutation after another, drawn from `seed`.
    An incomplete batch at the end of a permutation is dropped. Each iterator begins at the beginning."""

    def __init__(self, count: int, batch_size: int, seed: int):
        if batch_size > count:
            raise ValueError(f"batch_size {batch_size} is larger than the data set of {count}")
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            order = torch.randperm(self.count, generator=generator).tolist()
            for i in range(0, self.count - self.batch_size + 1, self.batch_size):
                yield order[i : i + self.batch_size]
