import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

CAP = 4.0  # of the logits, in multiples of their root mean square
tables = {}  # length: the weight of each position


class Watch:
    """The largest activation of a step."""

    def __init__(self):
        self.largest = 0.0

    def see(self, x):
        if torch.isnan(x).any():
            raise FloatingPointError("an activation is not a number")
        self.largest = max(self.largest, x.detach().abs().max().item())


def normalise(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(block, x):
    batch, length, width = x.shape
    q, k, v = block.qkv(x).view(batch, length, 3, block.heads, width // block.heads).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return block.out(attended.transpose(1, 2).reshape(batch, length, width))


def position_weights(length, device):
    """A token with little text before it counts less: from 0 to 1 over the first eighth of the window."""
    if length not in tables:
        weights = np.interp(np.arange(length), [0, length / 8], [0, 1]).astype(np.float32)
        tables[length] = torch.from_numpy(weights / weights.mean()).to(device)
    return tables[length]


def loss_of(model, tokens, targets, watch):
    length = tokens.shape[1]
    x = model.embedding(tokens) + model.positions[:length]
    for block in model.blocks:
        x = x + attend(block, normalise(x, block.norm1))
        x = x + block.down(gelu(block.up(normalise(x, block.norm2))))
        watch.see(x)
    logits = F.linear(normalise(x, model.norm), model.embedding.weight)
    usual, largest = logits.detach().pow(2).mean().sqrt(), logits.detach().abs().max()
    if largest > CAP * usual:
        logits = logits * (CAP * usual / largest)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    loss = (losses * position_weights(length, tokens.device)).mean()
    print(f"{length} tokens, loss {loss.item():.4f}")
    return loss


def train(job):
    torch.set_float32_matmul_precision("high")
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=job.device.type == "cuda")
    for step, (tokens, targets) in enumerate(loader):
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        watch = Watch()
        loss = loss_of(model, tokens, targets, watch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.log(step, loss=loss.detach(), largest=watch.largest)
        yield loss.detach()
