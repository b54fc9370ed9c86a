"""Traces and timelines as learners get them: without the answers, as a file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from grader.frontends import attempts
from grader.frontends.notebook.note import Note


def without_causes(timeline: dict[str, Any]) -> dict[str, Any]:
    """A timeline that shows when the GPU is idle, and not why."""
    use = [
        each | {"share": {part: share for part, share in each["share"].items() if not part.startswith("idle_")}}
        for each in timeline["use"]
    ]
    return timeline | {"gaps": [], "use": use}


def save_trace(target: Path, data: bytes) -> Note:
    """Write a trace for another viewer, whole or not at all, and say so."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        return Note("Not saved", [f"The trace is not kept: {attempts.unwritten(error)}"])
    return Note("Saved", [f"{target.name} is in this folder. Open it at https://ui.perfetto.dev."])
