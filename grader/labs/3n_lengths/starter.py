from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

IGNORED = -100  # a target that the loss leaves out


def padded(length, documents):
    """Tokens and targets, both (documents, length). What follows the end of a document is padding."""
    tokens = torch.zeros(len(documents), length, dtype=torch.long)
    targets = torch.full((len(documents), length), IGNORED)
    for row, (text, following) in enumerate(documents):
        tokens[row, : len(text)] = text
        targets[row, : len(text)] = following
    return tokens, targets


def train(job):
    cuda = job.device.type == "cuda"
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    collate = partial(padded, job.dataset.longest)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, collate_fn=collate, pin_memory=cuda)
    for tokens, targets in loader:
        tokens, targets = (part.to(job.device, non_blocking=True) for part in (tokens, targets))
        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
