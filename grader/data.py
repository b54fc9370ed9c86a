"""The course's data lives in the top-level folder `data/`; this makes its modules importable as `grader.data.*`."""

import importlib
from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "data")]


def prepare(name: str) -> Path:
    """Make the data set `name` ("images" or "text") where it is missing; returns its folder or file."""
    module, make = {"images": ("images", "make_images"), "text": ("text", "make_corpus")}[name]
    return getattr(importlib.import_module(f"grader.data.{module}"), make)()
