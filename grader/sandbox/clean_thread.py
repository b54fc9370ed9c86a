"""Where the harness does its own work in the learner's process."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch


def in_clean_thread(function: Callable[[], Any]) -> Any:
    """Call `function` in a new thread. Autocast, grad mode, streams, function modes and the default device are all
    per thread, so whatever the learner's loop leaves switched on around its yield does not reach the harness."""
    box: list[Any] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1  # a new thread begins on the first one

    def call() -> None:
        try:
            torch.cuda.set_device(device)  # -1 changes nothing
            with torch.no_grad():
                box.append((True, function()))
        except BaseException as error:
            box.append((False, error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    worked, value = box[0]
    if not worked:
        raise value
    return value


def read(numbers: list[torch.Tensor], device: torch.device) -> list[float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return torch.stack([number.float().to(device) for number in numbers]).tolist()


def finite(answer: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: say null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in answer.items()}
