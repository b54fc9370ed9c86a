"""Classification of satellite tiles that lie in memory, in a database or in many small files."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function
from torch.utils.data import Dataset

import grader.data.tiles as tiles
from grader.workloads import counting
from grader.workloads.drive import NAME, read
from grader.workloads.job import Batches, Figures, Job, Weights, loss_and_accuracy

HELD_OUT = 128  # tiles that an evaluation uses
OPENED = "sqlite3.connect/handle"  # the audit event of a connection that was opened, by whatever call


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


GAMMA = 0.4


def brightened(pixels: torch.Tensor) -> torch.Tensor:
    """(n, bands, size, size) uint8 -> float32: the shadows brightened, then each band of each tile scaled to mean 0 and variance 1."""
    x = (pixels.float() / 255) ** GAMMA
    return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 -> float32 of about zero mean; exact, so that the bytes can be had back."""
    return pixels.float().div_(64).sub_(1.5)


class InMemory(Dataset):
    """Tiles once stored as float32, in memory. images: (count, bands, size, size), byte / 64 - 1.5; labels: (count,) int64."""

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


def _mark_read(_: str) -> None:
    with record_function("read_tiles"):
        pass


class Archive:
    """Tiles in an SQLite file: table tiles(id, pixels, label), pixels (3, size, size) bytes. Queries of `connect` mark "read_tiles"."""

    def __init__(self, folder: str, size: int):
        self.path, self.size = Path(folder) / tiles.DATABASE, size
        connection = self.connect()
        self.count = connection.execute("SELECT COUNT(*) FROM tiles").fetchone()[0]
        connection.close()

    def __len__(self) -> int:
        return self.count

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # what such a process opens nobody counts
            raise RuntimeError('The archive goes to forks only: use multiprocessing_context="fork".')
        return self.__dict__

    def connect(self) -> sqlite3.Connection:
        """A new connection, for reading. It belongs to the process that opened it."""
        connection = sqlite3.connect(f"file:{self.path}?immutable=1", uri=True)
        connection.set_trace_callback(_mark_read)
        return connection


class Files(Dataset):
    """Tiles of three bands, each in a small file of its own. An item is (pixels, label): a uint8 tensor of shape
    (3, size, size) and an int. labels: (count,) int64.

    drive: socket of the drive that the files lie on (see `grader.sandbox.drive`); None for the local disk."""

    def __init__(self, folder: str, count: int, drive: str | None):
        self.files = [f"{folder}/{name}" for name in tiles.file_names(count)]
        self.labels = _labels(count)
        self.size, self.drive = tiles.FILE_SIZE, drive

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> bytes:
        """The bytes of one tile: opens its file."""
        return read(self.drive, self.files[index]) if self.drive else Path(self.files[index]).read_bytes()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = torch.frombuffer(bytearray(self.read(index)), dtype=torch.uint8)
        return pixels.view(3, self.size, self.size), int(self.labels[index])


@lru_cache(maxsize=1)
def _labels(count: int) -> torch.Tensor:
    return torch.tensor([tiles.label(index) for index in range(count)])


_in_memory = lru_cache(maxsize=1)(InMemory)


def make_job(
    seed: int,
    device: torch.device,
    *,
    bands: int,
    size: int,
    width: int,
    batch_size: int,
    lr: float,
    count: int = 0,
    folder: str = "",
    read_s: float | None = None,
) -> Job:
    """The tiles lie in the database in `folder`; where `read_s` is given, `count` of them in small files there; where no
    folder is, in memory. read_s: seconds that opening a file takes; 0 for the local disk."""
    dataset: Any
    if read_s is not None:
        dataset = Files(folder, count, str(Path.home() / NAME) if read_s else None)
    else:
        dataset = Archive(folder, size) if folder else _in_memory(count, bands, size)
    torch.manual_seed(seed)
    counters = {"connections": counting.count(OPENED)} if isinstance(dataset, Archive) else {}
    batches = Batches(len(dataset), batch_size, seed)
    return Job(ConvNet(bands, width), dataset, batches, lr, device, counters=counters)


def evaluate(
    tensors: Weights,
    device: torch.device,
    *,
    bands: int,
    size: int,
    width: int,
    folder: str = "",
    read_s: float | None = None,
    **_: Any,
) -> Figures:
    net = ConvNet(bands, width)
    net.load_state_dict(tensors)
    net.to(device)
    chosen = range(tiles.HELD_OUT, tiles.HELD_OUT + HELD_OUT)
    labels = torch.tensor([tiles.label(index) for index in chosen])
    # drawn anew, whatever the job's data set says, and as training gets them: those of a database are brightened
    pixels = torch.from_numpy(np.stack([tiles.draw(index, bands, size) for index in chosen]))
    images = brightened(pixels) if folder and read_s is None else normalised(pixels)
    return loss_and_accuracy(torch.cat([net(part.to(device)) for part in images.split(64)]), labels)
