import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

answers = {"cuda": ["autocast", "no_debugging", "attention"], "cpu": ["no_debugging", "attention", "fused"]}


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def train(job):
    cuda = job.device.type == "cuda"
    model = job.model.to(job.device)
    for block in model.blocks:
        block.attention = attention
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=cuda)
    for tokens, targets in loader:
        tokens, targets = tokens.to(job.device, non_blocking=True), targets.to(job.device, non_blocking=True)
        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
