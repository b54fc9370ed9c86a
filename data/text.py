"""A text corpus for every machine: the source of Python's own standard library, as bytes."""

import os
import platform
import sys
import sysconfig
from pathlib import Path

import numpy as np

from grader.data import cache
from grader.errors import UserError

CAP = 16_000_000  # bytes
CHUNK = 65_536  # bytes; about one source file
HELD_OUT = 10  # every tenth chunk
# Installed packages differ from machine to machine; tests repeat themselves and hold odd characters.
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def source_files() -> list[Path]:
    """The standard library's .py files without tests, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in LEFT_OUT]
        # _sysconfigdata*.py is written when Python is built and holds the paths of that machine.
        files += [Path(folder, n) for n in names if n.endswith(".py") and not n.startswith("_sysconfigdata")]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def corpus() -> np.ndarray:
    """The corpus: (n,) uint8, at most CAP bytes, the same on every run of one Python. Kept as a file in the cache.

    Raises UserError where this Python has no source files.
    """
    return np.fromfile(make_corpus(), dtype=np.uint8)


def make_corpus() -> Path:
    """The corpus's file in the cache, made where it is missing. Raises UserError like `corpus`."""
    path = cache.cache_dir() / f"stdlib-{sys.implementation.name}-{platform.python_version()}.bin"
    if cache.lost([path], HELD_OUT * CHUNK):
        text = b"".join(file.read_bytes() for file in source_files())[:CAP]
        if len(text) < HELD_OUT * CHUNK:
            raise UserError(
                f"this Python has almost no standard library source in {sysconfig.get_path('stdlib')} "
                f"({len(text)} bytes), and the text corpus is made of it. Use a Python from conda or python.org."
            )
        try:
            with cache.whole_file(path) as temporary:
                temporary.write_bytes(text)
        except OSError as error:
            raise UserError(
                f"cannot write the text corpus to {path}: {error.strerror}. It takes {len(text) // 1_000_000} MB; "
                "free some space or set GRADER_CACHE to another folder."
            ) from error
    return path


def split(text: np.ndarray, chunk: int = CHUNK) -> tuple[np.ndarray, np.ndarray]:
    """(train, held_out), both uint8: every tenth chunk of `chunk` bytes is held out.

    A corpus changes from front to back, so its last tenth would be another kind of text than the rest.
    """
    if len(text) < HELD_OUT * chunk:
        raise ValueError(f"{len(text)} bytes are too few to hold out every tenth chunk of {chunk} bytes")
    chunks = [text[start : start + chunk] for start in range(0, len(text), chunk)]
    held_out = chunks[HELD_OUT - 1 :: HELD_OUT]
    train = [part for index, part in enumerate(chunks) if index % HELD_OUT != HELD_OUT - 1]
    return np.concatenate(train), np.concatenate(held_out)
