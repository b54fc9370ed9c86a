"""In which form a lab is graded here, what is missing for that, on which cores, with which data, and how long it is measured."""

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from grader import machine
from grader.data import prepare
from grader.devices import NO_MARKS, pretence
from grader.errors import UserError
from grader.labs.lab import AnyForm, AnyLab, Form, Growth, Lab
from grader.measure.blocks import QUICK, Plan
from grader.submission import Submission

Measured = TypeVar("Measured")
Kind = TypeVar("Kind", bound=AnyLab)

HELD_BY_OTHERS = "Close the programs that hold the rest."
QUIET = 0.01  # a form's noise, the relative sd of a pair
NEVER_MEASURED = "This form of the lab was never measured on a GPU: its memory, tolerances and target are guesses. The points are no marks."
NO_POINTS = "No points are given for what was not measured."
NEEDS_GPU = f"It needs an NVIDIA GPU. {NO_POINTS}"


def choose_device(device: str) -> str:
    """ "cuda" or "cpu" for `device` "auto", "cuda" or "cpu". Raises UserError where "cuda" is asked for and missing."""
    if device == "cuda" and not machine.has_gpu():
        raise UserError(
            "There is no NVIDIA GPU here (NVML finds none). Use --device auto or cpu, or a machine with one."
        )
    if device not in ("auto", "cuda", "cpu"):
        raise UserError(f"Unknown device {device!r}: use auto, cpu or cuda.")
    for_the_cpu = machine.torch_is_for_the_cpu()
    if device == "cuda" and for_the_cpu:
        raise UserError(
            "The torch that is installed here is built for the CPU alone. Install one for your GPU, or use --device cpu."
        )
    return "cuda" if device == "cuda" or (device == "auto" and machine.has_gpu() and not for_the_cpu) else "cpu"


def lacking(lab: AnyLab, form_name: str) -> str:
    """Why a lab cannot be measured here in this form, in words; '' where it can."""
    no_form = "" if form_name in lab.forms else NEEDS_GPU
    return too_few_devices(lab, form_name) or missing_packages(lab) or too_little_memory(lab, form_name) or no_form


def choose_form(lab: AnyLab, device: str) -> str:
    """The form in which a lab is graded: "cuda", "cpu", or "traces" where nothing is measured. With "auto" a lab that needs more
    GPUs than there are takes the CPU."""
    if list(lab.forms) == ["traces"] or (device == "traces" and device in lab.forms):
        return "traces"
    chosen = choose_device(device)
    if chosen not in lab.forms and "traces" in lab.forms:
        return "traces"
    return "cpu" if device == "auto" and too_few_devices(lab, chosen) else chosen


def no_marks(lab: AnyLab, form_name: str) -> list[str]:
    """Why the points of a grade in this form are no marks, whatever it finds."""
    form = lab.forms.get(form_name)
    never = [NEVER_MEASURED] if form and not form.measured else []
    return never + ([NO_MARKS] if form_name == "cuda" and pretence() else [])


def too_few_devices(lab: AnyLab, form_name: str) -> str:
    """Why a lab cannot be measured in this form for want of GPUs or cores, in words; '' where it can."""
    needed = lab.ranks(form_name)
    if form_name == "cuda" and needed > max(1, len(machine.gpus())):
        return needs_gpu(lab)
    if machine.cores() < needed:
        return f"{needed} processes train together, and there are {machine.cores()} cores for them here. {NO_POINTS}"
    return ""


def missing_packages(lab: AnyLab) -> str:
    """Why a lab cannot be measured for want of packages, and how to install them; '' where all are there."""
    missing = [name for name in lab.packages if not importlib.util.find_spec(name)]
    if not missing:
        return ""
    return f"It needs packages that are not installed here. Run `pip install {' '.join(missing)}`. {NO_POINTS}"


