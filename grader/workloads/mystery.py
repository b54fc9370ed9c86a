"""Loops with one planted trouble each, drawn by `grader.kinds.mystery`: those of the recorded traces on a GPU, small on a CPU."""

import time
from collections.abc import Iterator
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import record_function as phase
from torch.utils.data import DataLoader, Dataset

from grader.workloads.job import Batches, OwnLoop


def make_job(seed: int, device: torch.device, *, case: str, sizes: dict[str, Any]) -> OwnLoop:
    """case: on a GPU the name of one of `grader.data.planted.CASES`, on a CPU one of `ON_CPU`; sizes: what it reads."""
    torch.manual_seed(seed)
    loop = ON_CPU[case](SimpleNamespace(**sizes)) if device.type == "cpu" else _planted(case, device, sizes)
    return OwnLoop.of(loop, device)


def _planted(case: str, device: torch.device, sizes: dict[str, Any]) -> Iterator[torch.Tensor]:
    import grader.data.planted as planted  # which asks for a GPU's libraries

    chosen = next(c for c in planted.CASES if c.name == case)
    planted.tensor_cores(True)
    loop = chosen.loops["healthy" if chosen.cause is None else "planted"]
    return loop(planted.Setup(device, SimpleNamespace(**{**chosen.at, **sizes})))


# ---------------------------------------------------------------- on a CPU


class Reads(Dataset):
    """`count` samples of `width` numbers; reading one waits `read_s` seconds, as for storage across a network."""

    def __init__(self, count: int, width: int, read_s: float):
        self.inputs, self.labels = torch.randn(count, width), torch.randint(10, (count,))
        self.read_s = read_s

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with phase("load_sample"):
            time.sleep(self.read_s)
            return self.inputs[index], self.labels[index]


def network(width: int, depth: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(model: nn.Module, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    while True:
        with phase("data_wait"):
            inputs, labels = next(batches)
        with phase("fwd"):
            loss = F.cross_entropy(model(inputs), labels)
        with phase("bwd"):
            loss.backward()
        with phase("opt"):
            optimizer.step()
            optimizer.zero_grad()
        yield loss.detach()


def ready(s: SimpleNamespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same few batches for ever."""
    return cycle([(torch.randn(s.batch, s.width), torch.randint(10, (s.batch,))) for _ in range(3)])


def slow_reads(s: SimpleNamespace) -> Iterator[torch.Tensor]:
    dataset = Reads(1000, s.width, s.read_s)
    loader = DataLoader(dataset, batch_sampler=Batches(len(dataset), s.batch, seed=0))
    return train(network(s.width, s.depth), iter(loader))


def many_small(s: SimpleNamespace) -> Iterator[torch.Tensor]:
    """Many layers of next to no work: the time goes into calling them."""
    return train(network(s.width, s.depth), ready(s))


class ByHand(nn.Module):
    """Layer norm and GELU written out: each operation reads and writes a whole tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        x = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)
        return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x * x * x)))


def element_wise(s: SimpleNamespace) -> Iterator[torch.Tensor]:
    layers = [layer for _ in range(s.depth) for layer in (nn.Linear(s.width, s.width), ByHand())]
    return train(nn.Sequential(*layers, nn.Linear(s.width, 10)), ready(s))


def products(s: SimpleNamespace) -> Iterator[torch.Tensor]:
    """Nothing planted: nearly all of the step is matrix products."""
    return train(network(s.width, s.depth), ready(s))


ON_CPU = {"slow_reads": slow_reads, "many_small": many_small, "element_wise": element_wise, "products": products}
