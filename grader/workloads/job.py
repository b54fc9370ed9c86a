"""What a learner's loop is given: everything that defines the *work*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import Dataset, Sampler


@dataclass
class Job:
    """One training job.

    model: seeded weights, on the CPU. dataset: map-style. batches: an endless batch sampler; which samples, in which
    order. lr: learning rate. device: where to train. weights: leave it None, unless the loop changes the shapes of the
    parameters; then set it to a function that returns them under their original names and shapes. folder: what the
    submission's prepare(dataset, folder) wrote, in labs that have one. logs: what `log` was given, by step and name. counters: what
    the workload counts itself, by name: functions that say how many so far; the harness takes them before the loop begins.
    trace: where a loop that records itself writes its trace. budget: bytes of memory that the loop may use, in labs that limit
    it. rank, world_size: which of how many processes this is, in labs that train on several GPUs; `torch.distributed` has its
    process group then, and a batch of `batches` is that of all ranks together. ahead: how many batches a loop may have drawn
    beyond those that it has trained on, in labs whose clock does not count what is done before the first step; `batches` counts
    them in `drawn` then."""

    model: torch.nn.Module
    dataset: Dataset
    batches: Batches
    lr: float
    device: torch.device
    weights: Callable[[], dict[str, torch.Tensor]] | None = None
    folder: Path | None = None
    trace: str = ""
    rank: int = 0
    world_size: int = 1
    budget: int | None = None
    ahead: int | None = None
    counters: dict[str, Callable[[], float]] = field(default_factory=dict)
    logs: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def log(self, step: int, **values: float | torch.Tensor) -> None:
        """Keep numbers of step `step` (0 for the first) under their names. A 0-d tensor is copied where it lies, on the
        device too, and read long after the step: so logging one costs no synchronisation."""
        kept = {name: torch.as_tensor(value).detach().clone() for name, value in values.items()}
        self.logs.setdefault(step, {}).update(kept)


class Batches(Sampler[list[int]]):
    """Endless batches of `batch_size` indices below `count`: one random permutation after another, drawn from `seed`.
    An incomplete batch at the end of a permutation is dropped. Each iterator begins at the beginning."""

    def __init__(self, count: int, batch_size: int, seed: int):
        if batch_size > count:
            raise ValueError(f"batch_size {batch_size} is larger than the data set of {count}")
        self.count, self.batch_size, self.seed = count, batch_size, seed

    def __iter__(self) -> Iterator[list[int]]:
        # on the CPU also where the submission has chosen another default device
        generator = torch.Generator("cpu").manual_seed(self.seed)
        while True:
            order = torch.randperm(self.count, generator=generator, device="cpu").tolist()
            for i in range(0, self.count - self.batch_size + 1, self.batch_size):
                yield order[i : i + self.batch_size]
