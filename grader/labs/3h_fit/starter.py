import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

MICRO_BATCH = 1  # samples that are in memory at a time


def forward(model, tokens):
    """The model's forward pass, each block checkpointed."""
    x = model.embedding(tokens) + model.positions[: tokens.shape[1]]
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return F.linear(model.norm(x), model.embedding.weight)


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, foreach=False)
    loader = DataLoader(job.dataset, batch_sampler=job.batches)
    for tokens, targets in loader:
        tokens, targets = tokens.to(job.device), targets.to(job.device)
        total = torch.zeros((), device=job.device)
        for part, wanted in zip(tokens.split(MICRO_BATCH), targets.split(MICRO_BATCH), strict=True):
            with sdpa_kernel(SDPBackend.MATH):
                logits = forward(model, part)
                loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) / len(tokens)
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        yield total
