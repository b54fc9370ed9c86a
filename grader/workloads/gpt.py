"""Language modelling on bytes or on tokens: a GPT in the shape of GPT-2 (pre-norm, GELU, learned positions, tied embedding)."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import grader.data.tokens as token_files
from grader.data.text import corpus, split
from grader.workloads.job import Batches, Figures, Job, Weights

VOCABULARY = 256  # the bytes; a model may know of more tokens than the text uses
HELD_OUT = 32  # windows that an evaluation uses


class Windows(Dataset):
    """Windows of `length` bytes. An item is (tokens, targets), int64 of shape (length,), the targets a byte on."""

    def __init__(self, text: np.ndarray, length: int):
        self.text, self.length = torch.from_numpy(np.array(text)), length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index * self.length : (index + 1) * self.length + 1].long()
        return window[:-1], window[1:]


class TokenWindows(Dataset):
    """Windows of `length` tokens of a file of uint16. An item is (tokens, targets): int64, shape (length,), targets one token on."""

    def __init__(self, file: Path, length: int):
        self.file, self.length = file, length
        self.data = np.memmap(file, np.uint16, "r")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.length)  # a loader's worker maps the file itself

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.data[index * self.length : (index + 1) * self.length + 1]
        window = torch.from_numpy(tokens.astype(np.int64))
        return window[:-1], window[1:]


class Buckets(Dataset):
    """Windows of several lengths. Item `bucket * windows + i` is the beginning of window i, lengths[bucket] bytes long."""

    def __init__(self, text: np.ndarray, lengths: Sequence[int]):
        self.lengths, self.windows = lengths, Windows(text, max(lengths))

    def __len__(self) -> int:
        return len(self.lengths) * len(self.windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        bucket, i = divmod(index, len(self.windows))
        tokens, targets = self.windows[i]
        return tokens[: self.lengths[bucket]], targets[: self.lengths[bucket]]


class Turns(Batches):
    """Batches of windows of one length each, the lengths in turn, so that any few steps hold as much of each."""

    def __init__(self, dataset: Buckets, batch_size: int, seed: int):
        super().__init__(len(dataset.windows), batch_size, seed)
        self.buckets = len(dataset.lengths)

    def __iter__(self) -> Iterator[list[int]]:
        for turn, batch in enumerate(super().__iter__()):
            yield [turn % self.buckets * self.count + i for i in batch]


Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def not_given(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError(
        "this model comes without an attention: set `block.attention` of each block of model.blocks"
    )


class Block(nn.Module):
    """attention(q, k, v): causal, all of shape (batch, heads, length, width of a head), the result as well."""

    attention: Attention = staticmethod(partial(F.scaled_dot_product_attention, is_causal=True))

    def __init__(self, width: int, heads: int, bias: bool = True):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = self.attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """tokens (batch, length) int64 -> logits (batch, length, vocabulary). bias: of linear layers and norms; nanoGPT has none."""

    def __init__(
        self, layers: int, width: int, heads: int, length: int, vocabulary: int = VOCABULARY, bias: bool = True
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        # GPT-2's initialisation: normal with sd 0.02, the projections that end a residual branch scaled down
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = (2 * layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def use(self, attention: Attention) -> None:
        """Give all blocks this attention."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attention = attention

    def spread_scores(self) -> None:
        """Larger weights for queries and keys: scores spread by about 2, for of a nearly uniform attention one can't tell if it is right."""
        for block in self.blocks:
            assert isinstance(block, Block)
            width = block.out.in_features
            nn.init.normal_(block.qkv.weight[: 2 * width], std=1.4 * width**-0.5)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the logits are made from: (batch, length, width)."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.hidden(tokens), self.embedding.weight)


def windows(length: int, folder: str, held_out: bool) -> Windows | TokenWindows:
    """Of the files of tokens in a folder, or of the text where there is none."""
    if folder:
        return TokenWindows(Path(folder) / (token_files.HELD_OUT if held_out else token_files.TRAIN), length)
    return Windows(text()[held_out], length)


@lru_cache(maxsize=1)
def text() -> tuple[np.ndarray, np.ndarray]:
    return split(corpus())


def make_job(
    seed: int,
    device: torch.device,
    *,
    layers: int,
    width: int,
    heads: int,
    length: int,
    batch_size: int,
    lr: float,
    vocabulary: int = VOCABULARY,
    lengths: Sequence[int] = (),
    bare: bool = False,
    bias: bool = True,
    folder: str = "",
) -> Job:
    """lengths: of the windows, in turn from batch to batch; all are `length` long where there are none. bare: the blocks come without
    an attention, the loop brings it. folder: with files of tokens, see `grader.data.tokens`; without one the text's bytes are used."""
    torch.manual_seed(seed)
    if lengths:
        dataset: Any = Buckets(text()[0], lengths)
        batches: Batches = Turns(dataset, batch_size, seed)
    else:
        dataset = windows(length, folder, held_out=False)
        batches = Batches(len(dataset), batch_size, seed)
    model = GPT(layers, width, heads, length, vocabulary, bias)
    if bare:
        model.use(not_given)
        model.spread_scores()
    return Job(model, dataset, batches, lr, device)


def evaluate(
    tensors: Weights,
    device: torch.device,
    *,
    layers: int,
    width: int,
    heads: int,
    length: int,
    vocabulary: int = VOCABULARY,
    bias: bool = True,
    folder: str = "",
    **_: Any,
) -> Figures:
    with device:  # where its first weights, which nobody needs, are drawn faster
        net = GPT(layers, width, heads, length, vocabulary, bias)
    return held_out(net, tensors, device, length, folder)


def held_out(net: nn.Module, tensors: Weights, device: torch.device, length: int, folder: str = "") -> Figures:
    """Loss and accuracy of a model with these weights, on windows of held-out text."""
    net.load_state_dict(tensors)
    net.to(device).eval()
    data = windows(length, folder, held_out=True)
    chosen = np.linspace(0, len(data) - 1, min(HELD_OUT, len(data))).astype(int)
    tokens, targets = (torch.stack(part).to(device) for part in zip(*(data[i] for i in chosen), strict=True))
    losses, right = [], []
    for x, y in zip(tokens.split(8), targets.split(8), strict=True):
        logits = net(x)
        losses.append(F.cross_entropy(logits.flatten(0, 1), y.flatten()))
        right.append((logits.argmax(-1) == y).float().mean())
    return {"loss": torch.stack(losses).mean().item(), "accuracy": torch.stack(right).mean().item()}
