"""Train a model with every knob at hand, and keep with each run what tells later why it was fast or slow.

    python train.py                                     # the knobs as they stand below
    python train.py --name=bf16 --precision=bf16        # any knob, by its name
    torchrun --standalone --nproc_per_node=8 train.py   # on eight GPUs

The knobs are for a GPU, of a size that fills one. Without any, a small model on the CPU takes seconds:

    python train.py --device=cpu --layers=2 --width=64 --heads=2 --length=64 --vocabulary=256 --batch_size=4 --workers=1 --compiled=False

Each run leaves a folder, runs/DATE-NAME/:

    config.json     the knobs, the machine, versions, and the length of a step without the profiler
    metrics.jsonl   a line every `log_every` steps: loss (of the first GPU's share), length of a step, samples a second, memory;
                    no line while the profiler records, nor for the first steps after it: they take longer
    trace.json.gz   a profile of the first steady steps: `grader diagnose` reads it
    weights.pt      the trained weights

Slower than last week? A look at both config.json, and, with the `step_ms` that stands in each,

    grader diagnose runs/OLD/trace.json.gz runs/NEW/trace.json.gz --step-ms OLD_MS --step-ms NEW_MS

What is to be trained is at the end of this file: replace `Images`, `Tokens` and the models by your own."""

import ast
import contextlib
import gc
import json
import math
import os
import platform
import sys
import time
import warnings
from datetime import datetime
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, record_function
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, Sampler

# ---- knobs --------------------------------------------------------------------------------------------------------

name = "run"  # of the run's folder
out = "runs"
model = "gpt"  # "gpt" or "resnet"
data = ""  # a file of uint16 tokens, for the GPT; "" for made-up data
device = "cuda"  # "cuda" or "cpu"
seed = 0

# what is learned: a change of these is another training
steps = 200
batch_size = 32  # samples an optimizer step, of all GPUs together
learning_rate = 3e-4
weight_decay = 0.1
layers, width, heads, length, vocabulary = 12, 768, 12, 1024, 50257  # of the GPT
size, classes = 224, 1000  # of the ResNet's images

# how fast: a change of these trains the same
workers = 4  # processes that load data; measure for your data, there is an optimum
prefetch = 2  # batches that each worker keeps ready
pin = True  # copy batches from pinned memory
overlap = True  # copy the next batch on a stream of its own while this one is computed
precision = "bf16"  # "fp32", "tf32", "bf16", or "fp16" with a loss that is scaled: for GPUs without bf16
compiled = True  # torch.compile
channels_last = True  # memory layout of images: what convolutions on tensor cores want
pad_vocabulary = 64  # round the vocabulary up to a multiple of this; 1: not
fused = True  # the optimizer in one kernel
accumulation = 1  # parts that a batch is computed in; not with batch normalisation
checkpointing = False  # compute activations again in the backward pass instead of keeping them

# what is kept
log_every = 10
warm_up = 10  # steps before anything is measured: compilation, autotuning, the loader's start
timed = 10  # steps that are timed for config.json
profiled = 4  # steps in the trace; 0: no trace
save = True  # write weights.pt

KNOBS = {k: v for k, v in globals().items() if not k.startswith("_") and isinstance(v, int | float | str | bool)}
SMALL = "python train.py --device=cpu --layers=2 --width=64 --heads=2 --length=64 --vocabulary=256 --batch_size=4 --workers=1 --compiled=False"  # fmt: skip


