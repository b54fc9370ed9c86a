import math

import numpy as np
import torch
import torch.nn.functional as F

MICRO_BATCH = 8  # windows that are in memory at a time


def attention(q, k, v):
    """Causal attention. q, k, v, and what is returned: (batch, heads, length, width of a head)."""
    length = q.shape[-2]
    mask = torch.tril(torch.ones(length, length)).to(q.device)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def get_batch(job, indices):
    """Tokens and targets of these windows, both (batch, length) int64, on the device."""
    length = job.dataset.length
    data = np.memmap(job.dataset.file, dtype=np.uint16, mode="r")
    starts = [index * length for index in indices]
    tokens = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
    targets = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
    return tokens.to(job.device), targets.to(job.device)


def train(job):
    model = job.model.to(job.device)
    for block in model.blocks:
        block.attention = attention
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, foreach=False)
    for step, batch in enumerate(job.batches):
        optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for first in range(0, len(batch), MICRO_BATCH):
            part = batch[first : first + MICRO_BATCH]
            tokens, targets = get_batch(job, part)
            logits = model(tokens)
            # cross_entropy wants the classes second: (batch, vocabulary, length)
            loss = F.cross_entropy(logits.transpose(1, 2), targets) * (len(part) / len(batch))
            loss.backward()
            total += loss.item()
        optimizer.step()
        job.log(step, loss=total)
        yield torch.tensor(total)
