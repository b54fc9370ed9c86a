"""Source lines of what a trace recorded, from the Python frames around it (traces made `with_stack=True`)."""

import re
import sys
from functools import cached_property

import numpy as np

from grader.trace.columns import Trace
from grader.trace.events import PYTHON
from grader.trace.nesting import alike, distinct

FRAME = re.compile(r"(.+)\((\d+)\): (.+)", re.DOTALL)
CALL = re.compile(r"(.+):(\d+)", re.DOTALL)
# Whose lines nobody looks for when asking what a training loop spends its time on. The profiler leaves the folders of
# sys.path out of a file's name, so packages are known by the first part of the name.
LIBRARIES = frozenset(sys.stdlib_module_names) - {"code", "profile", "cProfile", "test", "trace", "this"} | {
    *("torch", "torchvision", "torchaudio", "torchtext", "torchdata", "functorch", "triton", "numpy", "scipy", "PIL"),
    *("transformers", "accelerate", "datasets", "diffusers", "peft", "timm", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "deepspeed", "apex", "xformers", "flash_attn", "einops", "tqdm", "IPython", "ipykernel"),
    *("tornado", "traitlets", "nbclient", "ignite", "fastai", "megatron", "transformer_engine", "torch_optimizer"),
}
LIBRARY_FOLDER = re.compile(r"/(site|dist)-packages/|/lib/python3|torchinductor_|\.zip/")


class Lines:
    """Source lines of events, from the Python frames around them.

    Newer releases record the line of each call, older ones only the line where a function begins. A frame's own
    operators (`x @ w`) are called by no Python function, so for them it is the function's first line in both."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.frames = trace.nesting(np.flatnonzero(trace.category == PYTHON))
        self.known: dict[tuple[str, str | None], int] = {}  # (line, function) -> its number
        # By frame, filled in as far as it is asked for; the last entry stands for no frame.
        size = len(trace) + 1 if len(self.frames.indices) else 1
        self.line = np.full(size, -1)  # number of its line, -1 where it is a library's
        self.caller = np.full(size, -1)  # and then the frame that called it
        self.seen = np.zeros(size, bool)
        self.seen[-1] = True

    @cached_property
    def by_id(self) -> tuple[np.ndarray, np.ndarray]:
        """Frames in order of their id, and the ids."""
        frames = np.flatnonzero((self.trace.category == PYTHON) & (self.trace.python >= 0))
        frames = frames[np.argsort(self.trace.python[frames], kind="stable")]
        return frames, self.trace.python[frames]

    def of(self, events: np.ndarray) -> np.ndarray:
        """For each event the number of its line, -1 without one."""
        anew = distinct(events, len(self.trace))
        frame = self.frames.around(anew)
        new = distinct(frame, len(self.seen))
        while len(new := new[~self.seen[new]]):  # outwards, each frame once, until a line is found
            self.seen[new] = True
            caller = self._callers(new)
            self.line[new] = self._lines(new, caller)
            self.caller[new] = np.where(self.line[new] < 0, caller, -1)
            new = distinct(caller[self.line[new] < 0], len(self.seen))
        while (further := self.caller[frame] >= 0).any():
            frame = np.where(further, self.caller[frame], frame)
        return self.line[frame][np.searchsorted(anew, events)]

    def _callers(self, frames: np.ndarray) -> np.ndarray:
        """The frame that called each, by its recorded id, else by time, or -1. A caller starts earlier, so no chain is a circle."""
        callers = self.frames.around(frames)
        ordered, ids = self.by_id
        if len(ordered):
            parent = self.trace.parent[frames]
            at = np.minimum(np.searchsorted(ids, parent), len(ids) - 1)
            callers = np.where((parent >= 0) & (ids[at] == parent) & (ordered[at] < frames), ordered[at], callers)
        return callers

    def _lines(self, frames: np.ndarray, callers: np.ndarray) -> np.ndarray:
        """`_line` of each, asked once for frames that are alike."""
        name = self.trace.name
        kind = alike(name[frames], self.trace.called_from[frames], np.where(callers >= 0, name[callers], -1))
        _, first = np.unique(kind, return_index=True)
        return np.array([self._line(frames[at], callers[at]) for at in first.tolist()], np.int64)[kind]

    def _line(self, frame: int, caller: int) -> int:
        """The line that this frame tells: its own if it is not a library's, else the one it was called from."""
        if own := own_line(self.trace.names[self.trace.name[frame]]):
            return self.known.setdefault((f"{own[1]}:{own[2]}", own[3]), len(self.known))
        text = int(self.trace.called_from[frame])
        call = CALL.fullmatch(self.trace.texts[text]) if text >= 0 else None
        if call and not _of_library(call[1]):
            above = FRAME.fullmatch(self.trace.names[self.trace.name[caller]]) if caller >= 0 else None
            return self.known.setdefault((call[0], above and above[3]), len(self.known))
        return -1


def own_line(frame: str) -> re.Match[str] | None:
    """File, line and function of a Python frame, "train.py(41): forward"; None of a library's, and of what is written in C."""
    found = FRAME.fullmatch(frame)
    return None if found is None or _of_library(found[1]) else found


def _of_library(file: str) -> bool:
    """Whether nobody would look for a line of this file. "<frozen runpy>", "<string>" are no files at all."""
    first = file.replace("\\", "/").split("/")[0].removesuffix(".py")
    return first in LIBRARIES or file.startswith("<") or LIBRARY_FOLDER.search(file) is not None


def by_line(trace: Trace, events: np.ndarray) -> dict[str, int]:
    """How many of these events each source line made, most first: {"train.py:41": 12, ...}. A trace without stacks gives none."""
    if not len(events) or not (trace.category == PYTHON).any():
        return {}
    lines = Lines(trace)
    numbers = lines.of(events)
    names = list(lines.known)
    counts = np.bincount(numbers[numbers >= 0], minlength=len(names))
    return {names[i][0]: int(counts[i]) for i in np.argsort(-counts, kind="stable") if counts[i]}
