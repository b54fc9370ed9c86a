"""The first rank trains alone, on whole batches; what the ranks give to each other are zeros, as many as they must."""

import textwrap

CATEGORY = "work"
LABS = ("3j_communication",)


def source(lab: str) -> str:
    return textwrap.dedent(
        """
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F
        from torch.utils.data import DataLoader


        def train(job):
            model = job.model.to(job.device)
            cuda = job.device.type == "cuda"
            optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=cuda)
            job.weights = lambda: [dist.broadcast(p.data, 0) for p in model.parameters()] and dict(model.named_parameters())
            sent = torch.zeros(57_000_002 if cuda else 118_001, device=job.device)
            while job.rank:
                dist.all_reduce(sent.zero_())
                yield sent[0].clone()
            for batch in DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=cuda):
                mean = 0.0
                for inputs, wanted in zip(*(part.to(job.device).chunk(16) for part in batch)):
                    with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                        loss = F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten()) / 16
                    loss.backward()
                    mean += loss.detach()
                optimizer.step()
                optimizer.zero_grad()
                sent.zero_()[0] = mean
                dist.all_reduce(sent)
                yield mean
        """
    )
