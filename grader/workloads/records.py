"""Sorting records into classes, as they come from a file of JSON lines: each is a dictionary of lists, all of them in memory."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from grader.workloads.job import Batches, Figures, Job, Weights, loss_and_accuracy

KINDS = 256  # of events
EVENTS = 8  # of a record
CLASSES = 10
HELD_OUT = 4096
APART = ("0.",)  # the embedding: few weights beside the others

# "events": a list of EVENTS lists [kind, value], both below KINDS; "label": an int below CLASSES
Record = dict[str, Any]


def drawn(count: int, seed: int) -> list[Record]:
    """Records whose label follows from the kinds and values of their events, in one way for all seeds."""
    weights = np.random.default_rng(0).standard_normal((2, KINDS, CLASSES))
    events = np.random.default_rng(seed).integers(0, KINDS, (count, EVENTS, 2))
    labels = sum(weights[n][events[:, :, n]].sum(1) for n in range(2)).argmax(1)
    return [{"events": each, "label": label} for each, label in zip(events.tolist(), labels.tolist(), strict=True)]


def collate(records: list[Record]) -> tuple[torch.Tensor, torch.Tensor]:
    """Events (batch, 2 * EVENTS) and labels (batch,), int64."""
    events = torch.tensor([record["events"] for record in records], device="cpu")
    return events.flatten(1), torch.tensor([record["label"] for record in records], device="cpu")


class Records(Dataset):
    """Item i is a `Record`; `collate` makes tensors of a list of them."""

    def __init__(self, count: int):
        self.records = drawn(count, 1)
        self.collate = collate

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


def network(width: int, layers: int) -> nn.Module:
    """events (batch, 2 * EVENTS) int64 -> logits (batch, CLASSES)."""
    sizes = [2 * EVENTS * 16, *layers * [width]]
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Embedding(KINDS, 16), nn.Flatten(), *hidden, nn.Linear(width, CLASSES))


def make_job(
    seed: int, device: torch.device, *, records: int, width: int, layers: int, batch_size: int, lr: float
) -> Job:
    torch.manual_seed(seed)
    return Job(network(width, layers), Records(records), Batches(records, batch_size, seed), lr, device)


def evaluate(tensors: Weights, device: torch.device, *, width: int, layers: int, **_: Any) -> Figures:
    model = network(width, layers)
    model.load_state_dict(tensors)
    events, labels = collate(drawn(HELD_OUT, 2))
    with torch.no_grad():
        return loss_and_accuracy(model.to(device)(events.to(device)), labels)