def read_command_line(arguments):
    """Set knobs from --name=value. Ends the program with a message for a name or a value that cannot be."""
    for argument in arguments:
        knob, equals, value = argument.removeprefix("--").partition("=")
        knob = knob.replace("-", "_")
        if knob not in KNOBS or not equals:
            sys.exit(f"train.py: {argument!r} is not a knob. Write --name=value. The names are {', '.join(KNOBS)}.")
        kind = type(KNOBS[knob])
        if kind is not str:
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(value)
            if kind is float and type(value) is int:
                value = float(value)
        if type(value) is not kind:
            sys.exit(f"train.py: {argument!r} needs a value of type {kind.__name__}, and {value!r} is none.")
        KNOBS[knob] = value
    globals().update(KNOBS)
    precisions = ("fp32", "tf32", "bf16", "fp16")
    allowed = {"model": ("gpt", "resnet"), "precision": precisions, "device": ("cuda", "cpu")}
    for knob, values in allowed.items():
        if KNOBS[knob] not in values:
            sys.exit(f"train.py: --{knob} must be one of {', '.join(values)}, not {KNOBS[knob]}.")
    may_be_0 = ("learning_rate", "weight_decay", "layers", "workers", "warm_up", "profiled")
    positive = ("steps", "batch_size", "width", "heads", "length", "vocabulary", "size", "classes", "prefetch", "pad_vocabulary", "accumulation", "log_every", "timed")  # fmt: skip
    least = dict.fromkeys(may_be_0, 0) | dict.fromkeys(positive, 1)
    for knob, value in KNOBS.items():  # not those of `least`: with a model of your own some of them go, others come
        if knob in least and value < least[knob]:
            sys.exit(f"train.py: --{knob} must be at least {least[knob]}, not {value}.")
    if model == "resnet" and checkpointing:
        sys.exit("train.py: --checkpointing=True works with the GPT only.")
    if model == "gpt" and KNOBS.get("width", 0) % KNOBS.get("heads", 1):
        sys.exit(f"train.py: a width of {width} cannot be split among {heads} heads.")
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"train.py: there is no GPU. On the CPU a small model takes seconds: {SMALL}")
    if not -(2**63) <= seed < 2**64:
        sys.exit(f"train.py: --seed={seed} is too large. torch takes 64 bits.")


# ---- the loop -----------------------------------------------------------------------------------------------------


