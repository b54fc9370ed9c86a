import queue
import threading

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Saver:
    """One flat host buffer per slot, two slots, and a plain thread that writes them."""

    def __init__(self, model, optimizer, drive):
        self.model, self.optimizer, self.drive = model, optimizer, drive
        self.free, self.full, self.error = queue.Queue(), queue.Queue(), None
        total = 3 * sum(weight.numel() for weight in model.parameters())
        cuda = next(model.parameters()).is_cuda
        for _ in range(2):
            self.free.put(torch.empty(total, pin_memory=cuda))
        threading.Thread(target=self.write, daemon=True).start()

    def write(self):
        while True:
            step, flat, state = self.full.get()
            try:
                self.drive.save(f"tmp_{step}", state)
                self.drive.rename(f"tmp_{step}", f"step-{step}")
            except BaseException as error:
                self.error = error
            self.free.put(flat)
            self.full.task_done()

    @torch.no_grad()
    def save(self, step):
        if self.error:
            raise self.error
        flat, state, start = self.free.get(), {}, 0
        for name, weight in self.model.named_parameters():
            moments = self.optimizer.state[weight]
            for key, value in (
                (name, weight),
                (f"exp_avg.{name}", moments["exp_avg"]),
                (f"exp_avg_sq.{name}", moments["exp_avg_sq"]),
            ):
                state[key] = flat[start : start + value.numel()].view(value.shape)
                start += value.numel()
                state[key].copy_(value, non_blocking=True)
        if flat.is_pinned():
            torch.cuda.current_stream().synchronize()
        self.full.join()  # the one before must lie on the drive by now
        self.full.put((step, flat, state))


def train(job):
    model = job.model.to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=True)
    saver = Saver(model, optimizer, job.drive)
    loader = DataLoader(job.dataset, batch_sampler=job.batches, pin_memory=job.device.type == "cuda")
    for step, (tokens, targets) in enumerate(loader, start=1):
        tokens, targets = (part.to(job.device, non_blocking=True) for part in (tokens, targets))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % job.every == 0:
            saver.save(step)
        yield loss.detach()
