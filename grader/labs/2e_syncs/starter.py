import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

MAX_NORM = 0.5
LETTERS = [chr(code).isascii() and chr(code).isalpha() for code in range(256)]


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=job.device.type == "cuda")
    for step, (tokens, targets) in enumerate(loader):
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True).flatten()
        logits = model(tokens).flatten(0, 1)
        losses = F.cross_entropy(logits, targets, reduction="none")
        loss = losses.mean()
        print(f"step {step}: loss {loss:.4f}")
        loss.backward()

        # clip the gradient
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm()
        if norm > MAX_NORM:
            for parameter in model.parameters():
                parameter.grad *= MAX_NORM / norm

        # have the backward pass done, so that its time is not taken for the optimizer's
        if job.device.type == "cuda":
            torch.cuda.synchronize()
        optimizer.step()
        optimizer.zero_grad()

        # what the run's dashboard shows
        is_letter = torch.tensor(LETTERS, device=job.device)[targets]
        on_letters = losses[is_letter].mean()
        right = logits.detach().cpu().argmax(-1) == targets.cpu()
        job.log(step, loss=loss.item(), on_letters=on_letters, accuracy=right.float().mean(), norm=norm)
        yield loss.detach()
