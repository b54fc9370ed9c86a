"""Classification of satellite tiles that lie in memory, in a database or in many small files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from grader.data import tiles
from grader.workloads.job import Batches, Job

HELD_OUT = 128  # tiles that an evaluation uses


class ConvNet(nn.Module):
    """Four convolutions. Tiles (batch, bands, size, size) float32 -> logits (batch, 10)."""

    def __init__(self, bands: int, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(bands, width, 7, stride=4, padding=3)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width * 16, tiles.CLASSES)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = F.relu(conv(x))
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 -> float32 of about zero mean; exact, so that the bytes can be had back."""
    return pixels.float().div_(64).sub_(1.5)


class InMemory(Dataset):
    """Tiles that were stored as float32 once, and lie in memory. images: (count, bands, size, size) float32, each value
    byte / 64 - 1.5; labels: (count,) int64. An item is (image, label)."""

    def __init__(self, count: int, bands: int, size: int):
        self.images = torch.empty(count, bands, size, size)

        def draw(index: int) -> None:
            self.images[index] = normalised(torch.from_numpy(tiles.draw(index, bands, size)))

        with ThreadPoolExecutor() as pool:
            list(pool.map(draw, range(count)))
        self.labels = torch.tensor([tiles.label(index) for index in range(count)])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


@lru_cache(maxsize=1)
def _in_memory(count: int, bands: int, size: int) -> InMemory:
    return InMemory(count, bands, size)


def make_job(
    seed: int,
    device: torch.device,
    *,
    bands: int,
    size: int,
    width: int,
    batch_size: int,
    lr: float,
    count: int,
    **_: Any,
) -> Job:
    dataset = _in_memory(count, bands, size)
    torch.manual_seed(seed)
    return Job(
        model=ConvNet(bands, width),
        dataset=dataset,
        batches=Batches(len(dataset), batch_size, seed),
        lr=lr,
        device=device,
    )


def _net(tensors: dict[str, torch.Tensor], device: torch.device, bands: int, width: int) -> ConvNet:
    net = ConvNet(bands, width)
    net.load_state_dict(tensors)
    return net.to(device)


def _drawn(indices: list[int], bands: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tiles and labels by index, normalised, however the job's data set stores them."""
    images = torch.from_numpy(np.stack([tiles.draw(index, bands, size) for index in indices]))
    return normalised(images), torch.tensor([tiles.label(index) for index in indices])


def evaluate(
    tensors: dict[str, torch.Tensor], device: torch.device, *, bands: int, size: int, width: int, **_: Any
) -> dict[str, float]:
    net = _net(tensors, device, bands, width)
    images, labels = _drawn(list(range(tiles.HELD_OUT, tiles.HELD_OUT + HELD_OUT)), bands, size)
    labels = labels.to(device)
    logits = torch.cat([net(part.to(device)) for part in images.split(64)])
    return {
        "loss": F.cross_entropy(logits, labels).item(),
        "accuracy": (logits.argmax(1) == labels).float().mean().item(),
    }


def batch_losses(
    tensors: dict[str, torch.Tensor], job: Job, batches: list[list[int]], *, bands: int, size: int, width: int, **_: Any
) -> list[float]:
    """The loss of each of these batches of the job's training set, with the weights `tensors`, as training computes it."""
    net = _net(tensors, job.device, bands, width)
    losses = []
    for batch in batches:
        if isinstance(job.dataset, InMemory):  # large tiles, that take long to draw
            images, labels = job.dataset.images[batch], job.dataset.labels[batch]
        else:
            images, labels = _drawn(batch, bands, size)
        losses.append(F.cross_entropy(net(images.to(job.device)), labels.to(job.device)).item())
    return losses
