"""A denoising diffusion model on small pictures: a UNet that is told how noisy a picture is and predicts the noise.

Ho et al. (2020), https://arxiv.org/abs/2006.11239: pictures in -1..1, `STEPS` levels of noise, the mean squared error of the
predicted noise as loss, and a moving average of the weights, which is the model that would be used."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from grader.data.pictures import HELD_OUT, TRAIN
from grader.workloads.job import Batches, Figures, Job, Weights

STEPS = 1000  # levels of noise
GROUPS = 8  # that a layer's channels are normalised in
HEAD = 64  # channels of an attention head, at most
EVALUATED = 64  # held-out pictures that an evaluation uses
# How the names of weights begin that a grade compares for themselves: the net's updates are many times as long.
APART = ("average.",)
DECAY = 0.95  # of the moving average; 0.9999 for a training of days, of which some dozen steps would show nothing


class Pictures(Dataset):
    """pixels: (count, size, size, 3) uint8, in main memory. An item is one picture of it."""

    def __init__(self, pixels: np.ndarray):
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.pixels[index]


# ---------------------------------------------------------------- the model


def scaled_dot_product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def group_norm(x: torch.Tensor, norm: nn.GroupNorm) -> torch.Tensor:
    return norm(x)


def sinusoidal(times: torch.Tensor, width: int) -> torch.Tensor:
    frequencies = torch.exp(-math.log(10_000) / (width // 2) * torch.arange(width // 2, device=times.device))
    angles = times[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def not_given(*_: Any) -> torch.Tensor:
    raise NotImplementedError(
        "this model comes without attention, normalisation and time embedding: give it yours with "
        "net.use(attention, normalise, embed)"
    )


class Block(nn.Module):
    """Two convolutions beside a shortcut, shifted by the embedded noise level. (batch, before, h, w) -> (batch, after, h, w)"""

    normalise: Callable[..., torch.Tensor] = staticmethod(group_norm)

    def __init__(self, before: int, after: int, embedded: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, before), nn.GroupNorm(GROUPS, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(embedded, after)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(F.silu(self.normalise(x, self.norm1)))
        hidden = hidden + self.time(F.silu(embedded))[:, :, None, None]
        hidden = self.conv2(F.silu(self.normalise(hidden, self.norm2)))
        return self.shortcut(x) + hidden


class Attention(nn.Module):
    """Every place of a picture attends to all of them. (batch, width, h, w) -> the same"""

    attention: Callable[..., torch.Tensor] = staticmethod(scaled_dot_product)
    normalise: Callable[..., torch.Tensor] = staticmethod(group_norm)

    def __init__(self, width: int):
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.norm = nn.GroupNorm(GROUPS, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1, bias=False), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, height, across = x.shape
        qkv = self.qkv(self.normalise(x, self.norm)).flatten(2).transpose(1, 2).contiguous()
        q, k, v = qkv.view(batch, -1, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = self.attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(mixed.transpose(1, 2).view(batch, width, height, across))


class UNet(nn.Module):
    """noisy (batch, 3, size, size), times (batch,) int64 below STEPS -> the noise, shaped like `noisy`.

    widths: channels at the full size, at half of it, and so on; with attention at all but the full size."""

    embed: Callable[..., torch.Tensor] = staticmethod(sinusoidal)
    normalise: Callable[..., torch.Tensor] = staticmethod(group_norm)

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        first, last = widths[0], widths[-1]
        embedded = 4 * first
        self.time1, self.time2 = nn.Linear(first, embedded), nn.Linear(embedded, embedded)
        self.inner = nn.Conv2d(3, first, 3, padding=1)
        self.down: Any = nn.ModuleList()  # of ModuleLists, which torch types as Modules
        self.up: Any = nn.ModuleList()
        for level, width in enumerate(widths):
            before = widths[max(level - 1, 0)]
            attention = Attention(width) if level else nn.Identity()
            smaller = nn.Conv2d(width, width, 3, stride=2, padding=1) if level < len(widths) - 1 else nn.Identity()
            self.down.append(nn.ModuleList([Block(before, width, embedded), attention, smaller]))
        self.middle = nn.ModuleList([Block(last, last, embedded), Attention(last), Block(last, last, embedded)])
        for level, width in reversed(list(enumerate(widths))):
            after = widths[max(level - 1, 0)]
            attention = Attention(width) if level else nn.Identity()
            larger = nn.Conv2d(width, after, 3, padding=1) if level else nn.Identity()
            self.up.append(nn.ModuleList([Block(2 * width, width, embedded), attention, larger]))
        self.norm, self.outer = nn.GroupNorm(GROUPS, first), nn.Conv2d(first, 3, 3, padding=1)

    def use(self, attention: Callable, normalise: Callable, embed: Callable) -> None:
        """Give the model three operations.

        attention(q, k, v): all of shape (batch, heads, places, channels of a head), the result as well. normalise(x, norm): x
        (batch, channels, h, w) normalised as the `nn.GroupNorm` norm says. embed(times, width): (batch,) -> (batch, width),
        sines and cosines as in `sinusoidal`."""
        for part in self.modules():
            if isinstance(part, Block | Attention | UNet):
                part.normalise = normalise
            if isinstance(part, Attention):
                part.attention = attention
        self.embed = embed

    def forward(self, noisy: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        embedded = self.time2(F.silu(self.time1(self.embed(times, self.time1.in_features))))
        x, kept = self.inner(noisy), []
        for block, attention, smaller in self.down:
            x = attention(block(x, embedded))
            kept.append(x)
            x = smaller(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, embedded)), embedded)
        for level, (block, attention, larger) in enumerate(self.up, 1):
            x = attention(block(torch.cat([x, kept.pop()], 1), embedded))
            if level < len(self.up):
                x = larger(F.interpolate(x, scale_factor=2.0))
        return self.outer(F.silu(self.normalise(x, self.norm)))


class Model(nn.Module):
    """net: what is trained. average: the moving average of its weights, which begins as a copy."""

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.net = UNet(widths)
        self.average = copy.deepcopy(self.net).requires_grad_(False)


# ---------------------------------------------------------------- the job


def schedule() -> torch.Tensor:
    """How much of a picture's variance is left at each of the STEPS levels: (STEPS,) float32, from nearly 1 to nearly 0."""
    return torch.linspace(1e-4, 0.02, STEPS, dtype=torch.float64).neg().add(1).cumprod(0).float()


