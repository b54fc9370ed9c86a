"""Image classification as on ImageNet: JPEG files, cropped, resized and flipped at random; ResNet-50 on a GPU, a tiny one on a CPU."""

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision.models.resnet import BasicBlock

from grader.data.images import stored
from grader.workloads.job import Batches, Figures, Job, Weights
from grader.workloads.resnet import evaluate_net

AREA = (0.08, 1.0)  # the share of the picture's area that a crop covers
ASPECT = (3 / 4, 4 / 3)  # width : height of a crop
TRIES = 10  # a crop that does not fit into its picture is drawn again, so often


class Crops:
    """What is random in the training: a crop and a flip for each picture of each step, as torchvision's RandomResizedCrop and
    RandomHorizontalFlip have them, but following from (seed, step), so that two loops can be compared step by step.

    A picture has 23 uniform numbers, `numpy.random.default_rng((seed, step)).random((batch, 23))`: 10 areas, 10 aspect ratios, the
    place down, the place across, the flip. The first of the 10 crops that fits is taken; the whole picture where none does."""

    def __init__(self, seed: int):
        self.seed = seed

    def __call__(self, step: int, sizes: torch.Tensor) -> torch.Tensor:
        """The boxes of step `step` (0 for the first). sizes: (batch, 2) int64, height and width of each picture of the batch.
        Returns (batch, 5) int64 on the CPU: top, left, height and width of the crop in pixels; 1 where it is flipped left to right."""
        drawn = torch.from_numpy(np.random.default_rng((self.seed, step)).random((len(sizes), 2 * TRIES + 3)))
        high, wide = sizes[:, :1], sizes[:, 1:]
        area = high * wide * (AREA[0] + (AREA[1] - AREA[0]) * drawn[:, :TRIES])
        low, up = (math.log(ratio) for ratio in ASPECT)
        aspect = torch.exp(low + (up - low) * drawn[:, TRIES : 2 * TRIES])
        heights, widths = (area / aspect).sqrt().round().long(), (area * aspect).sqrt().round().long()
        fits = (heights <= high) & (widths <= wide)
        first = fits.int().argmax(1, keepdim=True)
        height = torch.where(fits.any(1, keepdim=True), heights.gather(1, first), high)
        width = torch.where(fits.any(1, keepdim=True), widths.gather(1, first), wide)
        top = (drawn[:, -3:-2] * (high - height + 1)).long()
        left = (drawn[:, -2:-1] * (wide - width + 1)).long()
        return torch.cat([top, left, height, width, (drawn[:, -1:] < 0.5).long()], dim=1)


class JpegBytes(Dataset):
    """JPEG files as they lie on the disk. An item is (data, label): a uint8 tensor with the bytes of the file, and an int.

    files: their paths. labels: (n,) int64. sizes: (n, 2) int64, height and width of each picture, from the files' headers."""

    def __init__(self, files: list[Path], labels: torch.Tensor):
        self.files, self.labels = files, labels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.frombuffer(bytearray(self.files[index].read_bytes()), dtype=torch.uint8), int(self.labels[index])

    @cached_property
    def sizes(self) -> torch.Tensor:
        def size(file: Path) -> tuple[int, int]:
            with Image.open(file) as picture:  # reads the header
                return picture.height, picture.width

        with ThreadPoolExecutor() as pool:
            return torch.tensor(list(pool.map(size, self.files)))


class Recurring(Batches):
    """As `Batches`, but the first `steps` batches are made of the first `few` pictures, so that each soon comes again with another
    crop: who keeps a crop shows at once."""

    def __init__(self, count: int, batch_size: int, seed: int, steps: int, few: int):
        super().__init__(count, batch_size, seed)
        self.first, self.steps = Batches(few, batch_size, seed), steps
        self.drawn = 0  # batches that an iterator has given

    def __iter__(self) -> Iterator[list[int]]:
        for n, batch in enumerate(chain(islice(self.first, self.steps), super().__iter__()), 1):
            self.drawn = max(self.drawn, n)
            yield batch


def most_ahead() -> int:
    """Batches that a pipeline may be ahead of the training: what a DataLoader's workers hold by default, one a core, and half more."""
    return max(32, 3 * len(os.sched_getaffinity(0)))


@dataclass
class PictureJob(Job):
    """A job of this workload. size: pixels of a side of what the model sees. crops: see `Crops`."""

    size: int = 224
    crops: Crops | None = None


class TinyResNet(nn.Module):
    """A stem and two residual blocks with BatchNorm: images (batch, 3, size, size) -> logits (batch, classes)."""

    def __init__(self, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        shrink = nn.Sequential(nn.Conv2d(16, 32, 1, stride=2, bias=False), nn.BatchNorm2d(32))
        self.blocks = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 32, 2, shrink))
        self.fc = nn.Linear(32, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 2)
        return self.fc(self.blocks(x).mean((2, 3)))


def make_model(model: str, classes: int = 10) -> nn.Module:
    """`model`: "resnet50" or "tiny". Each block of the ResNet-50 begins as its shortcut (Goyal et al. 2017, section 5.1). Without that
    the first steps are chaotic: a difference of one grey level is another training."""
    if model == "tiny":
        return TinyResNet(classes)
    return torchvision.models.resnet50(num_classes=classes, zero_init_residual=True)


def make_job(
    seed: int,
    device: torch.device,
    *,
    model: str,
    size: int,
    batch_size: int,
    lr: float,
    folder: str,
    recurring: tuple[int, int],
    count: int | None = None,
) -> Job:
    """recurring: see `Recurring`, (steps, few). count: train on the first so many of the pictures in `folder`; None for all."""
    train = stored(Path(folder)).train
    torch.manual_seed(seed)
    dataset = JpegBytes(train.files[:count], torch.from_numpy(train.labels[:count]))
    batches = Recurring(len(dataset), batch_size, seed, *recurring)
    return PictureJob(make_model(model), dataset, batches, lr, device, size=size, crops=Crops(seed), ahead=most_ahead())


def evaluate(tensors: Weights, device: torch.device, *, model: str, size: int, folder: str, **_: Any) -> Figures:
    return evaluate_net(make_model(model), tensors, device, size, folder)
