"""What a terminal shows beside text: a progress bar, and colours."""

import os
import sys
from typing import TextIO

from tqdm import tqdm


def bar(count: int, name: str, form: str, smoothing: float = 0.3) -> tqdm:
    """A bar on standard error that leaves nothing behind, with tqdm's options; its postfix begins with ", ". It is disabled where it
    couldn't be drawn, so that its user says the same in lines."""
    return tqdm(total=count, desc=name, bar_format=form, leave=False, disable=not _is_drawn(), smoothing=smoothing)


def coloured(stream: TextIO | None) -> bool:
    """Whether it is a terminal that shows colours, to somebody who hasn't refused them (https://no-color.org)."""
    refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(stream and stream.isatty() and not refused)


def _is_drawn() -> bool:
    """Whether standard error is a terminal that knows its size. On one of no size, such as a container's, tqdm draws nothing."""
    try:
        return all(os.get_terminal_size(sys.stderr.fileno()))
    except (OSError, ValueError, AttributeError):
        return False
