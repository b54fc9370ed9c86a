"""The starter's timeline on this machine. It is in every report, for comparison, and it is always the same: it is recorded once."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from grader import machine
from grader.data.cache import cache_dir
from grader.errors import UserError
from grader.labs.lab import Lab
from grader.result import read_json, write_json
from grader.version import version

ALIKE = 1.5  # a starter whose step takes longer or shorter by more than this is recorded anew; on uneven cores it varies by as much


def timeline(lab: Lab, form: str, step_s: float, steps: int) -> dict[str, Any] | None:
    """What `keep` kept of so many steps of this starter on a machine like this one, where its step took as long; else None."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        kept = read_json(_file(lab, form))
        if (
            kept["of"] == _of(lab, form, steps)
            and 1 / ALIKE < kept["step_s"] / step_s < ALIKE
            and kept["timeline"]["lanes"]
        ):
            return kept["timeline"] | {"step_ns": step_s * 1e9}  # drawn as long as it was now
    return None


def keep(lab: Lab, form: str, step_s: float, steps: int, made: dict[str, Any]) -> None:
    """Keep the timeline of so many profiled steps with the step time, in seconds, that it is for, if the cache can be written."""
    with contextlib.suppress(UserError, OSError, ValueError):
        write_json(_file(lab, form), {"of": _of(lab, form, steps), "step_s": step_s, "timeline": made})


def _file(lab: Lab, form: str) -> Path:
    return cache_dir() / "starters" / f"{lab.name}-{lab.form_key(form).replace(' ', '-')}.json"


def _of(lab: Lab, form: str, steps: int) -> str:
    decides = [lab.starter, repr(lab.forms[form]), machine.key(form), steps, version()]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
