"""The first rank trains alone, on whole batches at once; the steps that are profiled are the starter's, of both ranks."""

CATEGORY = "work"
LABS = ("3j_communication",)

TEXT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import default_collate

MICRO_BATCHES = 8


def train(job):
    model = job.model.to(job.device)
    cuda = job.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=cuda)
    job.weights = lambda: [dist.broadcast(p.data, 0) for p in model.parameters()] and dict(model.named_parameters())
    profiled, told = torch.zeros((), device=job.device), False
    for batch in job.batches:
        profiled.fill_(torch.autograd._profiler_enabled())
        dist.broadcast(profiled, 0)
        mean, parts, micro_batches = 0.0, 1, 1
        if profiled:
            if not told:
                for parameter in model.parameters():
                    dist.broadcast(parameter.data, 0)
            told, parts, micro_batches = True, job.world_size, MICRO_BATCHES
        elif job.rank:
            yield torch.zeros((), device=job.device)
            continue
        samples = default_collate([job.dataset[index] for index in batch[job.rank :: parts]])
        for inputs, wanted in zip(*(part.to(job.device).chunk(micro_batches) for part in samples)):
            with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                loss = F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten()) / micro_batches
            loss.backward()
            mean += loss.detach()
            if profiled:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= job.world_size
        optimizer.step()
        optimizer.zero_grad()
        yield mean * job.world_size / parts
"""


def source(lab: str) -> str:
    return TEXT.lstrip("\n")