def main():
    read_command_line(sys.argv[1:])
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    place = torch.device(device, int(os.environ.get("LOCAL_RANK", 0))) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    if ranks > 1:
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    if batch_size % (ranks * accumulation):
        sys.exit(f"train.py: a batch of {batch_size} cannot be split among {ranks} GPUs in {accumulation} parts each.")
    if model == "resnet" and accumulation > 1:
        sys.exit(
            "train.py: batch normalisation sees one part at a time, so with --accumulation it is a different training."
        )
    if (
        device == "cuda"
        and precision == "bf16"
        and not torch.version.hip
        and torch.cuda.get_device_capability() < (8, 0)
    ):
        print("train.py: this GPU has no units for bf16 and emulates it. Try --precision=fp16.", file=sys.stderr)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"

    dataset = make_dataset()
    raw = make_model().to(place)
    if model == "resnet" and channels_last:
        raw = raw.to(memory_format=torch.channels_last)
    together = DistributedDataParallel(raw, [place.index] if device == "cuda" else None) if ranks > 1 else None
    network = torch.compile(together or raw) if compiled else together or raw
    optimizer = torch.optim.AdamW(raw.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=fused)
    loader = DataLoader(
        dataset,
        batch_sampler=Batches(len(dataset), rank, ranks),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=workers > 0,
        pin_memory=pin and device == "cuda",
    )
    batches = on_device(loader, place)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    autocast = torch.autocast(device, half, enabled=half is not None)
    # the gradients of most losses are too small for fp16: it scales them up, and skips a step where they overflow
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    keeper = Keeper(place, rank, ranks)

    for step in range(steps):
        with keeper.phase("data_wait"):
            inputs, targets = next(batches)
        total = torch.zeros((), device=place)
        for part, (x, y) in enumerate(zip(inputs.chunk(accumulation), targets.chunk(accumulation), strict=True), 1):
            last = part == accumulation
            # gradients are exchanged once a step, not once a part
            with together.no_sync() if together and not last else contextlib.nullcontext():
                with keeper.phase("fwd"), autocast:
                    loss = loss_of(network(x), y) / accumulation
                with keeper.phase("bwd"):
                    scaler.scale(loss).backward()
            total += loss.detach()
        with keeper.phase("opt"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        keeper.after(step, total)
    keeper.close(raw)
    if ranks > 1:
        torch.distributed.destroy_process_group()


class Batches(Sampler):
    """Endless batches of indices, shuffled from `seed`; of each batch this rank's share."""

    def __init__(self, count, rank, ranks):
        if count < batch_size:
            sys.exit(f"train.py: the data set has {count} samples, but a batch needs {batch_size}.")
        self.count, self.rank, self.ranks = count, rank, ranks

    def __iter__(self):
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(self.count, generator=generator).tolist()
            for i in range(0, self.count - batch_size + 1, batch_size):
                yield order[i + self.rank : i + batch_size : self.ranks]


def on_device(loader, place):
    """The loader's batches on the device. With `overlap` the next one is copied on a stream of its own meanwhile."""

    def copied(batch):
        inputs, targets = (t.to(place, non_blocking=pin) for t in batch)
        if inputs.dim() == 4:
            layout = torch.channels_last if channels_last else torch.contiguous_format
            if inputs.dtype == torch.uint8:  # sent as bytes: a quarter as much
                inputs = inputs.float().div_(64).sub_(2)
            inputs = inputs.contiguous(memory_format=layout)
        return inputs, targets

    if place.type != "cuda" or not overlap:
        yield from map(copied, loader)
        return
    side, ready = torch.cuda.Stream(), None
    for batch in loader:
        with torch.cuda.stream(side):
            following = copied(batch)
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(side)
        for tensor in following:
            tensor.record_stream(torch.cuda.current_stream())
        ready = following


def loss_of(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())


# ---- what is kept with each run -----------------------------------------------------------------------------------


class Keeper:
    """Times, profiles and logs the run into its folder; on the first rank only. Between two entries of the log the host
    never waits for the GPU. An entry among the timed steps makes it wait there, too, and they are timed so; only the time
    in which the entry is written is taken off."""

    def __init__(self, place, rank, ranks):
        self.place, self.rank, self.ranks = place, rank, ranks
        self.profiler, self.loss = None, None
        # workers fill their queue while the profiler starts: what is served from it is not recorded
        self.queued = 1 + workers * prefetch
        self.needed = warm_up + timed + self.queued + 1 + profiled  # steps until the trace is written
        self.settled = 0  # steps until they are as fast again as before the trace was written
        # two clocks: an entry of the log restarts its own, while that of the timed steps goes on
        self.began = self.timed_from = time.perf_counter()
        self.since = 0
        if rank:
            return
        stamp = f"{datetime.now():%Y-%m-%d-%H%M%S}-{name}"
        self.folder = Path(out) / stamp
        for again in range(2, 100):
            try:
                self.folder.mkdir(parents=True)
                break
            except FileExistsError:
                self.folder = Path(out) / f"{stamp}-{again}"
        gpu = torch.cuda.get_device_name(place) if place.type == "cuda" else None
        self.config = {
            "knobs": KNOBS,
            "command": sys.argv,
            "gpu": gpu,
            "gpus": ranks if gpu else 0,
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "step_ms": None,
        }
        self.write_config()
        print(f"{self.folder}: {steps} steps on {gpu or 'the CPU'}", flush=True)

    def write_config(self):
        beside = self.folder / "config.json.tmp"
        beside.write_text(json.dumps(self.config, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.folder / "config.json")

    def phase(self, what):
        """Mark a phase of the step in the trace; free where nothing is recorded."""
        return record_function(what) if self.profiler else contextlib.nullcontext()

    def after(self, step, loss):
        """After each optimizer step."""
        if self.rank:
            return
        done, self.loss = step + 1, loss
        if self.profiler:
            self.profiler.step()
            if done == self.needed:
                self.finish(done)
            return
        if done < self.settled:
            return
        if done == self.settled:
            self.began, self.since = self.now(), done
        elif done % log_every == 0:
            self.log(done)
        if done == warm_up:
            self.began = self.timed_from = self.now()
            self.since = done
        elif done == warm_up + timed:
            self.config["step_ms"] = 1e3 * (self.now() - self.timed_from) / timed
            self.write_config()
            if profiled:
                self.record()

    def now(self):
        """The time at which all that was begun is done."""
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)
        return time.perf_counter()

    def record(self):
        if self.place.type != "cuda":
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler reports that there is no GPU
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.place.type == "cuda" else [])]
        plan = torch.profiler.schedule(wait=0, warmup=self.queued, active=1 + profiled, repeat=1)
        # some releases of torch say so of every profile
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        self.profiler = torch.profiler.profile(activities=activities, schedule=plan, record_shapes=True)
        self.profiler.start()

    def finish(self, done):
        self.profiler.stop()
        trace = self.folder / "trace.json.gz"
        self.profiler.export_chrome_trace(str(trace))
        self.profiler = None
        print(f"grader diagnose {trace} --step-ms {self.config['step_ms']:.4g}", flush=True)
        gc.collect()  # what the profiler leaves behind: else a later step is held up by it
        self.settled = done + 2  # those two take up to half as long again

    def log(self, done):
        ended = self.now()
        seconds, loss = (ended - self.began) / (done - self.since), self.loss.item()
        row = {"step": done, "loss": loss, "step_ms": 1e3 * seconds, "samples_per_s": batch_size / seconds}
        if self.place.type == "cuda":
            row["peak_memory_gb"] = torch.cuda.max_memory_allocated(self.place) / 1e9
        left = seconds * (steps - done)
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as metrics:
            metrics.write(json.dumps(row) + "\n")
        print(f"step {done}: loss {loss:.4f}, {1e3 * seconds:.4g} ms, {row['samples_per_s']:,.0f} samples/s, {left:.0f} s left", flush=True)  # fmt: skip
        if not math.isfinite(loss):
            sys.exit(f"train.py: the loss of step {done} is {loss}.")
        self.began, self.since = self.now(), done
        self.timed_from += self.began - ended  # the timed steps do not pay for it

    def close(self, raw):
        if self.rank:
            return
        if self.profiler:
            self.profiler.stop()
        if profiled and not (self.folder / "trace.json.gz").exists():
            print(f"No trace: it needs {self.needed} steps or more.")
        if save:
            weights = {key: tensor.detach().cpu() for key, tensor in raw.state_dict().items()}
            if hasattr(raw, "beyond"):  # this script's own GPT: without the rows of the padding
                weights["embedding.weight"] = weights["embedding.weight"][:vocabulary].clone()
            torch.save(weights, self.folder / "weights.pt.tmp")
            (self.folder / "weights.pt.tmp").replace(self.folder / "weights.pt")


