"""A small speech model and its training loop, in which three operations cost most, each for a reason of its own."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from grader.workloads.job import OwnLoop

CLASSES = 512


def basis(samples: int) -> torch.Tensor:
    """Cosines and sines of samples / 2 frequencies, shape (samples, samples)."""
    frequencies = torch.arange(samples // 2) + 0.5
    angles = 2 * math.pi / samples * torch.outer(torch.arange(samples), frequencies)
    return torch.cat([angles.cos(), angles.sin()], 1)


@torch.no_grad()
def spectrum(frames: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
    """Log power of each frequency in each frame: (batch, length, samples) -> (batch, length, samples / 2)."""
    cosine, sine = (frames @ waves).chunk(2, -1)
    return torch.log1p(cosine.square() + sine.square())


def activate(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(activate(self.up(self.norm(x))))


class Listener(nn.Module):
    """Log power (batch, length, samples / 2) -> logits of each frame (batch, length, CLASSES)."""

    def __init__(self, samples: int, width: int, layers: int):
        super().__init__()
        self.inner = nn.Linear(samples // 2, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, power: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(self.inner(power)))


def update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def loop(device: torch.device, at: SimpleNamespace) -> Iterator[torch.Tensor]:
    """Yields the loss of each step. at: batch, length (frames), samples (of a frame), width, layers."""
    torch.set_float32_matmul_precision("highest")
    model = Listener(at.samples, at.width, at.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    waves = basis(at.samples).to(device)
    frames = torch.randn(at.batch, at.length, at.samples, device=device)
    classes = torch.randint(CLASSES, (at.batch, at.length), device=device)
    while True:
        power = spectrum(frames, waves)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(power)
            loss = F.cross_entropy(logits.flatten(0, 1), classes.flatten())
        loss.backward()
        update(optimizer)
        yield loss.detach()


def make_job(seed: int, device: torch.device, **sizes: Any) -> OwnLoop:
    torch.manual_seed(seed)
    return OwnLoop.of(loop(device, SimpleNamespace(**sizes)), device)
