"""The course's data lives in a folder of its own (`paths.DATA`); this makes its modules importable as `grader.data.*`."""

import importlib
from pathlib import Path

from grader.paths import DATA

__path__ = [str(DATA)]


def prepare(name: str) -> Path:
    """Make a data set where it is missing; returns its folder or file. name: "images", "images 10000" for so many of them, "text",
    "tile files", "tiles 64" for a database of tiles with that side, "pictures 64" for small pictures, "tokens" for as many tokens of
    GPT-2's vocabulary as matter on a GPU, or "tokens 509" for those of one pass over the text, with that vocabulary."""
    kind, _, size = name.partition(" ")
    if kind == "tiles":
        return importlib.import_module("grader.data.tiles").make_database(int(size))
    if kind == "images" and size:
        return importlib.import_module("grader.data.images").make_images(count=int(size))
    if kind == "pictures":
        return importlib.import_module("grader.data.pictures").make_pictures(int(size))
    if kind == "tokens":
        tokens = importlib.import_module("grader.data.tokens")
        return tokens.make_tokens(int(size)) if size else tokens.make_tokens(count=tokens.TOKENS)
    module, make = {
        "images": ("images", "make_images"),
        "text": ("text", "make_corpus"),
        "tile": ("tiles", "make_files"),
    }[kind]
    return getattr(importlib.import_module(f"grader.data.{module}"), make)()
