"""Whether this machine is fit to measure on: before a grade, before each timed block, and after a loop ran out of memory."""

from typing import Any

from grader import machine
from grader.sandbox.probe import confinement

FREE_MAIN_MEMORY = 2 << 30
# 2f's starter, whose files lie on a local disk, was no slower with 0.15 GB left (2 cores of an AMD EPYC); others' may
LEFT_MAIN_MEMORY = 1 << 30
TAKEN_MEMORY = 1 << 30  # bytes of GPU memory that a neighbour must have taken to be to blame

UNCONFINED = (
    "This machine can't keep a submission away from files that are not its own, so no marks are given here. `grader doctor` "
    "says what is open. Use Linux 5.13 or newer with Landlock enabled. For code that you trust you can allow it, with "
    "--allow-unconfined for grader, or with --MeasuredGrade.allow_unconfined=True for nbgrader. Your own "
    "working copy needs neither."
)
OPEN_FILES = (
    "Graded without confined files, because this machine can't confine them. The submission could read the solutions and change "
    "results. That matters for marks, not for your own learning."
)


class Disturbed(Exception):
    """Someone else uses the machine: what is measured now would say nothing about the submission."""


def confined(allow_unconfined: bool) -> dict[str, Any]:
    """What a confined process is kept away from here. Raises RuntimeError where files are open, unless that is allowed."""
    kept_away = confinement().to_dict()
    if not kept_away["files"] and not allow_unconfined:
        raise RuntimeError(UNCONFINED)
    return kept_away


def machine_is_free(form_name: str, ranks: int = 1) -> int:
    """Bytes of GPU memory that are free, 0 without a GPU. Raises Disturbed where this machine is not fit to measure on now."""
    free = machine.free_memory()
    if free < FREE_MAIN_MEMORY:
        raise Disturbed(f"only {free / 1e9:.1f} GB of memory are free, and {FREE_MAIN_MEMORY / 1e9:.0f} are needed.")
    if form_name != "cuda":
        return 0
    if not machine.wait_idle(8.0, ranks):
        raise Disturbed("another program keeps this GPU busy.")
    state = machine.gpu_state(ranks)
    if state is None:
        return 0
    if state.throttling:
        raise Disturbed("the GPU throttles its clocks because it is too hot.")
    return state.free_bytes


def before_block(form_name: str, ranks: int) -> None:
    """Both arms are frozen: whatever runs on the GPU now is somebody else's, or work queued ahead. Raises Disturbed then, and
    where so little memory is left that the system forgets what it keeps of files."""
    left = machine.free_memory()
    if left < LEFT_MAIN_MEMORY:
        raise Disturbed(
            f"only {left / 1e9:.1f} GB of memory are left, and {LEFT_MAIN_MEMORY / 1e9:.0f} are needed. With "
            "less, files are read from the disk again."
        )
    if form_name == "cuda" and not machine.wait_idle(gpus=ranks):
        raise Disturbed(
            "the GPU was busy while both loops were stopped. Either another program used it, or a loop had "
            "queued work in advance."
        )


def memory_was_taken(free_before: int, ranks: int) -> str:
    """Why a loop ran out of GPU memory where another program took it, in words; '' where none did. free_before: bytes, see
    `machine_is_free`. Called when the grade's own processes are gone."""
    state = machine.gpu_state(ranks) if free_before else None
    if state is None or free_before - state.free_bytes < TAKEN_MEMORY:
        return ""
    return (
        f"another program took {(free_before - state.free_bytes) / 1e9:.1f} GB of this GPU's memory during the grade, "
        "and it ran out."
    )
