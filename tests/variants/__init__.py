"""Variants of the labs' loops with a known verdict, made by small edits of starter or solution: honest forms that parity
must accept, planted faults that it must reject, half fixes that must land between, wrong fixes that must earn little, with
the cause named. Used by the tests on the CPU and by `tests/benchmarks/measured.py` on a GPU.

All that belongs to one lab stands in `lab_NAME.py`. It declares

    HALVES   parts of the fix, by name: edits of the starter (of the solution where it says UNMADE)
    WRONGS   fixes that go wrong, by name: what each is made of, edits, words of the report
    HONEST   honest forms, by name: what each is made of, edits. For labs whose loops run in bf16 as they are, or are compiled
    FAULTS   planted faults of the lab's own, by name: edits of the solution
    FORWARD  how the loop calls its model. With it the faults that fit any loop are added and, without HONEST, such forms, too
    CALLED   what FORWARD calls, where it is not `model`
    LOSS     the loop's lines of forward pass and loss: a lab without HONEST is tried under autocast as well
    LADDER   the rungs of a ladder, in order: name and edits of the starter, on top of those before it

and, where the starter is the plain loop over a loader (the adversaries' corpus and the longer list of faults are for these),
INPUTS, what it loops over, FROZEN, the parameters of a layer, SMALLER, a line that lowers the resolution, and FED, edits
without which it waits for its data.

What several labs share stands in `common.py`, what is tried on a GPU beyond the solution in `candidates_NAME.py`."""

import importlib
from pathlib import Path
from typing import Any

import nbformat

from grader import calibrate, labs
from grader.errors import UserError

from .candidates_4a_resnet50 import RESIDENT, RESIDENT_GRAPHED, RESIDENT_TRIED, RESNET_GRAPHED
from .candidates_4b_nanogpt import GPT2_CANDIDATES, GPT2_ROUNDED_OTHERWISE
from .common import CHANNELS_LAST, COMPILED, LOADER, MODEL, STEP, TF32, Edits, climbed, under_autocast
from .lab_2a_workers import WORKERS as _WORKERS
from .lab_2e_syncs import THREE_SYNCS_LESS
from .lab_3d_tiny_ops import GRAPHED, graphed
from .lab_3e_compile import AS_IT_IS
from .lab_3j_communication import IN_BF16
from .lab_3k_healthy import CHECKPOINTED
from .lab_3n_lengths import CUDNN, SORTED, VARLEN
from .lab_3o_sharded import IN_FP32, WHOLE
from .lab_4a_resnet50 import DECODED_EACH_STEP, KEPT_BY_THE_HOST
from .lab_4b_nanogpt import LADDER as GPT2_LADDER
from .lab_4c_unet import UNET_FIRST
from .lab_4d_trainer import LADDER as TRAINER_LADDER
from .lab_4e_inference import SERVED_EAGER, SERVED_PLAIN

