"""Small pictures in one array: thumbnails of the generated image set, made once. train.npy and held_out.npy hold
(count, size, size, 3) uint8."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from grader.data import cache
from grader.data.images import COUNT, generated
from grader.data.images import VERSION as IMAGES
from grader.errors import UserError

VERSION = 1  # raise it with every change that changes bytes
TRAIN, HELD_OUT = "train.npy", "held_out.npy"


def make_pictures(size: int, dest: Path | None = None, images: Path | None = None, count: int = COUNT) -> Path:
    """A folder with the pictures of `size` x `size` pixels; made where they are missing, from the set of `count` images in
    `images` (made first where it is missing too; by default it is the user's). Raises UserError where it cannot be written."""
    dest = Path(dest or cache.cache_dir() / f"pictures-{size}").absolute()
    marker, manifest = dest / "manifest.json", {"version": VERSION, "images": IMAGES, "size": size, "count": count}
    bytes_of = {TRAIN: 3 * size * size * (count - count // 10), HELD_OUT: 3 * size * size * (count // 10)}
    try:
        if cache.is_made(marker, manifest) and not any(
            cache.lost([dest / name], least) for name, least in bytes_of.items()
        ):
            return dest
        cache.make_dir(dest)
        sets = generated(images, count)
        for name, files in ((TRAIN, sets.train.files), (HELD_OUT, sets.held_out.files)):
            with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
                made = pool.map(lambda file: thumbnail(file, size), files)
                pictures = np.stack(list(tqdm(made, "making small pictures", len(files), leave=False)))
            with cache.whole_file(dest / name) as temporary, temporary.open("wb") as file:
                np.save(file, pictures)
        with cache.whole_file(marker) as temporary:
            temporary.write_text(json.dumps(manifest))
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot write small pictures to {dest}: {error}. They take up to 60 MB; free some space, delete a damaged "
            "folder or set GRADER_CACHE to another one."
        ) from error
    return dest


def thumbnail(file: Path, size: int) -> np.ndarray:
    """The centre of an image: (size, size, 3) uint8."""
    with Image.open(file) as image:
        image.draft("RGB", (2 * size, 2 * size))  # libjpeg decodes at 1/2, 1/4, 1/8 of the size
        return np.asarray(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR))
