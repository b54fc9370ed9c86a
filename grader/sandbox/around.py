"""A right to read a folder, but for some of what lies in it. Standard library only: a child confines itself with it."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator

LIST = 8  # Landlock's right to read the names in a folder


def around(rights: Iterable[tuple[str, int]], kept: Collection[str]) -> Iterator[tuple[str, int]]:
    """The same rights without what is in the folders `kept` (real paths), whose names can still be listed. Landlock can only allow,
    with all that is below: so what lies beside and above of `kept` is allowed one by one."""
    seen: set[str] = set()
    for path, allowed in rights:
        yield from _around(path, allowed, kept, seen)


def _around(path: str, allowed: int, kept: Collection[str], seen: set[str]) -> Iterator[tuple[str, int]]:
    real = os.path.realpath(path)
    if any(_is_below(real, each) for each in kept):
        return
    if not any(_is_below(each, real) for each in kept):
        yield path, allowed
        return
    yield path, allowed & LIST
    if allowed == allowed & LIST or real in seen:
        return
    seen.add(real)  # a link leads back up: lib64 to lib
    with contextlib.suppress(OSError):
        for name in os.listdir(real):
            yield from _around(f"{real}/{name}", allowed, kept, seen)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
