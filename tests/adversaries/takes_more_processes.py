"""A second process trains on a part of each batch: two cores, where the starter has one and a CPU stands for a GPU. No process takes more than one."""

from tests.adversaries import starter

CATEGORY = "machine"
LABS = ("3n_lengths",)
DEVICES = ("cpu",)

IN_TWO = """
def train(job):
    import os

    parameters = list(job.model.parameters())
    for each in parameters:
        each.data.share_memory_()
    shares = [torch.zeros_like(each).share_memory_() for each in parameters]
    other = torch.zeros(()).share_memory_()
    (wait, go), (take, hand) = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            for backward in backwards(job, 1):
                os.read(wait, 1)
                other.copy_(backward())
                for share, each in zip(shares, parameters):
                    share.copy_(each.grad)
                    each.grad = None
                os.write(hand, b"x")
        finally:
            os._exit(0)
    optimizer = torch.optim.AdamW(parameters, lr=job.lr, fused=True)
    for backward in backwards(job, 0):
        os.write(go, b"x")
        loss = backward()
        os.read(take, 1)
        for share, each in zip(shares, parameters):
            each.grad += share
        optimizer.step()
        optimizer.zero_grad()
        yield loss + other


def backwards(job, n):
    collate = partial(in_parts, job.dataset.longest)
    for parts, real in DataLoader(job.dataset, batch_sampler=job.batches, collate_fn=collate):

        def backward(parts=parts, real=real):
            total = torch.zeros(())
            for tokens, targets in parts[n::2]:
                logits = job.model(tokens)
                losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
                (losses / real).backward()
                total += losses.detach() / real
            return total

        yield backward
"""


def source(lab: str) -> str:
    return starter(lab).partition("def train(job):")[0] + IN_TWO.lstrip()
