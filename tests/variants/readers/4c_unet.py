import math

import torch
import torch.nn.functional as F

torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = True


def attention(q, k, v):
    """q, k, v, and what is returned: (batch, heads, places, channels of a head)."""
    return F.scaled_dot_product_attention(q, k, v)


def normalise(x, norm):
    return F.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps)


def normalise_last(x, norm):
    """The same for the compiler: the channels stay where they are, in memory the last."""
    batch, channels, height, width = x.shape
    groups = x.float().view(batch, norm.num_groups, channels // norm.num_groups, height, width)
    variance, mean = torch.var_mean(groups, (2, 3, 4), keepdim=True, correction=0)
    groups = (groups - mean) * torch.rsqrt(variance + norm.eps)
    result = groups.reshape(batch, channels, height, width) * norm.weight[:, None, None] + norm.bias[:, None, None]
    return result.to(x.dtype)


def embed(times, width):
    """Sines and cosines of the noise level, in double precision, where the levels are: (batch,) -> (batch, width)."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float64, device=times.device))
    angles = times.double()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1).float()


def train(job):
    cuda = job.device.type == "cuda"
    layout = torch.channels_last
    net = job.model.net.to(job.device, memory_format=layout)
    average = job.model.average.to(job.device, memory_format=layout)
    net.use(attention, normalise_last if cuda else normalise, embed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=job.lr, fused=True)
    kept, weights = list(average.parameters()), list(net.parameters())
    pixels = torch.from_numpy(job.dataset.pixels).to(job.device)  # bytes, all of them
    schedule = job.schedule.double()
    signal, grain = (part.sqrt().float().to(job.device) for part in (schedule, 1 - schedule))

    def loss_of(pictures, times, noise):
        pictures = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1  # a byte's channels are the last already
        noisy = signal[times].view(-1, 1, 1, 1) * pictures + grain[times].view(-1, 1, 1, 1) * noise
        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            predicted = net(noisy.contiguous(memory_format=layout), times)
        return F.mse_loss(predicted.float(), noise)

    compute = torch.compile(loss_of, dynamic=False) if cuda else loss_of
    for step, batch in enumerate(job.batches):
        chosen = torch.as_tensor(batch)
        chosen = chosen.pin_memory().to(job.device, non_blocking=True) if cuda else chosen
        pictures = pixels[chosen]
        count, height, width, channels = pictures.shape
        generator = job.generator(step)
        times = torch.randint(len(job.schedule), (count,), generator=generator, device=job.device)
        noise = torch.randn((count, channels, height, width), generator=generator, device=job.device)
        loss = compute(pictures, times, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(kept, weights, 1 - job.decay)
        yield loss.detach()
