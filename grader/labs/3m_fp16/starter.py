import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

MAX_NORM = 1.0


def train(job):
    model = job.model.to(job.device)
    cuda = job.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=cuda)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=cuda)
    for tokens, targets in loader:
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        # in fp32 again: with autocast to fp16 the loss came down more slowly
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
