import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def state_of(model, optimizer):
    """All that a run needs to go on, by name. These are the tensors themselves, no copies."""
    state = {}
    for name, weight in model.named_parameters():
        state[name] = weight
        state[f"exp_avg.{name}"] = optimizer.state[weight]["exp_avg"]
        state[f"exp_avg_sq.{name}"] = optimizer.state[weight]["exp_avg_sq"]
    return state


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=job.device.type == "cuda")
    for step, (tokens, targets) in enumerate(loader, start=1):
        tokens, targets = (part.to(job.device, non_blocking=True) for part in (tokens, targets))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % job.every == 0:
            job.drive.save(f"partial-{step}", state_of(model, optimizer))
            job.drive.rename(f"partial-{step}", f"step-{step}")
        yield loss.detach()
