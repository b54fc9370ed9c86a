"""A script that became a notebook: options from the command line, a data class around the loop, and a lambda at the end."""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workers", type=int, default=max(8, len(os.sched_getaffinity(0)) - 2))
parser.add_argument("--every", type=int, default=50, help="steps between two lines of progress")
options = parser.parse_args()


class One(Sampler[int]):
    """The indices of all batches in one row, which the loader cuts into batches again."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches:
            yield from batch


@dataclass
class Trainer:
    job: object

    def __post_init__(self):
        self.model = self.job.model.to(self.job.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.job.lr)

    def batches(self) -> Iterator[list[Tensor]]:
        loader = DataLoader(
            self.job.dataset,
            batch_size=self.job.batches.batch_size,
            sampler=One(self.job.batches),
            num_workers=options.workers,
            persistent_workers=True,
            pin_memory=self.job.device.type == "cuda",
        )
        for batch in loader:
            yield [part.to(self.job.device, non_blocking=True) for part in batch]

    def __iter__(self) -> Iterator[Tensor]:
        for step, (images, labels) in enumerate(self.batches()):
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            if step % options.every == 0:
                print(f"Schritt {step:5d} ✓", end="\r", flush=True)
            yield loss.detach()


train = lambda job: Trainer(job)  # noqa: E731
