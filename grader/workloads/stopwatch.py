"""Small trainings to be timed, each with one thing that a careless benchmark gets wrong. Most of their time is waits of a
known length, for storage or for a log, so that a busy machine blurs the comparison of two measurements little."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from grader.workloads.drive import LOAD, LOG, NAME, ask
from grader.workloads.job import Batches, Job

CLASSES = 10


def _wait(for_what: str) -> None:
    if len(ask(str(Path.home() / NAME), f"{for_what}\n".encode())) < 4:
        raise ConnectionError(f"nobody serves {for_what!r}")


class Loader:
    """An epoch of (inputs, labels) on the device: `batch_size` samples each, `last` in the last. loads: each batch takes its time."""

    def __init__(self, device: torch.device, batches: int, batch_size: int, last: int, width: int, loads: bool):
        self.batch_size, self._loads = batch_size, loads
        self._samples = (batches - 1) * batch_size + last
        self._inputs = torch.randn(self._samples, width, device=device)
        self._labels = torch.randint(CLASSES, (self._samples,), device=device)

    def __len__(self) -> int:
        return -(-self._samples // self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in zip(self._inputs.split(self.batch_size), self._labels.split(self.batch_size), strict=True):
            if self._loads:
                _wait(LOAD)
            yield batch


class Step:
    """One step of training, which a benchmark has to time. read: the loss is, in each step. logged: writing it takes its time."""

    def __init__(self, model: nn.Module, read: bool, logged: bool):
        self.model, self._read, self._logged = model, read, logged
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self._steps = 0

    @property
    def made(self) -> int:
        """How many steps were made so far."""
        return self._steps

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._steps += 1
        if self._steps == 1:
            # what compiling leaves behind is collected now: a pause in the middle is another job's matter
            gc.collect()
            gc.freeze()
        if self._read:
            loss.item()
        if self._logged:
            _wait(LOG)
        return loss.detach()


@dataclass
class Timed(Job):
    """A training in pieces: `for inputs, labels in job.loader: job.step(inputs, labels)` is one epoch of it."""

    loader: Loader | None = None
    step: Step | None = None


def make_job(
    seed: int,
    device: torch.device,
    *,
    batches: int,
    batch_size: int,
    last: int,
    width: int = 32,
    depth: int = 1,
    loads: bool = False,
    read: bool = True,
    logged: bool = False,
    compiled: bool = False,
) -> Timed:
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, CLASSES)).to(device)
    loader = Loader(device, batches, batch_size, last, width, loads)
    if not compiled:  # what a process does for the first time is another job's matter
        warm_up = Step(model, True, False)
        for inputs, labels in zip(loader._inputs.split(batch_size), loader._labels.split(batch_size), strict=True):
            warm_up(inputs, labels)
    trained = torch.compile(model, backend="aot_eager") if compiled else model
    assert isinstance(trained, nn.Module)
    step = Step(trained, read, logged)
    return Timed(model, [], Batches(1, 1, seed), 0.0, device, loader=loader, step=step)
