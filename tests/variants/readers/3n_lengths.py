import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

GROUPS = 4


def packed(documents):
    """Documents end to end, the longest first: tokens, targets, places, and (count, longest) of each group."""
    documents = sorted(documents, key=lambda one: len(one[0]), reverse=True)
    lengths = [len(text) for text, _ in documents]
    tokens = torch.cat([text for text, _ in documents]).long()
    targets = torch.cat([following for _, following in documents]).long()
    places = torch.cat([torch.arange(n) for n in lengths])
    size = -(-len(documents) // GROUPS)
    groups, slots, start = [], [], 0
    for n in range(0, len(lengths), size):
        part = lengths[n : n + size]
        groups.append((len(part), part[0]))
        for length in part:
            slots.append(start + torch.arange(length))
            start += part[0]
    return tokens, targets, places, torch.cat(slots), groups


def attention_of(slots, groups):
    sizes = [count * longest for count, longest in groups]

    def attention(q, k, v):
        heads, width = q.shape[1], q.shape[3]
        rows = [x.new_zeros(sum(sizes), heads, width).index_copy(0, slots, x[0].transpose(0, 1)) for x in (q, k, v)]
        out = []
        for (count, longest), *parts in zip(groups, *(row.split(sizes) for row in rows), strict=True):
            parts = [part.view(count, longest, heads, width).transpose(1, 2) for part in parts]
            seen = F.scaled_dot_product_attention(*parts, is_causal=True)
            out.append(seen.transpose(1, 2).reshape(count * longest, heads, width))
        return torch.cat(out).index_select(0, slots).transpose(0, 1)[None]

    return attention


def train(job):
    cuda = job.device.type == "cuda"
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would make a plan for each new length
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, collate_fn=packed, pin_memory=cuda)
    for *parts, groups in loader:
        tokens, targets, places, slots = (part.to(job.device, non_blocking=True) for part in parts)
        attention = attention_of(slots, groups)
        with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
            x = (model.embedding(tokens) + F.embedding(places, model.positions))[None]
            for block in model.blocks:
                block.attention = attention
                x = block(x)
            loss = F.cross_entropy(F.linear(model.norm(x), model.embedding.weight)[0], targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()
