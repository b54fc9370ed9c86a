"""Language modelling on documents of very unequal length, by the GPT of `grader.workloads.gpt`."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from grader.workloads.gpt import GPT, text
from grader.workloads.job import Batches, Figures, Job, Weights

MOST = 2000  # documents of a class
SPREAD = 0.1  # of the lengths within a class, either way
SOON = 8  # steps, within which the longest document comes: a loop that can't take it shows at once


class Documents(Dataset):
    """Documents of `lengths` bytes. Item i is (tokens, targets): two int64 tensors of shape (lengths[i],), the targets one byte further on.

    classes: a length for each class of `each` documents. One document of the first class has `longest` bytes."""

    def __init__(self, text: np.ndarray, classes: Sequence[int], longest: int, seed: int):
        generator = torch.Generator("cpu").manual_seed(seed)
        most = sum(int(length * (1 + SPREAD)) + 1 for length in classes)
        self.text, self.longest = torch.from_numpy(np.array(text)), longest
        self.each = min(MOST, (len(text) - 1 - longest) // most)
        drawn = 1 - SPREAD + 2 * SPREAD * torch.rand(len(classes), self.each, generator=generator, device="cpu")
        drawn *= torch.tensor(classes, device="cpu")[:, None]
        lengths = drawn.round().long().clamp(min=1)
        lengths[0, torch.randint(self.each, (), generator=generator, device="cpu")] = longest
        self.lengths: list[int] = lengths.flatten().tolist()
        self.ends: list[int] = lengths.flatten().cumsum(0).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.ends[index]
        document = self.text[end - self.lengths[index] : end + 1].long()
        return document[:-1], document[1:]


class Mixed(Batches):
    """Batches of one document of each class, in any order, so that each step holds about as many tokens."""

    def __init__(self, dataset: Documents, classes: int, seed: int):
        super().__init__(len(dataset), classes, seed)
        self.each, self.longest = dataset.each, dataset.lengths.index(dataset.longest)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator("cpu").manual_seed(self.seed)

        def shuffled(count: int) -> torch.Tensor:
            return torch.randperm(count, generator=generator, device="cpu")

        while True:
            turns = torch.stack([shuffled(self.each) + self.each * n for n in range(self.batch_size)])
            first = turns[0]  # the class of the longest one
            at, soon = (first == self.longest).nonzero(), torch.randint(SOON, (1, 1), generator=generator, device="cpu")
            first[at], first[soon] = first[soon], first[at].clone()
            for batch in turns.T:
                yield batch[shuffled(self.batch_size)].tolist()


def make_job(
    seed: int,
    device: torch.device,
    *,
    layers: int,
    width: int,
    heads: int,
    length: int,
    documents: Sequence[int],
    lr: float,
) -> Job:
    """length: of the longest document, and so of the model's table of positions. documents: the length of each document of a batch, about."""
    torch.manual_seed(seed)
    model = GPT(layers, width, heads, length)
    model.spread_scores()
    dataset = Documents(text()[0], documents, length, seed)
    return Job(model, dataset, Mixed(dataset, len(documents), seed), lr, device)


def evaluate(tensors: Weights, device: torch.device, *, length: int, documents: Sequence[int], **sizes: Any) -> Figures:
    """Of one batch of held-out documents, each by itself."""
    with device:  # where its first weights, which nobody needs, are drawn faster
        net = GPT(sizes["layers"], sizes["width"], sizes["heads"], length)
    net.load_state_dict(tensors)
    net.to(device).eval()
    data = Documents(text()[1], documents, length, seed=0)
    losses, right, tokens = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for index in range(0, len(data), data.each):
        inputs, targets = (part.to(device) for part in data[index])
        logits = net(inputs[None])[0]
        losses += F.cross_entropy(logits, targets, reduction="sum")
        right += (logits.argmax(-1) == targets).sum()
        tokens += len(targets)
    return {"loss": losses.item() / tokens, "accuracy": right.item() / tokens}
