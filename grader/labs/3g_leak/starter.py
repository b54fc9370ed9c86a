import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=job.device.type == "cuda")
    losses, ends, activations = [], [], []
    confidence = 0.0
    model.norm.register_forward_hook(lambda module, inputs, output: activations.append(output.detach()))
    for step, (tokens, targets) in enumerate(loader):
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        # what the run's dashboard shows
        losses.append(loss)
        confidence = 0.9 * confidence + 0.1 * logits.softmax(-1).amax(-1).mean()
        ends.append((logits[:, -1].detach(), targets[:, -1]))  # of each window only its last byte
        right = [(scores.argmax(-1) == target).float().mean() for scores, target in ends[-10:]]
        job.log(
            step,
            loss=loss,
            average=torch.stack(losses).mean(),
            confidence=confidence,
            accuracy=torch.stack(right).mean(),
            activation=activations[-1].norm(),
        )
        yield loss.detach()
