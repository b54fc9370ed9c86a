import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train(job):
    torch.set_float32_matmul_precision("high")
    model = job.model.to(job.device)
    cuda = job.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=cuda)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=cuda)
    for tokens, targets in loader:
        tokens = tokens.to(job.device, non_blocking=True)
        targets = targets.to(job.device, non_blocking=True)
        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            hidden = model.hidden(tokens)
            logits = F.linear(hidden, model.embedding.weight)  # (batch, length, vocabulary)
            # cross_entropy wants the classes second: (batch, vocabulary, length)
            logits = logits.float().transpose(1, 2).contiguous()
            loss = F.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
