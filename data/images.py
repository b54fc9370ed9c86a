"""An image set for every machine: JPEG files like ImageNet's in size, made in under a minute, nothing to download.

    python -m grader.data.images [DEST] [--count N] [--seed S]

Ten classes of textures. A class sets where three cues of the picture are drawn from - orientation, colour, and how
regular the pattern is - and the ranges of neighbouring classes overlap, so no model gets every image right and the loss
falls slowly enough to compare two runs by it. All other properties are drawn without regard to the class. The
cues are coarse enough to be seen in a 32x32 thumbnail, and a horizontal flip keeps the class.
"""

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops
from tqdm import tqdm

from grader.data import cache
from grader.errors import UserError
from grader.paths import with_this_package

COUNT = 4000
PART = 1000  # images that are worth a process of their own
VERSION = 1  # of the generator: raise it with every change that changes bytes
CLASSES = [f"{pattern}_{angle:02d}" for pattern in ("stripes", "blobs") for angle in (0, 22, 45, 67, 90)]

SHRINK = 4  # textures are computed at a quarter of the size: wavelengths of 48 px and more do not need all pixels
ANGLE_SD = 8  # degrees; neighbouring classes are 22 apart
HUE_SD = 0.08  # of the colour circle; neighbouring classes are 0.1 apart
GAUSSIAN = np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)])  # a random byte -> N(0, 1)


class Part(NamedTuple):
    """Part `first` of `parts` (from 0) of a set that several processes make."""

    first: int
    parts: int


@dataclass
class ImageSet:
    """Image files with their labels. files: n paths; labels: (n,) int64; classes: their names, by label."""

    files: list[Path]
    labels: np.ndarray
    classes: list[str]

    def __len__(self) -> int:
        return len(self.files)


@dataclass
class ImageSets:
    """A data set: the images to train on, and those held out. Both have the same classes."""

    train: ImageSet
    held_out: ImageSet


def generated(dest: Path | None = None, count: int = COUNT, seed: int = 0, progress: bool = True) -> ImageSets:
    """The generated image set; made first where it is not there yet (`make_images`)."""
    return stored(make_images(dest, count, seed, progress))


def stored(dest: Path) -> ImageSets:
    """The generated image set, of whatever count, that lies complete in `dest`."""
    count = json.loads((dest / "manifest.json").read_text())["count"]
    files = [dest / name for name in _names(count)]
    labels = np.arange(count, dtype=np.int64) % len(CLASSES)
    cut = _train_count(count)
    return ImageSets(ImageSet(files[:cut], labels[:cut], CLASSES), ImageSet(files[cut:], labels[cut:], CLASSES))


def make_images(
    dest: Path | None = None, count: int = COUNT, seed: int = 0, progress: bool = True, part: Part | None = None
) -> Path:
    """Make `count` JPEG files in `dest`/train/<class> and, the last tenth, in `dest`/val/<class>; return `dest`.

    An image depends on (seed, index) and the builds of numpy and Pillow only. Files that are there are kept, so an
    interrupted call is taken up where it stopped, and several processes may make the same set at once.
    `manifest.json`, written last, marks a complete set: then only files that were lost are made again. part: this process is one of several
    that make the set together, and begins with every so-manieth image; only the first of them marks it. Large sets are
    made so: see `_helpers`. Raises UserError where `dest` holds something else or cannot be written.
    """
    if count < 1:
        raise UserError(f"count is {count}: ask for at least one image.")
    if dest is None:
        dest = cache.cache_dir() / ("images" if (count, seed) == (COUNT, 0) else f"images-{count}-seed{seed}")
    dest = Path(dest).absolute()
    manifest = {"version": VERSION, "seed": seed, "count": count, "classes": CLASSES}
    try:
        if _is_complete(dest, manifest):
            if not (lost := cache.lost(dest / name for name in _names(count))):
                return dest
            _open_again(dest, manifest, lost)
        mark = _claim(dest, manifest)
        for split in ("train", "val"):
            for name in CLASSES:
                cache.make_dir(dest / split / name)
        missing = [(index, dest / name) for index, name in enumerate(_names(count)) if not (dest / name).exists()]
        parts = 1 if part else 1 + min((os.cpu_count() or 1) // 2 - 1, len(missing) // PART)
        if parts > 1:
            part = Part(0, parts)
        if part:
            missing.sort(key=lambda job: (job[0] - part.first) % part.parts)
        else:
            # Processes that make the same set at once start at different places, and so share the work.
            start = secrets.randbelow(count)
            missing = [job for job in missing if job[0] >= start] + [job for job in missing if job[0] < start]
        bar = tqdm(total=count, initial=count - len(missing), desc="making images", unit="image", disable=not progress)
        with bar, _helpers(dest, count, seed, parts):
            _in_threads(lambda job: _write_image(seed, *job), missing, done=bar.update)
        if part and part.first:  # whoever started this one says that the set is complete, and may end it at any time
            return dest
        with cache.whole_file(dest / "manifest.json") as temporary:
            temporary.write_text(json.dumps(manifest, indent=1))
        mark.unlink(missing_ok=True)
        for leftover in dest.glob(f"*/*/.*{cache.TEMPORARY}"):  # of processes that were killed
            leftover.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the image set in {dest}: {error.strerror or error}. "
            f"It takes about {count * 55 // 1000 + 1} MB; free some space or choose another folder "
            "(GRADER_CACHE), then run this again: it goes on where it stopped."
        ) from error
    return dest


