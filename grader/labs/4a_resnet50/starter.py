import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Cropped(Dataset):
    """The batch of a step: (step, indices) -> its images, decoded, cropped, resized and flipped, and its labels."""

    def __init__(self, job):
        self.files, self.labels, self.crops, self.size = job.dataset.files, job.dataset.labels, job.crops, job.size

    def __getitem__(self, key):
        step, batch = key
        pictures = [Image.open(self.files[index]).convert("RGB") for index in batch]
        sizes = torch.tensor([(picture.height, picture.width) for picture in pictures])
        images = []
        for picture, (top, left, height, width, flipped) in zip(pictures, self.crops(step, sizes).tolist()):
            crop = picture.crop((left, top, left + width, top + height))
            crop = crop.resize((self.size, self.size), Image.Resampling.BILINEAR)
            if flipped:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1)
            images.append(pixels.float().div_(64).sub_(2))
        return torch.stack(images), self.labels[batch]


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, foreach=False)
    losses = []
    for images, labels in DataLoader(Cropped(job), sampler=enumerate(job.batches), batch_size=None):
        images = torch.stack([image.to(job.device) for image in images])
        labels = torch.stack([label.to(job.device) for label in labels])
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())
        print(f"step {len(losses)}: loss {losses[-1]:.4f}, mean {sum(losses) / len(losses):.4f}")
        yield loss.detach()
