import gc

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    cuda = job.device.type == "cuda"
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, collate_fn=job.dataset.collate, pin_memory=cuda)
    for step, (events, labels) in enumerate(loader):
        events, labels = events.to(job.device, non_blocking=True), labels.to(job.device, non_blocking=True)
        loss = F.cross_entropy(model(events), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 5:
            gc.collect()  # keep memory level
        yield loss.detach()