def draw(seed: int, index: int) -> tuple[Image.Image, int]:
    """Image number `index` of the set (RGB, about 500x375) and the JPEG quality (85 to 90) to save it with."""
    rng = np.random.default_rng((seed, index))
    label = index % len(CLASSES)
    width, height = int(rng.integers(400, 601)), int(rng.integers(320, 431))
    y, x = np.ogrid[0:height:SHRINK, 0:width:SHRINK]
    y, x = y.astype(np.float32), x.astype(np.float32)

    # What the class decides. Mirrored angles are alike, so that a horizontal flip is a fair augmentation.
    angle = np.radians(rng.normal(22.5 * (label % 5), ANGLE_SD)) * rng.choice((-1, 1))
    irregular = rng.uniform(0.05, 0.4) if label < 5 else rng.uniform(0.3, 0.9)
    hue = rng.normal(0.3 * label, HUE_SD)

    # What it does not: the second colour, contrast, scale, things in front, light, grain.
    pattern = _waves(rng, x, y, angle, irregular, wavelength=np.exp(rng.uniform(np.log(48), np.log(150))))
    picture = _two_colours(rng, pattern, hue)
    for _ in range(rng.integers(1, 5)):
        other = _waves(rng, x, y, rng.uniform(0, np.pi), rng.uniform(0.05, 1.0), rng.uniform(30, 200))
        mask = _ellipse(rng, x / width, y / height)[..., None]
        picture += mask * (_two_colours(rng, other, rng.uniform()) - picture)
    picture *= _light(rng, x / width, y / height)[..., None]
    small = Image.fromarray((picture.clip(0, 1) * 255).astype(np.uint8))
    image = small.resize((width, height), Image.Resampling.BICUBIC)

    for zoom, strongest in ((1, 9), (3, 22)):
        noise = _noise(rng, (width, height), zoom, rng.uniform(0.2, 1) * strongest)
        image = ImageChops.add(image, noise, offset=-128)
    return image, int(rng.integers(85, 91))


def _waves(rng, x, y, angle: float, irregular: float, wavelength: float) -> np.ndarray:
    """Six plane waves around `angle` (radians): (h, w) float32, sd 1. `irregular` 0 makes stripes, 1 makes blobs."""
    angles = angle + irregular * rng.normal(size=6)
    frequencies = 2 * np.pi / wavelength * np.exp(0.3 * irregular * rng.normal(size=6))
    phases = rng.uniform(0, 2 * np.pi, size=6)
    total = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.float32)
    for a, f, phase in zip(angles, frequencies, phases, strict=True):
        total += np.sin(np.float32(f * np.cos(a)) * x + np.float32(f * np.sin(a)) * y + np.float32(phase))
    return total / (total.std() + np.float32(1e-3))


def _two_colours(rng, pattern: np.ndarray, hue: float) -> np.ndarray:
    """Colour a pattern from any pale colour to one with `hue` (1 is the full circle): (h, w, 3) float32 in 0..1."""
    back, front = _rgb(rng, rng.uniform(), 0, 0.4), _rgb(rng, hue, 0.3, 0.8)
    share = 0.5 + 0.5 * np.tanh(np.float32(rng.uniform(0.5, 2.5)) * pattern)
    return back + share[..., None] * (front - back)


def _rgb(rng, hue: float, palest: float, strongest: float) -> np.ndarray:
    """A colour with this hue, a saturation in these bounds and any brightness: (3,) float32 in 0..1."""
    wheel = np.abs((hue * 6 + np.array([0, 4, 2])) % 6 - 3) - 1
    return (rng.uniform(0.4, 1) * (1 - rng.uniform(palest, strongest) * (1 - wheel.clip(0, 1)))).astype(np.float32)


def _ellipse(rng, x, y) -> np.ndarray:
    """A soft-edged random ellipse on x, y in 0..1: (h, w) float32, 1 inside, 0 outside."""
    (cx, cy), (rx, ry) = rng.uniform(0, 1, size=2), rng.uniform(0.08, 0.3, size=2)
    distance = ((x - np.float32(cx)) / np.float32(rx)) ** 2 + ((y - np.float32(cy)) / np.float32(ry)) ** 2
    return (np.float32(rng.uniform(2, 8)) * (1 - distance)).clip(0, 1)


