"""What a learner's loop is given: everything that defines the *work*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset, Sampler

Weights = dict[str, torch.Tensor]  # trained ones, by their names in the model
Figures = dict[str, float]  # on held-out data: "loss", and "accuracy" where there is such a thing


@dataclass
class Job:
    """One training job."""

    model: torch.nn.Module  # seeded weights, on the CPU
    dataset: Dataset | list[Any]  # map-style; empty where nothing is loaded
    batches: Batches  # an endless batch sampler: which samples, in which order; of all ranks together
    lr: float
    device: torch.device  # where to train
    # Leave it None, unless the loop changes the shapes of the parameters: then a function that returns them under their original names
    # and shapes
    weights: Callable[[], Weights] | None = None
    folder: Path | None = None  # what the submission's prepare(dataset, folder) wrote, in labs that have one
    trace: str = ""  # where a loop that records itself writes its trace
    rank: int = 0  # of `world_size` processes, in labs that train on several GPUs; `torch.distributed` has its process group then
    world_size: int = 1
    budget: int | None = None  # bytes of memory that the loop may use, in labs that limit it
    # Batches that a loop may have drawn beyond those it has trained on, in labs whose clock does not count what comes before the first
    # step; `batches` counts them in `drawn` then
    ahead: int | None = None
    # what the workload counts itself: functions that say how many so far; the harness takes them before the loop begins
    counters: dict[str, Callable[[], float]] = field(default_factory=dict)
    logs: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)  # what `log` was given, by step and name

    def log(self, step: int, **values: float | torch.Tensor) -> None:
        """Keep numbers of step `step`, 0 for the first. A 0-d tensor is copied on its device and read later: no synchronisation."""
        kept = {name: torch.as_tensor(value).detach().clone() for name, value in values.items()}
        for name, value in kept.items():
            if value.numel() != 1:
                raise ValueError(f"job.log takes single numbers, but `{name}` has the shape {tuple(value.shape)}")
            kept[name] = value.reshape(())
        self.logs.setdefault(step, {}).update(kept)


@dataclass
class OwnLoop(Job):
    """A job that brings its own loop: a generator that yields the loss of each step. All else is empty."""

    loop: Iterator[torch.Tensor] | None = None

    @classmethod
    def of(cls, loop: Iterator[torch.Tensor], device: torch.device) -> OwnLoop:
        return cls(torch.nn.Module(), [], Batches(1, 1, 0), 0.0, device, loop=loop)


class Batches(Sampler[list[int]]):
    """Endless batches of `batch_size` indices below `count`, from one random permutation after another, drawn from `seed`.
    What is left of a permutation is dropped. Each iterator begins at the beginning."""

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


def loss_and_accuracy(logits: torch.Tensor, labels: torch.Tensor) -> Figures:
    """Of a classifier, on the device of its logits: (n, classes) and (n,)."""
    labels = labels.to(logits.device)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return {"loss": F.cross_entropy(logits, labels).item(), "accuracy": accuracy.item()}
