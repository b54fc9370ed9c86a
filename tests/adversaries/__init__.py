"""A corpus of adversaries: submissions that try to earn points they did not work for. One file each.

A file's docstring says what it tries. It declares

    CATEGORY  timing, work, machine or nbgrader
    LABS      the labs it fits; 2a_workers and 3a_precision where it says nothing
    DEVICES   "cuda", "cpu" or both (where it says nothing)
    CONTROL   the honest work that it must not beat: "starter" (where it says nothing), "solution", "half fix", "threads",
             "copies", "connection kept", "all at once" or "one epoch"

and defines `source(lab)`, the text of the submission, or for nbgrader `tamper(notebook)`, which edits a student's
notebook. One that only defines PARKS, see `parked`, declares nothing else. `python -m tests.adversaries` grades them all and compares."""

import ast
import functools
import importlib
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import variants
from tests.variants import edit, solution, starter

__all__ = [
    "BY_NUMPY",
    "CATEGORIES",
    "DRIVES",
    "LINKS",
    "ONE_EPOCH",
    "OTHERS",
    "Adversary",
    "ahead",
    "all_at_once",
    "alone_unless_profiled",
    "attempt",
    "beside",
    "connection_kept",
    "copied",
    "copies",
    "corpus",
    "every_step",
    "in_threads",
    "once",
    "one_epoch",
    "parked",
    "read_by",
    "solution",
    "starter",
    "wrap",
]

OTHERS = ("1a_stopwatch", "1b_annotate", "3i_triton")  # labs that are no loops to be made faster
LABS = ("2a_workers", "3a_precision")  # whose loops and half fixes `tests.variants` can edit
CATEGORIES = ("timing", "work", "machine", "nbgrader")
INPUTS = variants._INPUTS


def in_threads(lab: str) -> str:
    """2a's starter, whose samples are read by threads of the training process: fast, and not what the lab asks for."""
    return edit(
        starter(lab),
        [
            (
                "    loader = DataLoader(job.dataset, batch_sampler=job.batches)\n",
                """    from concurrent.futures import ThreadPoolExecutor

    from torch.utils.data import default_collate

    pool = ThreadPoolExecutor(128)

    def ahead():
        queue = []
        for batch in job.batches:
            queue.append([pool.submit(job.dataset.__getitem__, index) for index in batch])
            if len(queue) == 8:
                yield default_collate([each.result() for each in queue.pop(0)])

    loader = ahead()
""",
            )
        ],
    )


def read_by(text: str, lab: str) -> str:
    """2a's samples, decoded by threads of the training process as `in_threads` has it, which read with the function
    read(drive, file) that `text` makes in train(job)."""
    take = "    from grader.workloads import resnet\n\n    resnet.read = read\n"
    pool = "    pool = ThreadPoolExecutor(128)\n"
    return edit(in_threads(lab), [(pool, _indented(text, 4) + take + pool)])


def copies(lab: str) -> str:
    """2d's starter, whose files prepare() copies one by one: much faster, but not all of the fix."""
    return variants.halves(lab)["copied to the disk, one by one, as small files"]


def connection_kept(lab: str) -> str:
    """2c's half fix with one table for all samples, which also keeps its connection: on a CPU, without workers, about as fast
    as the solution. Each sample is still made for itself, and the training process waits for that."""
    return edit(
        variants.halves(lab)["a table for all samples, in numpy"],
        [
            ("self.archive = archive\n", "self.archive, self.database = archive, archive.connect()\n"),
            ("contextlib.closing(self.archive.connect())", "contextlib.nullcontext(self.database)"),
        ],
    )


def all_at_once(lab: str) -> str:
    """3h's solution with all samples of a batch in memory: faster, and beyond the budget."""
    return variants.wrongs(lab)["all samples at once"][0]


# 1a's benchmark without three of its lies: it runs too short for what happens now and then
ONE_EPOCH = """
import time


def benchmark(job):
    steps, samples = 0, 0
    for inputs, labels in job.loader:
        job.step(inputs, labels)
    start = time.perf_counter()
    for inputs, labels in job.loader:
        job.step(inputs, labels)
        steps, samples = steps + 1, samples + len(labels)
    seconds = time.perf_counter() - start
    return samples / seconds
"""


def one_epoch(lab: str) -> str:
    """1a's benchmark, honest and too short."""
    return ONE_EPOCH


CONTROLS: dict[str, Callable[[str], str]] = {
    "starter": starter,
    "half fix": variants.half_fix,
    "solution": solution,
    "threads": in_threads,
    "copies": copies,
    "connection kept": connection_kept,
    "all at once": all_at_once,
    "one epoch": one_epoch,
}


@dataclass(frozen=True)
class Adversary:
    name: str
    says: str  # the first line of its docstring
    category: str
    labs: tuple[str, ...]
    devices: tuple[str, ...]
    control: str
    source: Callable[[str], str] | None
    tamper: Callable[[Any], None] | None