@dataclass
class Diffusion(Job):
    """decay: after a step each weight of model.average becomes decay * itself + (1 - decay) * that of model.net. schedule: see above."""

    seed: int = 0
    decay: float = DECAY
    schedule: torch.Tensor = field(default_factory=schedule)

    def generator(self, step: int) -> torch.Generator:
        """What is random in step `step` (0 for the first) is drawn from this on the job's device, first the levels, then the
        noise: `torch.randint(len(job.schedule), (batch,), generator=generator, device=job.device)` and
        `torch.randn(batch, 3, size, size, generator=generator, device=job.device)`."""
        mixed = np.random.SeedSequence((self.seed, step)).generate_state(1)[0]  # the CPU's takes 32 bits
        return torch.Generator(self.device).manual_seed(int(mixed))


def make_job(
    seed: int, device: torch.device, *, widths: Sequence[int], batch_size: int, lr: float, folder: str
) -> Diffusion:
    dataset = Pictures(np.load(Path(folder) / TRAIN))
    torch.manual_seed(seed)
    model = Model(widths)
    model.net.use(not_given, not_given, not_given)
    return Diffusion(model, dataset, Batches(len(dataset), batch_size, seed), lr, device, seed=seed)


@lru_cache(maxsize=1)
def _held_out(folder: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy pictures, their levels and the noise: always the same."""
    pixels = np.load(Path(folder) / HELD_OUT)
    chosen = np.linspace(0, len(pixels) - 1, min(EVALUATED, len(pixels))).astype(int)
    pictures = torch.from_numpy(pixels[chosen]).permute(0, 3, 1, 2).float().div(127.5).sub(1).contiguous()
    times = torch.arange(len(chosen)) * STEPS // len(chosen)
    noise = torch.randn(pictures.shape, generator=torch.Generator().manual_seed(0))
    signal = schedule()[times].view(-1, 1, 1, 1)
    return signal.sqrt() * pictures + (1 - signal).sqrt() * noise, times, noise


def evaluate(tensors: Weights, device: torch.device, *, widths: Sequence[int], folder: str, **_: Any) -> Figures:
    """loss: of the averaged weights, over all levels of noise."""
    model = Model(widths)
    model.load_state_dict(tensors)
    model.to(device)
    parts = zip(*(part.to(device).split(16) for part in _held_out(folder)), strict=True)
    losses = [F.mse_loss(model.average(noisy, times), noise) for noisy, times, noise in parts]
    return {"loss": torch.stack(losses).mean().item()}
