import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

# your three changes, in the order in which you made them, by the names that `grader try` has for them
answers = {"cuda": [], "cpu": []}


def attention(q, k, v):
    """Causal. q, k, v, and what is returned: (batch, heads, length, width of a head)."""
    length = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return weights @ v


def train(job):
    model = job.model.to(job.device)
    for block in model.blocks:
        block.attention = attention
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    torch.autograd.set_detect_anomaly(True)  # the loss was NaN once
    for tokens, targets in DataLoader(job.dataset, batch_sampler=job.batches):
        tokens, targets = tokens.to(job.device), targets.to(job.device)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
