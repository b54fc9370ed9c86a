import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    model = job.model.to(job.device)
    cuda = job.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=cuda)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=cuda)
    for tokens, targets in loader:
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
