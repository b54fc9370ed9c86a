"""The course's GPT in Hugging Face's Trainer, which calls back, behind the generator contract. Needs the extra `trainer`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler

from grader.workloads.gpt import GPT, Attention
from grader.workloads.job import Batches, Job

try:
    import accelerate  # noqa: F401 (the Trainer asks for it, and only when it is made)
    from greenlet import greenlet
    from transformers import Trainer, TrainerCallback, TrainingArguments
except ImportError as missing:
    raise ImportError(
        f"this lab needs Hugging Face's Trainer, and `{missing.name}` is not installed here. Run `pip install transformers "
        "accelerate greenlet` where the course is installed, and check again.",
        name=missing.name,
    ) from None

__all__ = ["CausalLM", "JobTrainer", "TrainingArguments", "optimizer_steps"]


def eager_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention, written out."""
    length = q.shape[-2]
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1) @ v


ATTENTIONS: dict[str, Attention] = {
    "eager": eager_attention,
    "sdpa": partial(F.scaled_dot_product_attention, is_causal=True),
}


class CausalLM(nn.Module):
    """A GPT as the Trainer wants it: called with tokens and targets, both (batch, length) int64, it returns the mean loss.

    attn_implementation: "eager" or "sdpa", as an argument of `from_pretrained`. pad_to_multiple_of: rows that the head has at
    least, as an argument of `resize_token_embeddings`; the weight itself keeps its shape, and the added rows have no share in the
    softmax. Raises ValueError for another attention."""

    def __init__(self, gpt: GPT, attn_implementation: str = "eager", pad_to_multiple_of: int = 1):
        super().__init__()
        if attn_implementation not in ATTENTIONS:
            raise ValueError(f"attn_implementation is one of {', '.join(ATTENTIONS)}; it was {attn_implementation!r}")
        self.gpt, self.multiple = gpt, pad_to_multiple_of
        gpt.use(ATTENTIONS[attn_implementation])

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.gpt.embedding.weight
        words, more = len(weight), -len(weight) % self.multiple
        logits = F.linear(self.gpt.hidden(input_ids).flatten(0, 1), F.pad(weight, (0, 0, 0, more)) if more else weight)
        if more:
            logits = logits.masked_fill(torch.arange(words + more, device=logits.device) >= words, -torch.inf)
        return {"loss": F.cross_entropy(logits, labels.flatten())}


class Parts(Sampler[list[int]]):
    """The batches of a job in parts of `size`, one after the other, without an end."""

    def __init__(self, batches: Batches, size: int):
        self.batches, self.size = batches, size

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            for first in range(0, len(batch), self.size):
                yield batch[first : first + self.size]


def collate(windows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    tokens, targets = zip(*windows, strict=True)
    return {"input_ids": torch.stack(tokens), "labels": torch.stack(targets)}


class JobTrainer(Trainer):
    """A Trainer of a job's windows in the job's order. `per_device_train_batch_size` times `gradient_accumulation_steps` must be
    the job's batch; what the other arguments say about loading is done as the Trainer does it. Raises ValueError, too, for
    arguments that train something else, or that the job's GPT cannot follow."""

    def __init__(self, job: Job, model: CausalLM, args: TrainingArguments):
        must_stay = {
            "learning_rate": job.lr,
            "lr_scheduler_type": "constant",
            "weight_decay": 0.0,
            "max_grad_norm": 0.0,
            "label_smoothing_factor": 0.0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
        }
        for name, right in must_stay.items():
            if (found := getattr(args, name)) != right:
                raise ValueError(
                    f"{name} is {getattr(found, 'value', found)} and must be {right}: what is trained has to stay (the Trainer's defaults are "
                    "a schedule and a clipped norm)"
                )
        if args.gradient_checkpointing:
            raise ValueError(
                "the job's GPT has no gradient_checkpointing: its activations fit, and computing them twice takes time"
            )
        size, parts = args.per_device_train_batch_size, args.gradient_accumulation_steps
        if size * parts != job.batches.batch_size:
            raise ValueError(
                f"an optimizer step must train on the job's batch of {job.batches.batch_size} windows: "
                f"per_device_train_batch_size={size} times gradient_accumulation_steps={parts} is {size * parts}"
            )
        self.job = job
        self.step_loss: torch.Tensor | None = None  # of the optimizer step that is being made
        super().__init__(model=model, args=args, train_dataset=job.dataset)

    def get_train_dataloader(self) -> DataLoader:
        args = self.args
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=Parts(self.job.batches, args.per_device_train_batch_size),
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        return self.accelerator.prepare(loader)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)  # of one part, divided by their number
        self.step_loss = loss if self.step_loss is None else self.step_loss + loss
        return loss


class HandOver(TrainerCallback):
    """Gives the loss of each optimizer step to whoever asked for the step, and waits there until the next is asked for."""

    def __init__(self, trainer: JobTrainer):
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss, self.trainer.step_loss = self.trainer.step_loss, None
        greenlet.getcurrent().parent.switch(loss)


def optimizer_steps(trainer: JobTrainer) -> Iterator[torch.Tensor]:
    """Train, an optimizer step when it is asked for. Yields losses, 0-d, on the device. A greenlet, not a thread: autocast, grad mode
    and the profiler belong to a thread, and are the same here on both sides."""
    trainer.add_callback(HandOver(trainer))
    training = greenlet(trainer.train)
    while True:
        training.parent = greenlet.getcurrent()  # whoever asks now
        loss = training.switch()
        if training.dead:
            return
        yield loss
