from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

MICRO_BATCHES = 8  # a batch does not fit in memory at once


def train(job):
    cuda = job.device.type == "cuda"
    # buckets are averaged while the backward pass computes what comes after them
    model = DistributedDataParallel(job.model.to(job.device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    share = (batch[job.rank :: job.world_size] for batch in job.batches)  # of each batch what this rank trains on
    loader = DataLoader(job.dataset, batch_sampler=share, pin_memory=cuda)
    for tokens, targets in loader:
        tokens = tokens.to(job.device, non_blocking=True).chunk(MICRO_BATCHES)
        targets = targets.to(job.device, non_blocking=True).chunk(MICRO_BATCHES)
        mean = torch.zeros((), device=job.device)
        for part, (inputs, wanted) in enumerate(zip(tokens, targets, strict=True)):
            last = part == MICRO_BATCHES - 1
            with nullcontext() if last else model.no_sync():
                with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                    logits = model(inputs)
                    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) / MICRO_BATCHES
                loss.backward()
            mean += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        yield mean
