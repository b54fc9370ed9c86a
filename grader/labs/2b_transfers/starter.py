import torch
import torch.nn.functional as F


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    tiles, classes = job.dataset.images, job.dataset.labels
    staged = torch.empty(job.batches.batch_size, *tiles.shape[1:])
    for batch in job.batches:
        torch.index_select(tiles, 0, torch.tensor(batch), out=staged)
        images = staged.to(job.device)
        labels = torch.stack([classes[index].to(job.device) for index in batch])
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
