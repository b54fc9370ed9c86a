"""Satellite tiles for every machine: arrays of bytes, made in seconds, nothing to download.

Ten classes, each with a coarse pattern of its own that a tile shows faintly, under noise; one label in five is wrong. So the
loss falls slowly and never to zero, and two runs can be compared by it. A tile depends on its index and shape only."""

import json
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from tqdm import tqdm

from grader.data import cache
from grader.errors import UserError

VERSION = 1  # of the generator: raise it with every change that changes bytes
CLASSES = 10
HELD_OUT = 1 << 24  # tiles from this index on are for evaluation: no data set reaches it
WRONG = 0.2  # share of the labels that are drawn at random
DATABASE, DATABASE_COUNT = "tiles.sqlite", 4000
FILES = 20_000
FILE_SIZE = 64  # side of the tiles that are files of their own


def label(index: int) -> int:
    rng = np.random.default_rng((VERSION, 1, index))
    return int(rng.integers(CLASSES)) if rng.uniform() < WRONG else index % CLASSES


@lru_cache(maxsize=4)
def patterns(bands: int, size: int) -> np.ndarray:
    """(CLASSES, bands, size, size) int16, about -30 to 30: eight by eight fields, each with one value."""
    coarse = np.random.default_rng(VERSION).normal(0, 14, size=(CLASSES, bands, 8, 8)).round().astype(np.int16)
    return coarse.repeat(size // 8, 2).repeat(size // 8, 3)


def draw(index: int, bands: int, size: int) -> np.ndarray:
    """Tile number `index`: (bands, size, size) uint8. `size` is a multiple of 8."""
    rng = np.random.default_rng((VERSION, 0, index))
    noise = np.frombuffer(rng.bytes(bands * size * size), np.uint8).reshape(bands, size, size)
    share = rng.uniform(0.2, 1)
    tile = (noise >> 1) + (32 + share * patterns(bands, size)[index % CLASSES]).astype(np.int16)
    return tile.clip(0, 255).astype(np.uint8)


def make_database(size: int, count: int = DATABASE_COUNT, dest: Path | None = None) -> Path:
    """A folder with one SQLite file of `count` tiles of three bands, `size` x `size`: table tiles(id, pixels, label), pixels
    the tile's bytes. Made where it is missing. Raises UserError where it cannot be written."""
    dest = dest or cache.cache_dir() / f"tiles-{size}"
    path = dest / DATABASE

    def make() -> None:
        with cache.whole_file(path) as temporary:
            database = sqlite3.connect(temporary)
            database.execute("CREATE TABLE tiles (id INTEGER PRIMARY KEY, pixels BLOB, label INTEGER)")
            rows = ((i, draw(i, 3, size).tobytes(), label(i)) for i in _counted(count, f"tiles of {size} x {size}"))
            database.executemany("INSERT INTO tiles VALUES (?, ?, ?)", rows)
            database.commit()
            database.close()

    return _made(dest, {"version": VERSION, "size": size, "count": count}, make, [path], 3 * size * size * count)


def make_files(count: int = FILES, dest: Path | None = None) -> Path:
    """A folder with `count` files of one tile each (`file_names`), three bands of FILE_SIZE x FILE_SIZE as plain bytes. Made
    where it is missing. Raises UserError where it cannot be written."""
    dest = dest or cache.cache_dir() / "tile-files"

    def make() -> None:
        for index, name in zip(_counted(count, "small files"), file_names(count), strict=True):
            path = cache.make_dir((dest / name).parent) / Path(name).name
            if not path.exists():
                with cache.whole_file(path) as temporary:
                    temporary.write_bytes(draw(index, 3, FILE_SIZE).tobytes())

    files = [dest / name for name in file_names(count)]
    return _made(dest, {"version": VERSION, "size": FILE_SIZE, "count": count}, make, files, 3 * FILE_SIZE * FILE_SIZE)


def file_names(count: int) -> list[str]:
    return [f"{index // 200:03d}/{index:06d}.rgb" for index in range(count)]


def _made(dest: Path, manifest: dict, make: Callable[[], None], files: list[Path], least: int) -> Path:
    """`dest`, filled by `make` unless its manifest, which is written last, says that it is, and its files have `least` bytes or more."""
    dest = Path(dest).absolute()
    marker = dest / "manifest.json"
    try:
        if marker.exists():  # of another version none is kept
            if not (lost := cache.lost(files, least) if cache.is_made(marker, manifest) else files):
                return dest
            for path in lost:
                path.unlink(missing_ok=True)
        cache.make_dir(dest)
        make()
        with cache.whole_file(marker) as temporary:
            temporary.write_text(json.dumps(manifest))
    except (OSError, ValueError, sqlite3.Error) as error:
        raise UserError(
            f"cannot write the tiles to {dest}: {error}. They take up to 250 MB; free some space, delete a damaged folder "
            "or set GRADER_CACHE to another one."
        ) from error
    return dest


def _counted(count: int, what: str) -> tqdm:
    return tqdm(range(count), f"making {count:,} {what}", unit="tile", leave=False)
