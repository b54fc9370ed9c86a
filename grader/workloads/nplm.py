"""Language modelling on bytes by a wide perceptron over the last bytes, in the shape of Bengio et al. (2003),
https://www.jmlr.org/papers/v3/bengio03a.html. Nearly all of its work is a few large matrix products."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from grader.workloads.gpt import VOCABULARY, Windows, held_out, text
from grader.workloads.job import Batches, Figures, Job, Weights


class NPLM(nn.Module):
    """tokens (batch, length) int64 -> logits (batch, length, 256), each from the `context` bytes that end there."""

    def __init__(self, context: int, features: int, width: int, layers: int):
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(VOCABULARY, features)
        sizes = [context * features, *layers * [width]]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = F.pad(self.embedding(tokens), (0, 0, self.context - 1, 0))
        x = x.unfold(1, self.context, 1).flatten(2)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.out(x)


def make_job(
    seed: int,
    device: torch.device,
    *,
    context: int,
    features: int,
    width: int,
    layers: int,
    length: int,
    batch_size: int,
    lr: float,
) -> Job:
    torch.manual_seed(seed)
    dataset = Windows(text()[0], length)
    model = NPLM(context, features, width, layers)
    return Job(model, dataset, Batches(len(dataset), batch_size, seed), lr, device)


def evaluate(tensors: Weights, device: torch.device, *, length: int, **sizes: Any) -> Figures:
    net = NPLM(sizes["context"], sizes["features"], sizes["width"], sizes["layers"])
    return held_out(net, tensors, device, length)