__all__ = [
    "AS_IT_IS", "CHECKPOINTED", "COMPILED", "CUDNN", "DECODED_EACH_STEP", "FAULTS", "GPT2_CANDIDATES", "GPT2_LADDER",
    "GPT2_ROUNDED_OTHERWISE", "GRAPHED", "HALVES", "HONEST", "IN_BF16", "IN_FP32", "KEPT_BY_THE_HOST", "LOADER", "RESIDENT",
    "RESIDENT_GRAPHED", "RESIDENT_TRIED", "RESNET_GRAPHED", "SERVED_EAGER", "SERVED_PLAIN", "SORTED", "TF32",
    "THREE_SYNCS_LESS", "TRAINER_LADDER", "UNET_FIRST", "UNMADE", "VARLEN", "WHOLE", "WRONGS", "_WORKERS", "Edits", "autocast", "base",
    "climbed", "edit", "entry", "faults", "graphed", "half_fix", "halves", "honest", "honest_on_a_cpu", "in_a_thread", "solution",
    "starter", "trains_ahead", "wrongs", "wrongs_on_a_cpu",
]  # fmt: skip

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
_LABS = {
    path.stem.removeprefix("lab_"): importlib.import_module(f"{__name__}.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("lab_*.py"))
}


def _table(constant: str) -> dict[str, Any]:
    """What the modules declare under this name, by lab."""
    return {lab: vars(module)[constant] for lab, module in _LABS.items() if constant in vars(module)}


HALVES: dict[str, dict[str, Edits]] = _table("HALVES")
WRONGS: dict[str, dict[str, tuple[str, Edits, str]]] = _table("WRONGS")
HONEST: dict[str, dict[str, tuple[str, Edits]]] = _table("HONEST")
FAULTS: dict[str, dict[str, Edits]] = _table("FAULTS")
UNMADE = tuple(_table("UNMADE"))
_FORWARD: dict[str, str] = _table("FORWARD")
_CALLED: dict[str, str] = _table("CALLED")
_LOSS: dict[str, str] = _table("LOSS")
_INPUTS: dict[str, str] = _table("INPUTS")
_FROZEN: dict[str, str] = _table("FROZEN")
_SMALLER: dict[str, str] = _table("SMALLER")
_FED: dict[str, Edits] = _table("FED")


def edit(source: str, edits: Edits) -> str:
    """Apply (old, new) replacements; each `old` must occur."""
    for old, new in edits:
        if old not in source:
            raise ValueError(f"not in the source: {old!r}")
        source = source.replace(old, new)
    return source


def entry(table: str, entries: dict[str, Any], lab: str) -> Any:
    """What a table has of a lab. Raises UserError where a new lab's module lacks it."""
    if lab not in entries:
        raise UserError(
            f"{table} is missing in tests/variants/lab_{lab}.py; CONTRIBUTING.md says what a new lab needs."
        )
    return entries[lab]


def starter(lab: str) -> str:
    return labs.get(lab).starter


def solution(lab: str) -> str:
    return calibrate.solution(labs.get(lab)).source


def _plain(lab: str) -> str:
    """The first part of a solution that has two: the code in its notebook's cell "plain"."""
    notebook = nbformat.read(SOLUTIONS / lab / f"{lab}.ipynb", nbformat.NO_CONVERT)
    text = next(cell.source for cell in notebook.cells if cell.id == "plain")
    return text.partition("```python\n")[2].partition("```")[0]


def base(lab: str, name: str) -> str:
    """What edits are made of: "starter", "solution" or, of a solution in two parts, "plain"."""
    return {"starter": starter, "solution": solution, "plain": _plain}[name](lab)


def autocast(lab: str, model: str = "") -> Edits:
    """Forward and loss under bf16 autocast; `model`: the expression that is called, where it is another than before."""
    called = _CALLED.get(lab, "model")
    return under_autocast(entry("LOSS, or HONEST in its place,", _LOSS, lab), called, model or called)


def honest(lab: str) -> dict[str, str]:
    """Forms that train the same model, by name: precision, compilation, memory format. All must be accepted."""
    if lab in HONEST or lab not in _FORWARD:
        forms = entry("HONEST", HONEST, lab)
        made = {name: edit(base(lab, of), edits) for name, (of, edits) in forms.items()}
        return {"as it is": starter(lab)} | made
    called = _CALLED.get(lab, "model")
    made = [(old, new.replace("compile(model)", f"compile({called})")) for old, new in COMPILED]
    compiled = [*made, (_FORWARD[lab], _FORWARD[lab].replace(f"{called}(", "compiled("))]
    if labs.get(lab).throughput.healthy:  # runs in bf16 as it is
        return {"as it is": starter(lab), "compiled": edit(starter(lab), compiled)}
    forms = {
        "as it is": [],
        "tf32": TF32,
        "bf16 autocast": autocast(lab),
        "compiled": compiled,
        "compiled, tf32, bf16": [*TF32, *made, *autocast(lab, "compiled")],
        "channels last": CHANNELS_LAST,  # changes nothing where there is no convolution: must be accepted all the same
    }
    if "fused=True" in _fed(lab):
        forms["unfused optimizer"] = [("fused=True", "foreach=False")]
    else:
        forms["fused optimizer"] = [("lr=job.lr)", "lr=job.lr, fused=True)")]
    return {name: edit(_fed(lab), edits) for name, edits in forms.items()}


# what changes nothing where there is no GPU
OF_A_GPU = {
    "TF32", "TF32 for what is not in bf16", "TF32, fp32 matmuls", "tf32", "the solution in tf32", "no autocast", "without autocast",
    "not compiled", "with cuDNN's attention", "compiled, cuDNN's attention", "packed, varlen attention", "decoded by the CPU",
}  # fmt: skip


def honest_on_a_cpu(lab: str) -> dict[str, str]:
    """Those that are not, on a CPU, what another one is."""
    return {what: source for what, source in honest(lab).items() if what not in OF_A_GPU}


def faults(lab: str) -> dict[str, str]:
    """The planted faults of a training that is not the same. All must be rejected."""
    if labs.get(lab).serves:
        return _own_faults(lab)
    if lab not in _INPUTS:
        return _few_faults(lab)
    inputs = _INPUTS[lab]
    first, second = inputs.split(", ")
    to_device = f"        {inputs} = {first}.to(job.device), {second}.to(job.device)\n"
    counted = f"    for {inputs} in loader:\n"
    counting = f"    for step, ({inputs}) in enumerate(loader):\n"
    repeated = f"        if step % 2:\n            {inputs} = before\n        before = {inputs}\n"
    made = {
        "one optimizer step in ten skipped": [
            (counted, counting),
            (STEP, "        if step % 10 != 9:\n            optimizer.step()\n"),
        ],
        "half the batch": [(to_device, to_device + f"        {inputs} = {first}[::2], {second}[::2]\n")],
        "learning rate x 0.9": [("lr=job.lr", "lr=0.9 * job.lr")],
        "no weight decay": [("lr=job.lr", "lr=job.lr, weight_decay=0.0")],
        "a frozen layer": [
            (MODEL, MODEL + f"    for parameter in {_FROZEN[lab]}:\n        parameter.requires_grad_(False)\n")
        ],
        "every second batch repeated": [(counted, counting), (to_device, repeated + to_device)],
        "lower resolution": [(to_device, to_device + _SMALLER[lab])],
        "model cast to bf16": _cast(_FORWARD[lab]),
    }
    return {name: edit(_fed(lab), edits) for name, edits in made.items()}


def _few_faults(lab: str) -> dict[str, str]:
    """Those that fit any loop, and the lab's own; only these where the loop is not the lab's."""
    if lab not in _FORWARD:
        return _own_faults(lab)
    scaled = "        scaler.step(optimizer)\n"
    step = scaled if scaled in solution(lab) else STEP
    counted = f"        job.done = getattr(job, 'done', 0) + 1\n        if job.done % 10:\n    {step}"
    made = {
        "one optimizer step in ten skipped": [(step, counted)],
        "learning rate x 0.9": [("lr=job.lr", "lr=0.9 * job.lr")],
        "no weight decay": [("lr=job.lr", "lr=job.lr, weight_decay=0.0")],
        "a frozen layer": [(MODEL, MODEL + "    next(model.parameters()).requires_grad_(False)\n")],
        "model cast to bf16": _cast(_FORWARD[lab]),
    }
    made |= FAULTS.get(lab, {})
    return {name: edit(solution(lab), edits) for name, edits in made.items()}


def _cast(forward: str) -> Edits:
    """The model cast to bf16, and its inputs, where they are no indices."""
    cast = forward.replace("images", "images.bfloat16()")
    return [(MODEL, MODEL + "    model.bfloat16()\n"), (forward, f"{cast}.float()")]


def _own_faults(lab: str) -> dict[str, str]:
    return {name: edit(solution(lab), edits) for name, edits in entry("FAULTS", FAULTS, lab).items()}


def half_fix(lab: str) -> str:
    """A part of the fix: must land between the starter and the solution."""
    return next(iter(halves(lab).values()))


def halves(lab: str) -> dict[str, str]:
    """Parts of the fix, by name: they must land between the starter and the solution."""
    of = base(lab, "solution" if lab in UNMADE else "starter")
    return {name: edit(of, edits) for name, edits in entry("HALVES", HALVES, lab).items()}


def wrongs_on_a_cpu(lab: str) -> list[str]:
    """Names of the fixes that go wrong and show it without a GPU."""
    return [what for what, (_, _, words) in entry("WRONGS", WRONGS, lab).items() if not words.startswith("GPU: ")]


def wrongs(lab: str) -> dict[str, tuple[str, str]]:
    """Fixes that go wrong, by name: the source, and words of the report that name what is wrong with it."""
    made = {}
    for name, (of, edits, words) in entry("WRONGS", WRONGS, lab).items():
        made[name] = edit(base(lab, of), edits), words
    return made


def trains_ahead(lab: str) -> str:
    """A starter whose steps are made by a background thread, ahead of being asked: must gain nothing."""
    source = starter(lab).replace("def train(job):", "def steps(job):")
    return source + (
        "\n\ndef train(job):\n"
        "    import queue, threading\n\n"
        "    done = queue.Queue(maxsize=1000)\n"
        "    threading.Thread(target=lambda: [done.put(loss) for loss in steps(job)], daemon=True).start()\n"
        "    while True:\n"
        "        yield done.get()\n"
    )


def in_a_thread(lab: str) -> str:
    """The control beside `trains_ahead`: each step is made by a background thread too, but only when it is asked for. What
    it gains is the thread's (its memory is allocated otherwise), so a loop that trains ahead must gain no more."""
    source = starter(lab).replace("def train(job):", "def steps(job):")
    return source + (
        "\n\ndef train(job):\n"
        "    import queue, threading\n\n"
        "    asked, done = queue.Queue(), queue.Queue()\n"
        "    loop = steps(job)\n"
        "    threading.Thread(target=lambda: [done.put(next(loop)) for _ in iter(asked.get, None)], daemon=True).start()\n"
        "    while True:\n"
        "        asked.put(True)\n"
        "        yield done.get()\n"
    )


def _fed(lab: str) -> str:
    """The loop whose forms are varied: the starter, with loader workers where it is starved without them, or the solution
    of a lab whose starter is slower still."""
    if lab not in _INPUTS:
        return solution(lab)
    return edit(starter(lab), _FED.get(lab, []))