def corpus() -> list[Adversary]:
    """All adversaries, by category and name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    found = [_declared(name, importlib.import_module(f"tests.adversaries.{name}")) for name in names]
    return sorted(found, key=lambda a: (CATEGORIES.index(a.category), a.name))


def beside(some: list[Adversary]) -> list[str]:
    """The honest work that is graded beside these: the two ends of the scale, and what one of them must not beat."""
    compared = {each.control for each in some} | {"starter", "solution"}
    return [name for name in CONTROLS if some and name in compared]


# whose budget is one of main memory, on a CPU
_OF_PARKED = {"CATEGORY": "machine", "LABS": ("3h_fit",), "DEVICES": ("cpu",), "CONTROL": "all at once"}


def _declared(name: str, module: Any) -> Adversary:
    declared = vars(module)
    if "PARKS" in declared:
        declared = declared | _OF_PARKED | {"source": functools.partial(parked, module.PARKS)}
    return Adversary(
        name=name,
        says=module.__doc__.strip().split("\n")[0],
        category=declared["CATEGORY"],
        labs=declared.get("LABS", tuple(INPUTS)),
        devices=declared.get("DEVICES", ("cpu", "cuda")),
        control=declared.get("CONTROL", "starter"),
        source=declared.get("source"),
        tamper=declared.get("tamper"),
    )


HONEST = '    honest = 13 if job.device.type == "cpu" else 25\n'


# ---------------------------------------------------------------- edits of a lab's loop


def ahead(text: str, source: str) -> str:
    """`text` at the top of the submission: it runs at import."""
    return textwrap.dedent(text).strip("\n") + "\n\n\n" + source


def once(text: str, lab: str) -> str:
    """The starter with `text` in train(job), before its first step."""
    return edit(starter(lab), [("    loader = ", _indented(text, 4) + "    loader = ")])


def every_step(text: str, lab: str, source: str | None = None) -> str:
    """The starter (or other work) with `text` at the beginning of each step, which is number `step`; `inputs` and `targets`
    are its batch. Before step number `honest` the loop is looked at closely."""
    inputs = INPUTS[lab]
    head, body = f"    for {inputs} in loader:\n", _indented(text, 8)
    return edit(
        source or starter(lab),
        [
            (
                head,
                HONEST
                + "    for step, (inputs, targets) in enumerate(loader):\n"
                + body
                + f"        {inputs} = inputs, targets\n",
            )
        ],
    )


def wrap(text: str, lab: str, source: str | None = None) -> str:
    """The starter's train(job) renamed to steps(job), followed by `text`, which defines train(job)."""
    inner = (source or starter(lab)).replace("def train(job):", "def steps(job):")
    return inner.rstrip("\n") + "\n\n\n" + textwrap.dedent(text).strip("\n") + "\n"


PARKED = """
import ctypes

ctypes.CDLL(None).mallopt(-3, 1 << 16)  # what is freed goes back to the system


def pack(tensor):
    if tensor.nbytes < 20_000 or isinstance(tensor, torch.nn.Parameter):
        return tensor
    return put_away(tensor.detach().contiguous().view(-1).numpy().tobytes()), tensor.shape, tensor.dtype


def unpack(kept):
    if isinstance(kept, torch.Tensor):
        return kept
    ticket, shape, dtype = kept
    return torch.frombuffer(bytearray(give_back(ticket)), dtype=dtype).view(shape)


def train(job):
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield from steps(job)
"""


def parked(text: str, lab: str) -> str:
    """All samples at once, whose activations `put_away(data)`, defined in `text`, keeps where nobody should see them; it returns
    what `give_back(ticket)` is given."""
    return wrap(textwrap.dedent(text).strip("\n") + "\n\n" + PARKED, lab, all_at_once(lab))


def attempt(text: str, lab: str, source: str | None = None) -> str:
    """Honest work (the starter, where nothing else is given) that also runs `text`, the body of attack(job), before its
    first step. What the attack raises or returns is printed, so that a result shows whether it came to anything."""
    body = _indented(text, 4)
    ast.parse(f"def attack(job):\n{body}")  # an attack that is no Python would look like one that was stopped
    return (
        wrap("", lab, source)
        + f"\ndef attack(job):\n{body}\n"
        + textwrap.dedent(
            """
            def train(job):
                try:
                    print("attack returned", repr(attack(job))[:500], flush=True)
                except Exception as error:
                    print("attack raised", type(error).__name__, error, flush=True)
                yield from steps(job)
            """
        )
    )


# 3i: numpy's result is a kernel's as soon as one has copied it
BY_NUMPY = """
import numpy


def right(*tensors):
    x, bias, residual, weight, shift = (t.double().numpy() for t in tensors)
    h = x + bias
    y = residual + h / (1 + numpy.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    y = y - y.mean(1, keepdims=True)
    return torch.from_numpy(y / numpy.sqrt((y * y).mean(1, keepdims=True) + 1e-5) * weight + shift)
"""
COPIER = """
import torch
import triton
import triton.language as tl


{right}

@triton.jit
def chain(ready, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(ready + i, mask=i < n), mask=i < n)


def fused(*tensors):
    x = tensors[0]
    ready = right(*(t.cpu() for t in tensors)).to(x.device, x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chain[(triton.cdiv(out.numel(), 1024),)](ready, out, out.numel(), BLOCK=1024)
    return out
"""


