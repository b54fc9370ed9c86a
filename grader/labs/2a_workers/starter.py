import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = DataLoader(job.dataset, batch_sampler=job.batches)
    for images, labels in loader:
        images, labels = images.to(job.device), labels.to(job.device)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
