import torch
import torch.nn.functional as F


def train(job):
    """The whole data set becomes two tensors before the first step. A batch is then two look-ups."""
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    data, count, chunk = job.dataset, len(job.dataset), 1000
    parts = [data.collate([data[i] for i in range(n, min(n + chunk, count))]) for n in range(0, count, chunk)]
    all_events = torch.cat([events for events, _ in parts]).to(job.device)
    all_labels = torch.cat([labels for _, labels in parts]).to(job.device)
    del parts
    for indices in job.batches:
        indices = torch.as_tensor(indices, device=job.device)
        loss = F.cross_entropy(model(all_events[indices]), all_labels[indices])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.detach()