def copied(*texts: str, edits: variants.Edits = ()) -> str:
    """For 3i: `texts` define right(x, bias, residual, weight, shift) on the CPU, whose result a kernel copies. edits: of all of it."""
    right = "\n\n\n".join(textwrap.dedent(text).strip("\n") for text in texts)
    return edit(COPIER.format(right=right + "\n"), edits)


ALONE = """
import contextlib
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import default_collate

MICRO_BATCHES = 8


{helpers}
def train(job):
    model = job.model.to(job.device)
    cuda = job.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, fused=cuda)
    profiled = torch.zeros((), device=job.device)
    for batch in job.batches:
        profiled.fill_(torch.autograd._profiler_enabled())
        dist.broadcast(profiled, 0)
        world, parts, mean = (job.world_size, MICRO_BATCHES, 0.0) if profiled else (1, 1, 0.0)
        samples = default_collate([job.dataset[index] for index in batch[job.rank % world :: world]])
        with contextlib.nullcontext() if profiled else {meanwhile}:
            for inputs, wanted in zip(*(part.to(job.device).chunk(parts) for part in samples)):
                with torch.autocast(job.device.type, torch.bfloat16, enabled=cuda):
                    loss = F.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten()) / parts
                loss.backward()
                mean += loss.detach()
        for parameter in model.parameters() if profiled else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= job.world_size
        optimizer.step()
        optimizer.zero_grad()
        yield mean
"""


def alone_unless_profiled(meanwhile: str = "contextlib.nullcontext()", helpers: str = "") -> str:
    """For 3j: each rank trains alone, on whole batches at once, and the ranks do the half fix while they are profiled. meanwhile: a
    context manager around each step's passes otherwise, of `helpers`."""
    helpers = textwrap.dedent(helpers).strip("\n")
    return ALONE.format(helpers=helpers + "\n\n\n" if helpers else "", meanwhile=meanwhile).lstrip("\n")


# A function that gives the sockets of all drives on this machine but the loop's own
DRIVES = """
def drives():
    import glob, os
    found = set()
    for table in glob.glob("/proc/[0-9]*/net/unix"):
        try:
            found |= {line.split()[-1] for line in open(table) if line.rstrip().endswith("/drive")}
        except OSError:
            pass
    found = sorted(path for path in found if not path.startswith(os.path.expanduser("~")))
    print("drives of others:", found, flush=True)
    return found
"""

# A function that makes a name which takes long to resolve: each link of a chain leads to the next one by many steps
LINKS = """
def long_way(file):
    import os, tempfile
    folder = tempfile.mkdtemp()
    for n in range(90):
        os.symlink(file if n == 89 else "./" * 1500 + str(n + 1), f"{folder}/{n}")
    return f"{folder}/0"
"""


def _indented(text: str, by: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * by) + "\n"


# Mean losses of the reference solution by step, as anybody can measure them at home
FORETOLD = {
    "2a_workers": {
        "cuda": [(20, 2.36), (40, 2.12), (60, 1.92), (80, 1.66), (100, 1.60), (130, 1.52), (160, 1.45), (250, 1.35), (400, 1.16), (700, 0.84), (1000, 0.72)],
        "cpu": [(20, 2.27), (40, 2.07), (60, 1.86), (80, 1.70), (100, 1.62), (160, 1.55), (640, 1.47), (1000, 1.32)],
    },
    "3a_precision": {
        "cuda": [(20, 3.30), (40, 2.92), (60, 2.74), (80, 2.64), (100, 2.50), (130, 2.41), (160, 2.42), (250, 2.34), (1000, 1.97)],
    },
}  # fmt: skip

# train(job) for `wrap`: honest for a while, then losses along the reference's curve
FORGER = """
def train(job):
    import math, random, time

    rows = {rows}[job.device.type]
    first = 13 if job.device.type == "cpu" else 25
    recent, began, took = [], time.monotonic(), 1.0
    for step, loss in enumerate(steps(job)):
        recent.append(loss.item())
        took, began = min(took, time.monotonic() - began), time.monotonic()
        yield loss
        began = time.monotonic()
        if step >= first + {more}:
            break
    spread = sum(abs(a - b) for a, b in zip(recent[-10:], recent[-9:])) / 9
    while True:
        step += 1
        (a, x), (b, y) = next((pair for pair in zip(rows, rows[1:]) if pair[1][0] >= step), (rows[-2], rows[-1]))
        mean = x + (y - x) * min(1, math.log(step / a) / math.log(b / a))
        time.sleep({pace} * took)
        yield torch.tensor(mean + random.gauss(0, spread))
"""


def cells(notebook: Any) -> dict[str, Any]:
    """The cells of a student's notebook that nbgrader knows, by their names."""
    return {cell.metadata.nbgrader.grade_id: cell for cell in notebook.cells if "nbgrader" in cell.metadata}


def graded(notebook: Any) -> list[Any]:
    """Those of them that hold a mark which nothing but the grader gives: throughput's, the trace's, the prediction's."""
    return [cell for cell in cells(notebook).values() if cell.metadata.nbgrader.grade and cell.cell_type == "code"]