def _light(rng, x, y) -> np.ndarray:
    """Brighter at one side than at the other: (h, w) float32 around 1."""
    across, down, level = rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4), rng.uniform(0.7, 1.25)
    return np.float32(level) + np.float32(across) * (x - np.float32(0.5)) + np.float32(down) * (y - np.float32(0.5))


def _noise(rng, size: tuple[int, int], zoom: int, sd: float) -> Image.Image:
    """Grey Gaussian noise around 128, RGB, in grains of `zoom` pixels."""
    width, height = -(-size[0] // zoom), -(-size[1] // zoom)
    grey = Image.frombytes("L", (width, height), rng.bytes(width * height))
    grey = grey.point((128 + sd * GAUSSIAN).round().clip(0, 255).astype(int).tolist())
    if zoom > 1:
        grey = grey.resize(size, Image.Resampling.BILINEAR)
    return Image.merge("RGB", (grey, grey, grey))


def _write_image(seed: int, index: int, path: Path) -> None:
    if path.exists():  # another process was faster
        return
    image, quality = draw(seed, index)
    try:
        with cache.whole_file(path) as temporary:
            image.save(temporary, "JPEG", quality=quality)
    except FileNotFoundError:
        # Another process has finished the set and cleared all temporary files away: then this image is there.
        if not path.exists():
            raise


@contextlib.contextmanager
def _helpers(dest: Path, count: int, seed: int, parts: int) -> Iterator[None]:
    """Programs of their own that make all parts of the set but the first, since threads keep only two cores busy. They are
    programs and not forks: those work beside CUDA and in notebooks, too. One that fails is not missed, whoever is ready
    first makes what others have not."""
    command = [sys.executable, "-m", "grader.data.images", str(dest), "--count", str(count), "--seed", str(seed)]
    helpers = [
        subprocess.Popen(
            [*command, "--part", f"{n}/{parts}"],
            env=with_this_package(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for n in range(1, parts)
    ]
    try:
        yield
    finally:
        for helper in helpers:  # what they still do has been done
            helper.kill()
            helper.wait()


def _in_threads(function: Callable, jobs: list, done: Callable) -> None:
    """Run `function` on each job, and `done` after each.

    In threads: they work in a notebook, in a script without a main guard and beside CUDA, where new processes do not,
    and numpy and Pillow release the interpreter lock for about half of the time.
    """
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            for _ in pool.map(function, jobs):
                done()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C stops now, not after the last image
            raise


def _names(count: int) -> list[str]:
    """Where each image of a set of `count` lies in its folder, by index."""
    cut = _train_count(count)
    return [
        f"{'train' if index < cut else 'val'}/{CLASSES[index % len(CLASSES)]}/{index:06d}.jpg" for index in range(count)
    ]


def _train_count(count: int) -> int:
    return count - count // 10


def _is_complete(dest: Path, manifest: dict) -> bool:
    """Whether `dest` holds exactly this set. Raises UserError where it holds another one."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            found = json.loads((dest / "manifest.json").read_text())
        except ValueError:
            found = None
        if found == manifest:
            return True
        raise _taken(dest)
    return False


def _open_again(dest: Path, manifest: dict, lost: list[Path]) -> None:
    """Make a complete set one that is being filled."""
    _mark(dest, manifest).touch()
    for path in (*lost, dest / "manifest.json"):
        path.unlink(missing_ok=True)


def _mark(dest: Path, manifest: dict) -> Path:
    return dest / f".unfinished-version{VERSION}-seed{manifest['seed']}-count{manifest['count']}"


def _claim(dest: Path, manifest: dict) -> Path:
    """Mark `dest` as being filled with this set, or raise UserError where it already holds something else."""
    mark = _mark(dest, manifest)
    if dest.exists() and not dest.is_dir():
        raise _taken(dest)
    entries = [] if not dest.exists() else [path for path in dest.iterdir() if not path.name.endswith(cache.TEMPORARY)]
    if entries and mark not in entries and not _is_complete(dest, manifest):
        raise _taken(dest)
    cache.make_dir(dest)
    mark.touch()
    return mark


def _taken(dest: Path) -> UserError:
    return UserError(
        f"{dest} holds something else than this image set (another count, seed or version). "
        "Delete that folder, or choose another one."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grader.data.images", description="Make the course's image set.")
    parser.add_argument("dest", nargs="?", type=Path, help="folder (default: in your cache folder)")
    parser.add_argument("--count", type=int, default=COUNT, help=f"how many images (default: {COUNT})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--part",
        type=lambda text: Part(*map(int, text.split("/"))),
        metavar="I/N",
        help="begin with part I (from 0) of N, where N programs make the set together",
    )
    options = parser.parse_args(arguments)
    try:
        print(make_images(options.dest, options.count, options.seed, part=options.part))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
