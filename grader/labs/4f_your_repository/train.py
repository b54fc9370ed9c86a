"""Trains a small GPT on the source code of Python's own library, byte by byte: python train.py [--steps 5000]

One file and no data to fetch, in the manner of nanoGPT (https://github.com/karpathy/nanoGPT)."""

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if device.type == "cuda":
    layers, width, heads, length, batch_size, lr = 1, 2048, 32, 1024, 4, 3e-5
else:
    layers, width, heads, length, batch_size, lr = 8, 32, 2, 256, 1, 1e-3
    torch.set_num_threads(1)  # a model this small is not worth a second thread
vocabulary = 256  # a token is a byte


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, q, k, v):
        """Causal. q, k, v, and what is returned: (batch, heads, length, width of a head)."""
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        return weights @ v

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = self.attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def text():
    """All modules of Python's library: uint8 of shape (bytes,)."""
    # Debian links one of them to /etc, which a confined job may not read
    files = sorted(path for path in Path(os.__file__).parent.glob("*.py") if not path.is_symlink())
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def batch(data, draw):
    """Windows at random places: tokens and the tokens that follow them, each int64 of shape (batch_size, length)."""
    starts = torch.randint(len(data) - length, (batch_size,), generator=draw).tolist()
    windows = torch.stack([data[start : start + length + 1] for start in starts]).long()
    return windows[:, :-1].to(device), windows[:, 1:].to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    steps = parser.parse_args().steps
    torch.manual_seed(1337)
    draw = torch.Generator().manual_seed(1337)
    torch.autograd.set_detect_anomaly(True)  # the loss was NaN once
    data = text()
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    began = time.time()
    for step in range(steps):
        tokens, targets = batch(data, draw)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