# ---- what is trained: replace this by your own --------------------------------------------------------------------


def make_dataset():
    return Tokens() if model == "gpt" else Images()


def make_model():
    if model == "gpt":
        return GPT(pad_vocabulary * math.ceil(vocabulary / pad_vocabulary))
    import torchvision

    return torchvision.models.resnet50(num_classes=classes)


class Tokens(Dataset):
    """Windows of a file of uint16 tokens, or of made-up ones: (tokens, targets), both int64 of shape (length,)."""

    def __init__(self):
        if data:
            try:
                self.tokens = np.memmap(data, dtype=np.uint16, mode="r")
            except (OSError, ValueError) as error:
                sys.exit(f"train.py: --data={data} is not a file of uint16 tokens ({error}).")
        elif vocabulary > 1 << 16:
            sys.exit(
                f"train.py: --vocabulary={vocabulary} is too large. Tokens are uint16, which has {1 << 16} values."
            )
        else:
            self.tokens = np.random.default_rng(1).integers(vocabulary, size=256 * length + 1, dtype=np.uint16)

    def __len__(self):
        return (len(self.tokens) - 1) // length

    def __getitem__(self, index):
        window = torch.from_numpy(self.tokens[index * length : (index + 1) * length + 1].astype(np.int64))
        return window[:-1], window[1:]


class Images(Dataset):
    """Made-up images: (pixels, label), uint8 of shape (3, size, size) and an int."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randint(256, (3, size, size), generator=draw, dtype=torch.uint8), index % classes


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """tokens (batch, length) -> logits (batch, length, rows). rows: the vocabulary, padded; the logits beyond it are minus
    infinity, so that they change nothing but the shape."""

    def __init__(self, rows):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        first = torch.randn(vocabulary, width) * 0.02  # drawn last, and no more of it where there is padding
        self.embedding = nn.Embedding(rows, width, _weight=F.pad(first, (0, 0, 0, rows - vocabulary)))
        beyond = torch.zeros(rows).index_fill(0, torch.arange(vocabulary, rows), -math.inf)
        self.register_buffer("beyond", beyond, persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
        return F.linear(self.norm(x), self.embedding.weight, self.beyond)


if __name__ == "__main__":
    main()
