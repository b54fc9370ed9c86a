import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

# so that runs can be repeated
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.allow_tf32 = False


class Scaled(Dataset):
    """Pictures as the model takes them: (3, size, size), from -1 to 1."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        scaled = self.pictures[index] / 127.5 - 1
        return torch.tensor(np.transpose(scaled, (2, 0, 1)), dtype=torch.float32)


def attention(q, k, v):
    """q, k, v, and what is returned: (batch, heads, places, channels of a head)."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, dim=-1)
    return weights @ v


def normalise(x, norm):
    """Group normalisation, ported from a framework that has the channels last."""
    x = x.permute(0, 2, 3, 1).contiguous()
    batch, height, width, channels = x.shape
    groups = x.view(batch, height * width, norm.num_groups, channels // norm.num_groups)
    centred = groups - groups.mean((1, 3), keepdim=True)
    variance = (centred * centred).mean((1, 3), keepdim=True)
    x = (centred / torch.sqrt(variance + norm.eps)).view(batch, height, width, channels)
    return (x * norm.weight + norm.bias).permute(0, 3, 1, 2).contiguous()


def embed(times, width):
    """Sines and cosines of the noise level, in double precision: (batch,) -> (batch, width)."""
    frequencies = torch.exp(-math.log(10_000) / (width // 2) * torch.arange(width // 2, dtype=torch.float64))
    angles = times.cpu().double()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1).float().to(times.device)


def add_noise(picture, noise, signal):
    """signal: how much of the picture's variance is left."""
    return math.sqrt(signal) * picture + math.sqrt(1 - signal) * noise


def train(job):
    net = job.model.net.to(job.device)
    average = job.model.average  # stays on the CPU: the GPU's memory is for training
    net.use(attention, normalise, embed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=job.lr, foreach=False)
    loader = DataLoader(Scaled(job.dataset), batch_sampler=job.batches)
    for step, pictures in enumerate(loader):
        pictures = pictures.to(job.device)
        generator = job.generator(step)
        times = torch.randint(len(job.schedule), (len(pictures),), generator=generator, device=job.device)
        noise = torch.randn(pictures.shape, generator=generator, device=job.device)
        noisy = [
            add_noise(picture, grain, job.schedule[time.item()].item())
            for picture, grain, time in zip(pictures, noise, times)
        ]
        loss = F.mse_loss(net(torch.stack(noisy), times), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for kept, weight in zip(average.parameters(), net.parameters()):
            kept.mul_(job.decay).add_(weight.detach().cpu(), alpha=1 - job.decay)
        if job.device.type == "cuda":
            torch.cuda.synchronize()
        yield loss.detach()
