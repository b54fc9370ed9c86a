"""Image classification from JPEG files: ResNet-18 on a GPU, a tiny network on a CPU."""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import nn
from torch.profiler import record_function
from torch.utils.data import Dataset

from grader.data.images import stored
from grader.workloads import counting
from grader.workloads.drive import NAME, read
from grader.workloads.job import Batches, Figures, Job, Weights, loss_and_accuracy

HELD_OUT = 256  # images that an evaluation uses
LOADED = "grader.load_sample"  # an audit event


class JpegFiles(Dataset):
    """Decodes a JPEG, scales its shorter side and crops the centre. An item is (image, label): a float32 tensor of
    shape (3, size, size), normalised to about zero mean and unit variance, and an int.

    drive: socket of the drive that the files lie on (see `grader.sandbox.drive`); None for the local disk. Each item
    is an audit event LOADED: a profiler sees marks of the main thread only."""

    def __init__(self, files: list, labels: np.ndarray, size: int, drive: str | None = None):
        self.files, self.labels, self.size, self.drive = files, labels, size, drive

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sys.audit(LOADED)
        with record_function("load_sample"):
            path = self.files[index]
            with Image.open(BytesIO(read(self.drive, path)) if self.drive else path) as file:
                # libjpeg can decode at 1/2, 1/4, 1/8 of the size; for thumbnails that is nearly all of the cost
                file.draft("RGB", (2 * self.size, 2 * self.size))
                image = file.convert("RGB")
            scale = self.size * 8 / 7 / min(image.size)  # 256 for 224, as ImageNet evaluation has it
            image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
            left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
            image = image.crop((left, top, left + self.size, top + self.size))
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            return pixels.float().div_(64).sub_(2), int(self.labels[index])


class TinyNet(nn.Module):
    """Three convolutions: some 30,000 parameters, a few milliseconds a batch on one core."""

    def __init__(self, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.head(x.mean((2, 3)))


def make_model(model: str, classes: int = 10) -> nn.Module:
    """`model`: "resnet18" or "tiny"."""
    return TinyNet(classes) if model == "tiny" else torchvision.models.resnet18(num_classes=classes)


def make_job(
    seed: int,
    device: torch.device,
    *,
    model: str,
    size: int,
    batch_size: int,
    lr: float,
    folder: str,
    read_s: float = 0.0,
) -> Job:
    train = stored(Path(folder)).train
    torch.manual_seed(seed)
    dataset = JpegFiles(train.files, train.labels, size, str(Path.home() / NAME) if read_s else None)
    counters = {"loads_in_main": counting.count(LOADED, forks=False)}
    batches = Batches(len(train.files), batch_size, seed)
    return Job(make_model(model), dataset, batches, lr, device, counters=counters)


@lru_cache(maxsize=1)
def held_out(folder: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """HELD_OUT images of those held out, as `JpegFiles` gives them, and their labels."""
    part = stored(Path(folder)).held_out
    data = JpegFiles(part.files, part.labels, size)
    chosen = np.linspace(0, len(data) - 1, min(HELD_OUT, len(data))).astype(int)
    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        images, labels = zip(*pool.map(data.__getitem__, chosen), strict=True)
    return torch.stack(images), torch.tensor(labels)


def evaluate(tensors: Weights, device: torch.device, *, model: str, size: int, folder: str, **_: Any) -> Figures:
    return evaluate_net(make_model(model), tensors, device, size, folder)


def evaluate_net(net: nn.Module, tensors: Weights, device: torch.device, size: int, folder: str) -> Figures:
    """Loss and accuracy of a classifier with these weights, on the held-out images."""
    net.load_state_dict(tensors, strict=False)  # num_batches_tracked is not part of the exchange
    net.to(device).eval()
    images, labels = held_out(folder, size)
    return loss_and_accuracy(torch.cat([net(part.to(device)) for part in images.split(64)]), labels)
