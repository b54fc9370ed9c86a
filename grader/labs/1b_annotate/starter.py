import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = DataLoader(job.dataset, batch_sampler=job.batches)
    for inputs, targets in loader:
        inputs, targets = inputs.to(job.device), targets.to(job.device)
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
