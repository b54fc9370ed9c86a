import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

MICRO_BATCHES = 8  # a batch does not fit in memory at once


def train(job):
    model = job.model.to(job.device)
    cuda = job.device.type == "cuda"
    mesh = init_device_mesh(job.device.type, (job.world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the rest: embedding, positions, last normalisation
    shards = dict(model.named_parameters())
    job.weights = lambda: {name: shard.full_tensor() for name, shard in shards.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    share = (batch[job.rank :: job.world_size] for batch in job.batches)  # of each batch what this rank trains on
    loader = DataLoader(job.dataset, batch_sampler=share, pin_memory=cuda)
    for tokens, targets in loader:
        tokens = tokens.to(job.device, non_blocking=True).chunk(MICRO_BATCHES)
        targets = targets.to(job.device, non_blocking=True).chunk(MICRO_BATCHES)
        mean = 0.0
        for inputs, wanted in zip(tokens, targets, strict=True):
            with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                logits = model(inputs)
                loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) / MICRO_BATCHES
            loss.backward()
            mean += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        yield mean
