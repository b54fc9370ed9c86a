import math

import torch
from torch.utils.data import DataLoader

BETA1, BETA2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.01


def normalise(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def softmax(x):
    exponents = torch.exp(x - x.amax(-1, keepdim=True))
    return exponents / exponents.sum(-1, keepdim=True)


def linear(x, layer):
    return torch.matmul(x, layer.weight.t()) + layer.bias


def attend(block, x):
    """Causal attention, one head after another. x: (batch, length, width)."""
    length, width = x.shape[1:]
    size = width // block.heads
    mask = torch.ones(length, length, device=x.device).tril() == 0
    q, k, v = linear(x, block.qkv).split(width, -1)
    heads = []
    for first in range(0, width, size):
        here = slice(first, first + size)
        scores = torch.matmul(q[:, :, here], k[:, :, here].permute(0, 2, 1)) / math.sqrt(size)
        heads.append(torch.matmul(softmax(scores.masked_fill(mask, -math.inf)), v[:, :, here]))
    return linear(torch.cat(heads, -1), block.out)


def forward(model, tokens):
    x = model.embedding.weight[tokens.reshape(-1)].view(*tokens.shape, -1) + model.positions[: tokens.shape[1]]
    for block in model.blocks:
        x = x + attend(block, normalise(x, block.norm1))
        x = x + linear(gelu(linear(normalise(x, block.norm2), block.up)), block.down)
    return torch.matmul(normalise(x, model.norm), model.embedding.weight.t())


def cross_entropy(logits, targets):
    chosen = softmax(logits).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -torch.log(chosen).mean()


@torch.no_grad()
def adamw(parameters, state, lr, step):
    """One step of AdamW, one parameter after another."""
    for parameter, (mean, square) in zip(parameters, state, strict=True):
        gradient = parameter.grad
        parameter.mul_(1 - lr * DECAY)
        mean.mul_(BETA1).add_(gradient * (1 - BETA1))
        square.mul_(BETA2).add_(gradient * gradient * (1 - BETA2))
        unbiased = mean / (1 - BETA1**step)
        scale = torch.sqrt(square / (1 - BETA2**step)) + EPSILON
        parameter.sub_(lr * unbiased / scale)


def train(job):
    model = job.model.to(job.device)
    parameters = list(model.parameters())
    state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=job.device.type == "cuda")
    for step, (tokens, targets) in enumerate(loader, 1):
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        loss = cross_entropy(forward(model, tokens), targets)
        loss.backward()
        adamw(parameters, state, job.lr, step)
        for parameter in parameters:
            parameter.grad.zero_()
        yield loss.detach()
