from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

TOGETHER = 4  # documents in memory at a time
IGNORED = -100  # a target that the loss leaves out


def padded(documents, length):
    """Tokens and targets, both (documents, length). What follows the end of a document is padding."""
    tokens = torch.zeros(len(documents), length, dtype=torch.long)
    targets = torch.full((len(documents), length), IGNORED)
    for row, (text, following) in enumerate(documents):
        tokens[row, : len(text)] = text
        targets[row, : len(text)] = following
    return tokens, targets


def in_parts(longest, documents):
    """A few documents at a time, and how many real tokens they all have."""
    parts = [documents[n : n + TOGETHER] for n in range(0, len(documents), TOGETHER)]
    return [padded(part, longest) for part in parts], sum(len(text) for text, _ in documents)


def train(job):
    cuda = job.device.type == "cuda"
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    collate = partial(in_parts, job.dataset.longest)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, collate_fn=collate, pin_memory=cuda)
    for parts, real in loader:
        total = torch.zeros((), device=job.device)
        for tokens, targets in parts:
            tokens, targets = tokens.to(job.device, non_blocking=True), targets.to(job.device, non_blocking=True)
            with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                logits = model(tokens)
                losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
                loss = losses / real
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        yield total
