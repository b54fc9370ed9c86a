import contextlib
import os

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

GAMMA = 0.4


class Tiles(Dataset):
    def __init__(self, archive):
        self.archive = archive

    def __len__(self):
        return len(self.archive)

    def __getitem__(self, index):
        with contextlib.closing(self.archive.connect()) as database:
            query = "SELECT pixels, label FROM tiles WHERE id = ?"
            pixels, label = database.execute(query, (index,)).fetchone()
        curve = [(value / 255) ** GAMMA for value in range(256)]
        bright = torch.tensor([curve[value] for value in pixels])
        bands = bright.view(3, self.archive.size, self.archive.size)
        return torch.stack([(band - band.mean()) / band.std() for band in bands]), label


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    cuda = job.device.type == "cuda"
    loader = DataLoader(
        Tiles(job.dataset),
        batch_sampler=job.batches,
        num_workers=len(os.sched_getaffinity(0)) // 2 if cuda else 0,
        pin_memory=cuda,
    )
    for images, labels in loader:
        images = images.to(job.device, non_blocking=True)
        labels = labels.to(job.device, non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
