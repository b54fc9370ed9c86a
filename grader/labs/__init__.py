"""The labs, in the order of the course."""

from __future__ import annotations

import importlib

from grader.errors import UserError
from grader.labs.lab import AnyLab, Lab

NAMES = (
    "1a_stopwatch",
    "1b_annotate",
    "1c_diagnose",
    "1d_mystery",
    "1e_retest",
    "2a_workers",
    "2b_transfers",
    "2c_transforms",
    "2d_formats",
    "2e_syncs",
    "2f_end_to_end",
    "2g_healthy",
    "2h_retest",
    "2i_host",
    "2j_checkpoint",
    "3a_precision",
    "3b_top_ops",
    "3c_shapes",
    "3d_tiny_ops",
    "3e_compile",
    "3f_attention",
    "3g_leak",
    "3h_fit",
    "3i_triton",
    "3j_communication",
    "3k_healthy",
    "3l_retest",
    "3m_fp16",
    "3n_lengths",
    "3o_sharded",
    "4a_resnet50",
    "4b_nanogpt",
    "4c_unet",
    "4d_trainer",
    "4e_inference",
    "4f_your_repository",
)


def get(name: str) -> AnyLab:
    """The lab called `name`. Raises UserError for an unknown one."""
    if name not in NAMES:
        raise UserError(f"There is no lab {name!r}. The labs are: {', '.join(NAMES)}.")
    return importlib.import_module(f"grader.labs.{name}.lab").LAB


def full(name: str) -> str:
    """The lab's name where its number is given, "2a_workers" for "2a"; everything else as it is."""
    return next((each for each in NAMES if each.partition("_")[0] == name), name)


def loops() -> tuple[str, ...]:
    """The names of those that are training loops to make faster."""
    return tuple(name for name in NAMES if isinstance(get(name), Lab))
