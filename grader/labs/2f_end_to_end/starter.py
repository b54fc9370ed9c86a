import contextlib
from array import array

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
        bright = torch.frombuffer(array("f", [curve[value] for value in pixels]), dtype=torch.float32)
        bands = bright.view(3, self.archive.size, self.archive.size)
        return torch.stack([(band - band.mean()) / band.std() for band in bands]), label


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = DataLoader(Tiles(job.dataset), batch_sampler=job.batches)
    for step, (images, labels) in enumerate(loader):
        images = torch.stack([image.to(job.device) for image in images])
        labels = torch.stack([label.to(job.device) for label in labels])
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        right = sum(int(guess == label) for guess, label in zip(logits.argmax(1), labels))
        job.log(step, loss=loss.item(), accuracy=right / len(labels))
        yield loss.detach()