def too_little_memory(lab: AnyLab, form_name: str) -> str:
    """Why a lab cannot be measured for want of free GPU memory, in words; '' where there is enough."""
    state = _gpu(lab, form_name)
    if state is None or _that_fits(lab, state.free_bytes):
        return ""
    needed = min(form.gpu_memory for form in _to_choose(lab))
    others = f" {HELD_BY_OTHERS}" if state.total_bytes >= needed else ""
    untried = [form for form in lab.smaller if not form.measured and form.gpu_memory <= state.free_bytes]
    why = f" Its {untried[0].size} form would fit, but was not measured on any GPU yet." if untried else ""
    return f"It needs {needed / 1e9:.3g} GB of free GPU memory. {_free(state)}{others}{why} {NO_POINTS}"


def _free(state: machine.GpuState) -> str:
    return f"{state.free_bytes / 1e9:.1f} GB of {state.total_bytes / 1e9:.1f} GB are free here."


def fitted(lab: Kind, form_name: str) -> tuple[Kind, str]:
    """The lab with the largest of its GPU forms that fits into the memory that is free and was measured on a GPU; and why it is
    not the largest of all, in words. The lab as it is where none fits, or nothing is measured on a GPU."""
    state = _gpu(lab, form_name)
    form = _that_fits(lab, state.free_bytes) if state else None
    if not state or not form or form is lab.forms["cuda"]:
        return lab, ""
    full = lab.gpu_forms[0].gpu_memory
    return lab.sized(form.size), (
        f"In its {form.size} form, which needs {form.gpu_memory / 1e9:.3g} GB of free GPU memory. The full form needs {full / 1e9:.3g} GB. "
        f"{_free(state)}"
    )


def _gpu(lab: AnyLab, form_name: str) -> machine.GpuState | None:
    form = lab.forms.get(form_name)
    return machine.gpu_state(form.ranks) if form and form_name == "cuda" and lab.runs_code else None


def _to_choose(lab: AnyLab) -> list[AnyForm]:
    """A smaller form that was never measured is a guess: honest work could lose to it."""
    return [form for n, form in enumerate(lab.gpu_forms) if n == 0 or form.measured]


def _that_fits(lab: AnyLab, free_bytes: int) -> AnyForm | None:
    return next((form for form in _to_choose(lab) if form.gpu_memory <= free_bytes), None)


def needs_gpu(lab: AnyLab) -> str:
    """What a check that was not measured for want of GPUs says."""
    needed = lab.ranks("cuda")
    if needed == 1:
        return NEEDS_GPU
    return f"It needs {needed} NVIDIA GPUs in one machine. {NO_POINTS}"


def own_cores(lab: AnyLab, device: str) -> contextlib.AbstractContextManager[None]:
    """This thread, and all that it starts, on the cores that a grade of the lab has: see `machine.share`."""
    form_name = choose_form(lab, device)
    return machine.own_cores(lab.ranks(form_name) if form_name == "cuda" else 0)


def on_own_cores(measures: Callable[..., Measured]) -> Callable[..., Measured]:
    """A function that measures a submission, on the cores of its own grade."""

    @functools.wraps(measures)
    def on_them(submission: Submission, lab: AnyLab, *, device: str = "auto", **more: Any) -> Measured:
        with own_cores(lab, device):
            return measures(submission, lab, device=device, **more)

    return on_them


def prepared(form: Form) -> tuple[dict[str, Any], list[Path]]:
    """Make the form's data where they are missing. Returns the workload's options and the paths it may read."""
    options = dict(form.options)
    if not form.data:
        return options, []
    folder = prepare(form.data)
    if form.data != "text":
        options["folder"] = str(folder)
    return options, [folder]


def planned(lab: AnyLab, form: Any, quick: bool) -> Plan:
    """How much a grade measures in this form."""
    if not isinstance(form, Form):
        return QUICK if quick else Plan()
    if not quick:
        return Plan(block_s=form.block_s)
    # a cache that fills once is told from a leak by three stretches, not by two
    if isinstance(lab, Lab) and isinstance(lab.memory, Growth):
        return replace(QUICK, min_pairs=3)
    return replace(QUICK, block_s=0.4) if form.noise <= QUIET else QUICK  # where blocks hardly differ, short ones do
