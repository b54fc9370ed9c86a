import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

CAP = 4.0  # of the logits, in multiples of their root mean square


def normalise(x, norm):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def attend(block, x):
    batch, length, width = x.shape
    q, k, v = block.qkv(x).view(batch, length, 3, block.heads, width // block.heads).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return block.out(attended.transpose(1, 2).reshape(batch, length, width))


def position_weights(length, device):
    """A token with little text before it counts less: from 0 to 1 over the first eighth of the window."""
    weights = (torch.arange(length, device=device) / (length / 8)).clamp(max=1.0)
    return weights / weights.mean()


def loss_of(model, tokens, targets):
    """The loss, and the largest activation behind a block: both stay tensors on the device."""
    length = tokens.shape[1]
    x = model.embedding(tokens) + model.positions[:length]
    largest = []
    for block in model.blocks:
        x = x + attend(block, normalise(x, block.norm1))
        x = x + block.down(gelu(block.up(normalise(x, block.norm2))))
        largest.append(x.detach().abs().amax())
    logits = F.linear(normalise(x, model.norm), model.embedding.weight)
    fixed = logits.detach()
    usual, top = fixed.pow(2).mean().sqrt(), fixed.abs().amax()
    logits = logits * (CAP * usual / top).clamp(max=1.0)  # 1 where no logit is too large
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    loss = (losses * position_weights(length, tokens.device)).mean()
    return loss, torch.stack(largest).amax()


def train(job):
    torch.set_float32_matmul_precision("high")
    cuda = job.device.type == "cuda"
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=cuda)
    # four lengths, each seen in the first steps: a graph for each is worth its compiling, and its kernels know their sizes
    compute = torch.compile(loss_of, fullgraph=True, dynamic=False) if cuda else loss_of
    for step, (tokens, targets) in enumerate(loader):
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        loss, largest = compute(model, tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        job.log(step, loss=loss.detach(), largest=largest)
        yield loss.detach()
