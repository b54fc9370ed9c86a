"""Two trained models that are served: a GPT scores texts, a ResNet classifies pictures.

No weights are shipped. The models are drawn from the seed, and so that their answers depend on all of what they are given, as a
trained model's do: queries and keys have larger weights than GPT-2 begins with, so that attention is not uniform; the batch
normalisations have the statistics of pictures like those to come, residual blocks add little, and the last layer is scaled to
logits that differ by about 1 from picture to picture."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import Bottleneck

import grader.data.tiles as tiles
from grader.workloads.gpt import GPT, text
from grader.workloads.job import Batches, Job
from grader.workloads.resnet import TinyNet

ENTRY = "serve"  # the function that a submission defines
CLASSES = 100
POOL = 256  # pictures that those of the requests are cut from
MARGIN = 16  # by how much they are larger, on each side
CALIBRATING = 32  # pictures that the ResNet is scaled by
BRANCH = 0.1  # share of what a residual block adds; with more, a net that was never trained takes all pictures for one
# how much a number of the answers differs from text to text, from picture to picture
SPREAD = {"scores": 0.5, "logits": 1.0}
# how many times a wrong answer counts. In bf16 the scores of a request are off by 0.09 of a wrong text, its logits by 0.22 of a
# wrong picture (NVIDIA H200, torch 2.11): counted alike, what is wrong with texts would hide under pictures' rounding
COUNTS = {"scores": 3, "logits": 1}


@dataclass(frozen=True)
class Request:
    texts: list[bytes]  # of different lengths, in no order
    images: torch.Tensor  # (count, size, size, 3) uint8, in main memory


class Requests:
    """Endless requests, each the same amount of work: `texts` texts up to each of `lengths` (and longer than the one before), and
    `images` pictures.

    key: what request n is drawn from, (seed, n) by itself. While a loop is watched, the harness puts something there that it hands out,
    and counts, request by request (see `grader.sandbox`)."""

    def __init__(self, seed: int, lengths: Sequence[int], texts: int, images: int, size: int):
        self.lengths, self.texts, self.images, self.size = lengths, texts, images, size
        self.corpus, self.pool = text()[0], _pool(size)
        self.key: Callable[[int], Any] = lambda n: (seed, n)
        self._one = threading.Lock()  # what hands the keys out can be asked by one thread at a time

    def __iter__(self) -> Iterator[Request]:
        n = 0
        while True:
            yield self.request(n)
            n += 1

    def request(self, n: int) -> Request:
        with self._one:
            key = self.key(n)
        rng = np.random.default_rng(key)
        shortest = np.repeat([1, *self.lengths[:-1]], self.texts) + 1
        lengths = rng.permutation(rng.integers(shortest, np.repeat(self.lengths, self.texts), endpoint=True))
        begins = rng.integers(0, len(self.corpus) - lengths)
        first = rng.integers(len(self.pool) - self.images, endpoint=True)
        top, left = rng.integers(2 * MARGIN, size=2, endpoint=True)
        return Request(
            texts=[self.corpus[a : a + size].tobytes() for a, size in zip(begins, lengths, strict=True)],
            images=self.pool[first : first + self.images, top : top + self.size, left : left + self.size],
        )


@dataclass
class Serving(Job):
    """The rest of a job says nothing here: nothing is trained."""

    gpt: nn.Module | None = None  # on the CPU, as the next one
    resnet: nn.Module | None = None
    requests: Requests | None = None  # endless
    lengths: Sequence[int] = field(default_factory=tuple)  # that texts are grouped by, rising


@lru_cache(maxsize=1)
def _pool(size: int) -> torch.Tensor:
    """(POOL, size and margins, size and margins, 3) uint8: tiles, each band darkened for itself."""
    side, light = size + 2 * MARGIN, np.random.default_rng(0).uniform(0.1, 1, (POOL, 3))
    drawn = (tiles.draw(index, 3, side).transpose(1, 2, 0) * light[index] for index in range(POOL))
    return torch.from_numpy(np.stack([tile.astype(np.uint8) for tile in drawn]))


def make_resnet(model: str, size: int) -> nn.Module:
    """`model`: "tiny", or the name of a ResNet of torchvision's."""
    net = TinyNet(CLASSES) if model == "tiny" else getattr(torchvision.models, model)(num_classes=CLASSES)
    last = net.head if model == "tiny" else net.fc
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 1.0  # the statistics of the pictures that follow, and of no others
        if isinstance(part, Bottleneck):
            nn.init.constant_(part.bn3.weight, BRANCH)
    with torch.no_grad():
        pictures = _pool(size)[:: POOL // CALIBRATING, :size, :size].permute(0, 3, 1, 2).float().div(64).sub(2)
        net(pictures)
        spread, mean = torch.std_mean(net.eval()(pictures), dim=0)
        assert isinstance(last, nn.Linear)
        last.weight.div_(spread[:, None])
        last.bias.sub_(mean).div_(spread)
    return net.train()


def make_job(
    seed: int,
    device: torch.device,
    *,
    layers: int,
    width: int,
    heads: int,
    lengths: Sequence[int],
    texts: int,
    model: str,
    size: int,
    images: int,
) -> Serving:
    torch.manual_seed(seed)
    gpt = GPT(layers, width, heads, lengths[-1])
    gpt.spread_scores()
    resnet = make_resnet(model, size)
    both, requests = nn.ModuleDict({"gpt": gpt, "resnet": resnet}), Requests(seed, lengths, texts, images, size)
    nothing = Batches(1, 1, seed)
    return Serving(both, [], nothing, 0.0, device, gpt=gpt, resnet=resnet, requests=requests, lengths=lengths)


class Look:
    """Makes one number of the answers to a request: their sum with signs that are drawn when the answers are there, scaled so that
    one wrong answer changes it by about 1 (a text's by 3) and rounding in 16 bits by much less."""

    def __init__(self, seed: int, device: torch.device, *, lengths: Sequence[int], texts: int, images: int, **_: Any):
        self.seed, self.device = seed, device
        self.shapes = {"scores": (texts * len(lengths), lengths[-1]), "logits": (images, CLASSES)}
        # of n differences with random signs the sum is about the square root of n times as large
        numbers = {"scores": lengths[0], "logits": CLASSES}
        self.scales = {name: COUNTS[name] / (SPREAD[name] * numbers[name] ** 0.5) for name in numbers}

    def __call__(self, n: int, answers: Any) -> torch.Tensor:
        """A 0-d float32 tensor on the device. Raises ValueError where these cannot be the answers to a request."""
        if not isinstance(answers, tuple | list) or len(answers) != 2:
            raise ValueError("`serve` must yield two tensors for each request: `yield scores, logits`")
        generator = torch.Generator(self.device).manual_seed(
            int(np.random.SeedSequence((self.seed, n)).generate_state(1)[0])
        )
        total = torch.zeros((), device=self.device)
        for (name, shape), answer in zip(self.shapes.items(), answers, strict=True):
            if type(answer) is not torch.Tensor or not answer.is_floating_point() or tuple(answer.shape) != shape:
                raise ValueError(
                    f"{name} must be a tensor of floating-point numbers of shape {shape}, it is {_a(answer)}"
                )
            if answer.device.type != self.device.type:
                raise ValueError(f"{name} must be on the device {self.device.type}, they are on {answer.device.type}")
            signs = torch.randint(2, shape, generator=generator, device=self.device).mul(2).sub(1)
            total = total + self.scales[name] * (answer.detach().float() * signs).sum()
        return total


def _a(answer: Any) -> str:
    return (
        f"{tuple(answer.shape)}, {answer.dtype}" if isinstance(answer, torch.Tensor) else f"a {type(answer).__name__}"
    )
