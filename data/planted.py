"""Training loops with one planted cause of slowness each, beside the same loop without it: what `grader.data.record`
measures and records.

A loop is a generator that yields once a step. Two loops of a case differ in the planted cause only: the same model,
the same batches, the same kernels wherever the cause allows it. Their parts are marked as phases "data_wait", "h2d",
"fwd", "bwd" and "opt"."""

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.profiler import record_function as phase
from torch.utils.data import DataLoader, Dataset

from grader.data.images import generated
from grader.data.text import corpus
from grader.workloads import top_ops
from grader.workloads.gpt import GPT, Block
from grader.workloads.job import Batches
from grader.workloads.resnet import JpegFiles

WORKERS = 14  # loader processes; the machine has 16 cores
IMAGES = 1000  # JPEG files to read, again and again
RING = 3  # host batches of a loop whose data are ready; a prefetcher reads one while the next is being queued
EXCHANGE_SHARE = 0.5  # time of the gradient exchange over that of the rest of the step, see `fitting_batch`


@dataclass
class Setup:
    """Where a loop runs, and its sizes: `setup.at.batch`, and what else its case names."""

    device: torch.device
    at: SimpleNamespace
    rank: int = 0
    world_size: int = 1

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def bf16(self, on: bool = True) -> AbstractContextManager:
        """Autocast to 16 bits: fp16 before Ampere, where bf16 is emulated. Nobody asks how well these loops learn."""
        old = self.cuda and torch.version.hip is None and torch.cuda.get_device_capability() < (8, 0)
        return torch.autocast(self.device.type, torch.float16 if old else torch.bfloat16) if on else nullcontext()

    def synchronise(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


Loop = Callable[[Setup], Iterator[Any]]
Batch = tuple[torch.Tensor, ...]


def tensor_cores(on: bool) -> None:
    """Whether fp32 matrix products and convolutions may use TF32."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


# --- models, data, one step --------------------------------------------------------------------------------------


def resnet(s: Setup, channels_last: bool = False, **options: Any) -> nn.Module:
    model = getattr(torchvision.models, s.at.net)(num_classes=1000, **options).to(s.device)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def gpt(s: Setup) -> GPT:
    a = s.at
    model = GPT(a.layers, a.width, a.heads, a.length)
    model.embedding = nn.Embedding(a.vocabulary, a.width)
    nn.init.normal_(model.embedding.weight, std=0.02)
    return model.to(s.device)


def image_batches(s: Setup, device: torch.device | str, channels_last: bool = False) -> Iterator[Batch]:
    """The same few batches of (images, labels) for ever, float32, made once on `device`."""
    shape = (s.at.batch, 3, s.at.size, s.at.size)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return cycle(
        [
            (
                torch.randn(shape, device=device).contiguous(memory_format=layout),
                torch.randint(1000, (s.at.batch,), device=device),
            )
            for _ in range(RING)
        ]
    )


def token_batches(s: Setup, device: torch.device | str) -> Iterator[Batch]:
    """The same few batches of (tokens, targets) for ever, made once on `device`."""
    shape = (s.at.batch, s.at.length + 1)
    windows = [torch.randint(s.at.vocabulary, shape, device=device) for _ in range(RING)]
    return cycle([(w[:, :-1].contiguous(), w[:, 1:].contiguous()) for w in windows])


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of images, logits (batch, classes), and of tokens, logits (batch, length, vocabulary)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def update(
    s: Setup,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    bf16: bool,
) -> torch.Tensor:
    """One step of training. Returns the loss, on the device."""
    with phase("fwd"), s.bf16(bf16):
        loss = cross_entropy(model(inputs), targets)
    with phase("bwd"):
        loss.backward()
    with phase("opt"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def train(s: Setup, model: nn.Module, batches: Iterable[Batch], bf16: bool) -> Iterator[torch.Tensor]:
    """The plain loop: batches that are on the device, one update after another."""
    optimizer = fused_adamw(model)
    for inputs, targets in batches:
        yield update(s, model, optimizer, inputs, targets, bf16)


def pinned(s: Setup, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches from pinned memory."""
    ring = [next(batches) for _ in range(RING)]
    return cycle([tuple(t.pin_memory() for t in batch) for batch in ring] if s.cuda else ring)


def prefetched(s: Setup, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches on the device. Each is copied on a stream of its own while the step before it computes."""
    stream = torch.cuda.Stream() if s.cuda else None

    def copy() -> Batch:
        with phase("h2d"), torch.cuda.stream(stream):  # a stream of None: no change
            return tuple(tensor.to(s.device, non_blocking=True) for tensor in next(batches))

    ready = copy()
    while True:
        if stream:
            torch.cuda.current_stream().wait_stream(stream)
            for tensor in ready:  # its memory may be used again when this stream, too, is done with it
                tensor.record_stream(torch.cuda.current_stream())
        batch, ready = ready, copy()
        yield batch


# --- input: the GPU waits for data ---------------------------------------------------------------------------------


class Flipped(Dataset):
    """Decoded JPEG files, every second one mirrored at random."""

    def __init__(self, files: Dataset):
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels, label = self.files[index]
        return (pixels.flip(-1) if torch.rand(()) < 0.5 else pixels), label


class Tokenised(Dataset):
    """Windows of the text corpus, cut into the fewest pieces that are in the vocabulary, in Python. An item is (tokens,
    targets), two int64 tensors of shape (length,)."""

    LONGEST = 8  # characters of a piece
    CHARACTERS = 3  # of text for a token; what is missing in the end is padded

    def __init__(self, length: int, vocabulary: int):
        self.text, self.length = corpus().tobytes().decode("latin-1"), length
        words = Counter(word[: self.LONGEST] for word in re.findall(r"\w+|\s+", self.text[:1_000_000]))
        pieces = [chr(i) for i in range(256)] + [word for word, _ in words.most_common(vocabulary) if len(word) > 1]
        self.number = {piece: i for i, piece in enumerate(pieces[:vocabulary])}

    def __len__(self) -> int:
        return len(self.text) // (self.length * self.CHARACTERS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with phase("load_sample"):
            characters = self.length * self.CHARACTERS
            tokens = self.tokenise(self.text[index * characters : (index + 1) * characters])
            window = torch.zeros(self.length + 1, dtype=torch.int64)
            window[: len(tokens)] = torch.tensor(tokens[: self.length + 1])
            return window[:-1], window[1:]

    def tokenise(self, text: str) -> list[int]:
        """The numbers of the fewest pieces that `text` is made of."""
        best = [(0, 0)]  # for each end: how many pieces, and how long the last one is
        for end in range(1, len(text) + 1):
            sizes = range(1, min(self.LONGEST, end) + 1)
            best.append(min((best[end - n][0] + 1, n) for n in sizes if text[end - n : end] in self.number))
        pieces, end = [], len(text)
        while end:
            size = best[end][1]
            pieces.append(self.number[text[end - size : end]])
            end -= size
        return pieces[::-1]


def loaded(s: Setup, dataset: Dataset, workers: int) -> Iterator[Batch]:
    """Batches on the device, from a DataLoader with so many workers."""
    sampler = Batches(len(dataset), s.at.batch, seed=0)
    more = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    batches = iter(DataLoader(dataset, batch_sampler=sampler, num_workers=workers, pin_memory=s.cuda, **more))
    while True:
        with phase("data_wait"):
            batch = next(batches)
        with phase("h2d"):
            batch = tuple(tensor.to(s.device, non_blocking=True) for tensor in batch)
        yield batch


def resnet_input(s: Setup, workers: int) -> Iterator[torch.Tensor]:
    files = generated(count=s.at.images, progress=False).train
    dataset = Flipped(JpegFiles(files.files, files.labels, s.at.size))
    yield from train(s, resnet(s), loaded(s, dataset, min(workers, s.at.workers)), bf16=False)


def gpt_input(s: Setup, workers: int) -> Iterator[torch.Tensor]:
    dataset = Tokenised(s.at.length, s.at.vocabulary)
    yield from train(s, gpt(s), loaded(s, dataset, min(workers, s.at.workers)), bf16=True)


# --- transfer: the GPU waits for copies ----------------------------------------------------------------------------


def copied(s: Setup, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches on the device, each copied from pageable memory when it is needed."""
    for batch in batches:
        with phase("h2d"):
            batch = tuple(tensor.to(s.device) for tensor in batch)
        yield batch


def moved(s: Setup, batches: Iterator[Batch], overlapped: bool) -> Iterator[Batch]:
    return prefetched(s, pinned(s, batches)) if overlapped else copied(s, batches)


def resnet_transfer(s: Setup, overlapped: bool) -> Iterator[torch.Tensor]:
    """Whole float32 frames go to the GPU, which crops them at random."""
    model = resnet(s, channels_last=True)
    whole = Setup(s.device, SimpleNamespace(batch=s.at.batch, size=s.at.frame))
    room = s.at.frame - s.at.size

    def crops() -> Iterator[Batch]:
        for frames, labels in moved(s, image_batches(whole, "cpu"), overlapped):
            top, left = torch.randint(room + 1, (2,)).tolist()  # on the host
            crop = frames[:, :, top : top + s.at.size, left : left + s.at.size]
            yield crop.contiguous(memory_format=torch.channels_last), labels

    yield from train(s, model, crops(), bf16=True)


def gpt_transfer(s: Setup, overlapped: bool) -> Iterator[torch.Tensor]:
    """Distillation: the teacher's logits were computed once and lie in host memory."""
    model = gpt(s)
    optimizer = fused_adamw(model)
    one = torch.randn(1, s.at.length, s.at.vocabulary)
    ring = [
        (tokens, one.repeat(s.at.batch, 1, 1)) for tokens, _ in (next(token_batches(s, "cpu")) for _ in range(RING))
    ]
    for tokens, teacher in moved(s, cycle(ring), overlapped):
        with phase("fwd"), s.bf16():
            student = F.log_softmax(model(tokens), -1)
            loss = -(teacher.softmax(-1) * student).sum(-1).mean()
        with phase("bwd"):
            loss.backward()
        with phase("opt"):
            optimizer.step()
            optimizer.zero_grad()
        yield loss.detach()


# --- sync: the host waits for the GPU, which so runs dry -----------------------------------------------------------

Read = Callable[[torch.Tensor], Any]  # torch.Tensor.item makes the host wait; torch.Tensor.detach leaves it on the GPU


def watch(modules: Iterable[tuple[str, nn.Module]], log: dict[str, Any], read: Read) -> None:
    """Log the norm of what each of these modules returns."""
    for name, module in modules:
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: log.update(
                {name: read(torch.linalg.vector_norm(output.detach()))}
            )
        )


def resnet_sync(s: Setup, read: Read) -> Iterator[torch.Tensor]:
    """Logs activations, gradients, loss and accuracy of every step."""
    model, log = resnet(s), {}
    optimizer = fused_adamw(model)
    watch([(n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)], log, read)
    for images, labels in image_batches(s, s.device):
        with phase("fwd"):
            logits = model(images)
            loss = cross_entropy(logits, labels)
        with phase("bwd"):
            loss.backward()
        with phase("opt"):
            for name, parameter in model.named_parameters():
                log[f"{name} is not a number"] = read(torch.isnan(parameter.grad).any())
                log[f"{name} gradient"] = read(parameter.grad.norm())
            optimizer.step()
            optimizer.zero_grad()
        log["loss"] = read(loss)
        log["accuracy"] = read((logits.argmax(-1) == labels).float().mean())
        yield loss.detach()


def clip_by_hand(parameters: list[nn.Parameter], most: float = 1.0) -> None:
    """`clip_grad_norm_` with the norm of each gradient brought to the host."""
    total = math.sqrt(sum(parameter.grad.norm().item() ** 2 for parameter in parameters))
    for parameter in parameters:
        parameter.grad.mul_(min(1.0, most / (total + 1e-6)))


def gpt_sync(s: Setup, read: Read, clip: Callable[..., Any]) -> Iterator[torch.Tensor]:
    """Logs activations and gradients of every step, and clips the gradients."""
    model, log = gpt(s), {}
    optimizer = fused_adamw(model)
    parameters = list(model.parameters())
    watch([(n, m) for n, m in model.named_modules() if n.endswith(("out", "up", "down"))], log, read)
    for tokens, targets in token_batches(s, s.device):
        with phase("fwd"), s.bf16():
            loss = cross_entropy(model(tokens), targets)
        with phase("bwd"):
            loss.backward()
        with phase("opt"):
            for name, parameter in model.named_parameters():
                log[f"{name} gradient"] = read(parameter.grad.norm())
            clip(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        log["loss"] = read(loss)
        yield loss.detach()


# --- launch: the kernels are too small for the host's pace ---------------------------------------------------------


def replayed(s: Setup, step: Callable[[], torch.Tensor], graph: bool) -> Callable[[], torch.Tensor]:
    """`step`, or a CUDA graph of it: a function that does the same work on the same memory, launched by one call."""
    if not (graph and s.cuda):
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # what happens in a first step only - allocations, choices of algorithms - is not captured
            step()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()

    def replay() -> torch.Tensor:
        with phase("graph"):
            captured.replay()
        return loss

    return replay


def train_in_place(
    s: Setup, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Batch], graph: bool
) -> Iterator[torch.Tensor]:
    """Small batches from pinned memory are copied to one place on the GPU, from where each step reads its input."""
    batches = pinned(s, batches)
    inputs, targets = (tensor.to(s.device) for tensor in next(batches))
    run = replayed(s, lambda: update(s, model, optimizer, inputs, targets, bf16=False), graph)
    for batch in batches:
        with phase("h2d"):
            inputs.copy_(batch[0], non_blocking=True)
            targets.copy_(batch[1], non_blocking=True)
        yield run()


def resnet_launch(s: Setup, graph: bool) -> Iterator[torch.Tensor]:
    model = resnet(s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, foreach=False)
    yield from train_in_place(s, model, optimizer, image_batches(s, "cpu"), graph)


def gpt_launch(s: Setup, graph: bool) -> Iterator[torch.Tensor]:
    model = gpt(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True, capturable=s.cuda)
    yield from train_in_place(s, model, optimizer, token_batches(s, "cpu"), graph)


# --- communication: the GPUs wait for one another's gradients ------------------------------------------------------

Exchange = Callable[[list[nn.Parameter]], None]


def one_by_one(parameters: list[nn.Parameter]) -> None:
    """Average each gradient over the ranks, one after another."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def all_at_once(parameters: list[nn.Parameter]) -> None:
    """Average the gradients over the ranks as one flat tensor, when all of them are there."""
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter.grad))


def no_exchange(parameters: list[nn.Parameter]) -> None:
    """Each rank goes its own way: no training, but the time that a perfectly hidden exchange would leave."""


def data_parallel(
    s: Setup, make: Callable, batches: Callable, bf16: bool, exchange: Exchange
) -> Iterator[torch.Tensor]:
    model = make(s)
    optimizer = fused_adamw(model)
    parameters = list(model.parameters())
    for inputs, targets in batches(s, s.device):
        with phase("fwd"), s.bf16(bf16):
            loss = cross_entropy(model(inputs), targets)
        with phase("bwd"):
            loss.backward()
        with phase("comm"):
            exchange(parameters)
        with phase("opt"):
            optimizer.step()
            optimizer.zero_grad()
        yield loss.detach()


def overlapped_by_ddp(s: Setup, make: Callable, batches: Callable, bf16: bool) -> Iterator[torch.Tensor]:
    model = nn.parallel.DistributedDataParallel(
        make(s),
        device_ids=[s.device.index] if s.cuda else None,
        broadcast_buffers=False,  # no communication but that of gradients, as in the loop by hand
        gradient_as_bucket_view=True,
    )
    yield from train(s, model, batches(s, s.device), bf16)


def fitting_batch(s: Setup, make: Callable, exchange: Exchange, loop: Loop) -> int:
    """The batch size with which the exchange of the gradients takes `EXCHANGE_SHARE` of the time of the rest.

    How fast GPUs exchange differs between machines by more than ten. With this batch an exchange after the backward
    pass shows clearly, and one beside it can be hidden. loop: the loop without an exchange, at the case's own batch."""
    parameters = list(make(s).parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    steps = loop(s)
    rest, alone = (seconds(s, work) for work in (lambda: next(steps), lambda: exchange(parameters)))
    times = torch.tensor([rest, alone], device=s.device)
    dist.all_reduce(times)  # every rank must come to the same answer
    rest, alone = times.tolist()
    wanted = s.at.batch * alone / EXCHANGE_SHARE / rest
    return max(s.at.batch // 4, min(8 * s.at.batch, 4 * math.ceil(wanted / 4)), 1)


def seconds(s: Setup, work: Callable[[], Any], warm_up: int = 5, times: int = 10) -> float:
    for count in (warm_up, times):
        s.synchronise()
        start = time.perf_counter()
        for _ in range(count):
            work()
        s.synchronise()
    return (time.perf_counter() - start) / times


# --- memory: many kernels that each read and write everything ------------------------------------------------------


def layer_norm(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    x = x.float()
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def dropout(x: torch.Tensor, p: float = 0.1) -> torch.Tensor:
    return x * (torch.rand_like(x) > p) / (1 - p)


class BlockByHand(Block):
    """A block of the GPT whose normalisation, activation and dropout are written out, one operation after another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(layer_norm(x, self.norm1)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + dropout(self.out(attention.transpose(1, 2).reshape(batch, length, width)))
        return x + dropout(self.down(gelu(self.up(layer_norm(x, self.norm2)))))


class NormByHand(nn.BatchNorm2d):
    """Batch normalisation in training, written out in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        mean = wide.mean((0, 2, 3), keepdim=True)
        centred = wide - mean
        variance = centred.pow(2).mean((0, 2, 3), keepdim=True)
        with torch.no_grad():
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten(), self.momentum)
        shape = (1, -1, 1, 1)
        normal = centred / torch.sqrt(variance + self.eps)
        return (normal * self.weight.view(shape) + self.bias.view(shape)).to(x.dtype)


def gpt_memory(s: Setup, compiled: bool) -> Iterator[torch.Tensor]:
    model = gpt(s)
    model.blocks = nn.ModuleList(BlockByHand(s.at.width, s.at.heads) for _ in model.blocks).to(s.device)
    if compiled:
        model = torch.compile(model, backend="inductor" if s.cuda else "aot_eager")
    yield from train(s, model, token_batches(s, s.device), bf16=True)


def resnet_memory(s: Setup, norm: type[nn.Module]) -> Iterator[torch.Tensor]:
    model = resnet(s, channels_last=True, norm_layer=norm)
    yield from train(s, model, image_batches(s, s.device, channels_last=True), bf16=True)


def attention_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1).to(v.dtype) @ v


def gpt_attention(s: Setup, by_hand: bool) -> Iterator[torch.Tensor]:
    model = gpt(s)
    if by_hand:
        for block in model.blocks:
            block.attention = attention_by_hand
    yield from train(s, model, token_batches(s, s.device), bf16=True)


def listener(s: Setup) -> Iterator[torch.Tensor]:
    """Three costly operations, each bound by something else."""
    yield from top_ops.loop(s.device, s.at)


# --- compute: the CUDA cores do what tensor cores could ---------------------------------------------------------


def gpt_compute(s: Setup, tf32: bool, bf16: bool = False) -> Iterator[torch.Tensor]:
    tensor_cores(tf32)
    yield from train(s, gpt(s), token_batches(s, s.device), bf16)


def resnet_compute(s: Setup, tf32: bool, bf16: bool = False) -> Iterator[torch.Tensor]:
    tensor_cores(tf32)
    yield from train(s, resnet(s, channels_last=True), image_batches(s, s.device, channels_last=True), bf16)


# --- healthy -------------------------------------------------------------------------------------------------------


def resnet_healthy(s: Setup) -> Iterator[torch.Tensor]:
    model = resnet(s, channels_last=True)
    batches = prefetched(s, pinned(s, image_batches(s, "cpu", channels_last=True)))
    yield from train(s, model, batches, bf16=True)


def gpt_healthy(s: Setup) -> Iterator[torch.Tensor]:
    yield from train(s, gpt(s), prefetched(s, pinned(s, token_batches(s, "cpu"))), bf16=True)


# --- the cases -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What is recorded together. loops: by role, "planted" and "fixed", or "healthy"; any other is only measured."""

    name: str
    cause: str | None  # the planted one; None for a healthy loop
    model: str
    at: dict[str, Any]  # sizes: "batch", and what the loops read
    tiny: dict[str, Any]  # sizes to try the script out with
    loops: dict[str, Loop]
    planted_by: str = ""
    fixed_by: str = ""
    kept: tuple[str, ...] = ("planted",)  # roles whose trace is kept
    gpus: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    fit: Callable[[Setup], int] | None = None  # chooses the batch size on the machine
    steps: int = 4  # recorded; readers leave out the first, which can lose events
    options: dict[str, Any] = field(default_factory=dict)  # of the profiler; "arrows": keep those between events


def pair(planted: Loop, fixed: Loop, **more: Loop) -> dict[str, Loop]:
    return {"planted": planted, "fixed": fixed, **more}


TINY_NET = {"net": "resnet18", "batch": 2, "size": 32}
TINY_GPT = {"layers": 2, "width": 32, "heads": 2, "length": 32, "vocabulary": 512, "batch": 2}
# GPUs that exchange through host memory, as on a machine without NVLink. NVLS is NVLink's multicast.
NO_NVLINK = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
RESNET_DP = {"make": resnet, "batches": image_batches, "bf16": False}
GPT_DP = {"make": gpt, "batches": token_batches, "bf16": True}

CASES = (
    Case(
        "resnet_input",
        "input",
        "ResNet-50, 224x224, TF32",
        {"net": "resnet50", "batch": 64, "size": 224, "images": IMAGES, "workers": WORKERS},
        {**TINY_NET, "images": 40, "workers": 2},
        pair(partial(resnet_input, workers=0), partial(resnet_input, workers=WORKERS)),
        "JPEG files are decoded by the training process itself: a DataLoader with num_workers=0.",
        f"{WORKERS} persistent workers decode while the GPU computes.",
        kept=("planted", "fixed"),
        steps=3,
    ),
    Case(
        "gpt_input",
        "input",
        "GPT, 4 layers of width 1024, 1024 tokens, bf16 autocast",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 4096, "batch": 16, "workers": WORKERS},
        {**TINY_GPT, "workers": 2},
        pair(partial(gpt_input, workers=0), partial(gpt_input, workers=WORKERS)),
        "Text is tokenised, in Python, by the training process itself: a DataLoader with num_workers=0.",
        f"{WORKERS} persistent workers tokenise while the GPU computes.",
    ),
    Case(
        "resnet_transfer",
        "transfer",
        "ResNet-18, 224x224 crops of 320x320 frames, bf16 autocast, channels_last",
        {"net": "resnet18", "batch": 256, "size": 224, "frame": 320},
        {**TINY_NET, "frame": 40},
        pair(partial(resnet_transfer, overlapped=False), partial(resnet_transfer, overlapped=True)),
        "Whole float32 frames are copied from pageable memory by a blocking .to() before each step.",
        "Frames lie in pinned memory and are copied one step ahead on a stream of their own.",
    ),
    Case(
        "gpt_transfer",
        "transfer",
        "GPT, 4 layers of width 1024, 1024 tokens, distilled from stored logits, bf16 autocast",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 8192, "batch": 16},
        TINY_GPT,
        pair(partial(gpt_transfer, overlapped=False), partial(gpt_transfer, overlapped=True)),
        "The teacher's float32 logits are copied from pageable memory by a blocking .to() before each step.",
        "The logits lie in pinned memory and are copied one step ahead on a stream of their own.",
        kept=("planted", "fixed"),
    ),
    Case(
        "resnet_sync",
        "sync",
        "ResNet-18, 224x224, TF32",
        {"net": "resnet18", "batch": 64, "size": 224},
        TINY_NET,
        pair(partial(resnet_sync, read=torch.Tensor.item), partial(resnet_sync, read=torch.Tensor.detach)),
        "Norms of activations and gradients, checks for NaN, loss and accuracy are read by .item() in every step.",
        "The same numbers are computed and stay on the GPU.",
    ),
    Case(
        "gpt_sync",
        "sync",
        "GPT, 6 layers of width 768, 1024 tokens, bf16 autocast",
        {"layers": 6, "width": 768, "heads": 12, "length": 1024, "vocabulary": 4096, "batch": 10},
        TINY_GPT,
        pair(
            partial(gpt_sync, read=torch.Tensor.item, clip=clip_by_hand),
            partial(gpt_sync, read=torch.Tensor.detach, clip=nn.utils.clip_grad_norm_),
        ),
        "Norms of activations and gradients are logged by .item(), and clipping by hand calls .item() for each parameter.",
        "The norms stay on the GPU, and clip_grad_norm_ clips without waiting.",
    ),
    Case(
        "gpt_sync_stacks",
        "sync",
        "GPT, 2 layers of width 768, 1024 tokens, bf16 autocast",
        {"layers": 2, "width": 768, "heads": 12, "length": 1024, "vocabulary": 4096, "batch": 10},
        TINY_GPT,
        {"planted": partial(gpt_sync, read=torch.Tensor.item, clip=clip_by_hand)},
        "Norms of activations and gradients are logged by .item(), and clipping by hand calls .item() for each parameter.",
        steps=3,
        options={"with_stack": True},
    ),
    Case(
        "resnet_launch",
        "launch",
        "ResNet-18, 64x64, TF32",
        {"net": "resnet18", "batch": 64, "size": 64},
        TINY_NET,
        pair(partial(resnet_launch, graph=False), partial(resnet_launch, graph=True)),
        "Images and batch are small and the optimizer updates one parameter after another (foreach=False).",
        "The whole step is one CUDA graph: the same kernels, launched by one call.",
    ),
    Case(
        "gpt_launch",
        "launch",
        "GPT, 4 layers of width 256, 256 tokens, TF32",
        {"layers": 4, "width": 256, "heads": 4, "length": 256, "vocabulary": 1024, "batch": 12},
        TINY_GPT,
        pair(partial(gpt_launch, graph=False), partial(gpt_launch, graph=True)),
        "The model is so small that the GPU is done with a kernel before the host has launched the next.",
        "The whole step is one CUDA graph: the same kernels, launched by one call.",
        kept=("planted", "fixed"),
    ),
    Case(
        "gpt_memory",
        "memory",
        "GPT, 4 layers of width 1024, 1024 tokens, bf16 autocast",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 4096, "batch": 16},
        TINY_GPT,
        pair(partial(gpt_memory, compiled=False), partial(gpt_memory, compiled=True)),
        "Layer norm, GELU and dropout are written out: each of their operations is a kernel over the whole tensor.",
        "The same code in torch.compile, which fuses them.",
        kept=("planted", "fixed"),
    ),
    Case(
        "resnet_memory",
        "memory",
        "ResNet-18, 224x224, bf16 autocast, channels_last",
        {"net": "resnet18", "batch": 128, "size": 224},
        TINY_NET,
        pair(partial(resnet_memory, norm=NormByHand), partial(resnet_memory, norm=nn.BatchNorm2d)),
        "Batch norm is written out in float32: each of its operations, and a cast before and after, is a kernel.",
        "nn.BatchNorm2d, whose kernels do it in two passes.",
        steps=3,
    ),
    Case(
        "gpt_attention",
        "memory",
        "GPT, 4 layers of width 1024, 1024 tokens, bf16 autocast",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 4096, "batch": 16},
        TINY_GPT,
        pair(partial(gpt_attention, by_hand=True), partial(gpt_attention, by_hand=False)),
        "Attention is written out: its matrices of scores are written and read by one kernel after another.",
        "scaled_dot_product_attention, which keeps the scores on the chip.",
        steps=3,
        options={"with_stack": True},
    ),
    Case(
        "top_ops",
        "memory",
        "24 blocks of width 512 on spectra, bf16 autocast, spectra in fp32",
        {"batch": 64, "length": 192, "samples": 4096, "width": 512, "layers": 24},
        {"batch": 2, "length": 8, "samples": 64, "width": 32, "layers": 2},
        {"planted": listener},
        "A product in fp32, an activation that is written out, and an optimizer with some thousand tiny kernels.",
        steps=3,
        options={"with_stack": True},
    ),
    Case(
        "gpt_compute",
        "compute",
        "GPT, 4 layers of width 1024, 1024 tokens, fp32",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 4096, "batch": 8},
        TINY_GPT,
        pair(
            partial(gpt_compute, tf32=False),
            partial(gpt_compute, tf32=True),
            bf16=partial(gpt_compute, tf32=True, bf16=True),
        ),
        "Matrix products in full fp32: TF32 is switched off, so that tensor cores are not used.",
        "TF32 is switched on.",
    ),
    Case(
        "resnet_compute",
        "compute",
        "ResNet-34, 224x224, fp32, channels_last",
        {"net": "resnet34", "batch": 64, "size": 224},
        TINY_NET,
        pair(
            partial(resnet_compute, tf32=False),
            partial(resnet_compute, tf32=True),
            bf16=partial(resnet_compute, tf32=True, bf16=True),
        ),
        "Convolutions in full fp32: TF32 is switched off, so that tensor cores are not used.",
        "TF32 is switched on.",
        steps=3,
    ),
    Case(
        "resnet_healthy",
        None,
        "ResNet-50, 224x224, bf16 autocast, channels_last",
        {"net": "resnet50", "batch": 128, "size": 224},
        TINY_NET,
        {"healthy": resnet_healthy},
        kept=("healthy",),
        steps=3,
        options={"arrows": True},
    ),
    Case(
        "gpt_healthy",
        None,
        "GPT, 4 layers of width 1024, 1024 tokens, bf16 autocast",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 4096, "batch": 16},
        TINY_GPT,
        {"healthy": gpt_healthy},
        kept=("healthy",),
        options={"profile_memory": True},
    ),
    Case(
        "resnet_comm",
        "communication",
        "ResNet-34, 224x224, TF32, two GPUs without NVLink",
        {"net": "resnet34", "batch": 64, "size": 224},
        TINY_NET,
        pair(
            partial(data_parallel, **RESNET_DP, exchange=all_at_once),
            partial(overlapped_by_ddp, **RESNET_DP),
            no_exchange=partial(data_parallel, **RESNET_DP, exchange=no_exchange),
        ),
        "After the backward pass all gradients are averaged over the GPUs by one all_reduce of a flat copy of them.",
        "DistributedDataParallel averages buckets of gradients during the backward pass.",
        steps=3,
        gpus=2,
        environment=NO_NVLINK,
        fit=partial(
            fitting_batch,
            make=resnet,
            exchange=all_at_once,
            loop=partial(data_parallel, **RESNET_DP, exchange=no_exchange),
        ),
    ),
    Case(
        "gpt_comm",
        "communication",
        "GPT, 4 layers of width 1024, 1024 tokens, bf16 autocast, two GPUs without NVLink",
        {"layers": 4, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 4096, "batch": 16},
        TINY_GPT,
        pair(
            partial(data_parallel, **GPT_DP, exchange=one_by_one),
            partial(overlapped_by_ddp, **GPT_DP),
            no_exchange=partial(data_parallel, **GPT_DP, exchange=no_exchange),
        ),
        "After the backward pass the gradients are averaged over the GPUs by all_reduce, one parameter after another.",
        "DistributedDataParallel averages buckets of gradients during the backward pass.",
        kept=("planted", "fixed"),
        gpus=2,
        environment=NO_NVLINK,
        fit=partial(
            fitting_batch,
            make=gpt,
            exchange=one_by_one,
            loop=partial(data_parallel, **GPT_DP, exchange=no_exchange),
        ),
    ),
)
