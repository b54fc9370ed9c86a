"""The real data sets behind the same interface as the generated ones, for machines that can download.

Image sets come as `ImageSets` of files, text as (train, held_out) bytes, tokens as a folder of files. A download is checked before it gets its name.
"""

import hashlib
import os
import pickle
import urllib.request
from http.client import HTTPException
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from grader.data import cache, images, text, tokens
from grader.errors import UserError

# 1115394 bytes; the sum was taken from the file in the karpathy/char-rnn repository, at the commit in the address.
SHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
    "/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_CHUNK = 8192  # bytes: 1.1 MB has too few chunks of the usual size to hold out a tenth of them

IMAGE_ENDINGS = {".jpg", ".jpeg", ".png"}


def tiny_shakespeare(root: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The 1.1 MB of Shakespeare of char-rnn: (train, held_out), uint8; downloaded to `root` (default: the cache)."""
    path = _root(root, "tiny_shakespeare") / "input.txt"
    download(SHAKESPEARE_URL, path, "sha256", SHAKESPEARE_SHA256)
    return text.split(np.fromfile(path, dtype=np.uint8), SHAKESPEARE_CHUNK)


def cifar10(root: Path | None = None, progress: bool = True) -> images.ImageSets:
    """CIFAR-10: 50000 images of 32x32 to train on, 10000 held out; downloaded to `root` (default: the cache).

    torchvision reads the archive; the images are written once as PNG files, which one loader reads like all others.
    """
    from torchvision.datasets import CIFAR10  # here: it takes seconds, and nothing else in this module needs it

    root = _root(root, "cifar10")
    png = root / "png"
    if not (png / "complete").exists():
        download(CIFAR10.url, root / CIFAR10.filename, "md5", CIFAR10.tgz_md5, progress)
        try:
            for split in ("train", "val"):
                # It unpacks the archive, unless that was done, and checks every file in it.
                source = CIFAR10(root, train=split == "train", download=True)
                folders = [cache.make_dir(png / split / name) for name in source.classes]
                pairs = zip(source.data, source.targets, strict=True)
                bar = tqdm(pairs, f"writing {split} images", len(source.data), unit="image", disable=not progress)
                for index, (pixels, label) in enumerate(bar):
                    _write_png(pixels, folders[label] / f"{index:05d}.png")
            with cache.whole_file(png / "complete") as temporary:
                temporary.touch()
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            raise UserError(
                f"cannot unpack CIFAR-10 in {root}: {error}. Is there 1 GB of free space? "
                "If so, delete that folder and try again."
            ) from error
    return image_folder(png)


def image_folder(root: Path) -> images.ImageSets:
    """An ImageNet-style folder: root/train/<class>/ and root/val/<class>/ with .jpg, .jpeg or .png files.

    Without root/val every tenth image of each class is held out. Raises UserError where the layout is another one.
    """
    root = Path(root).expanduser().absolute()
    train = _by_class(root / "train")
    if (root / "val").is_dir():
        held_out = _by_class(root / "val")
        if list(train) != list(held_out):
            odd = sorted(set(train) ^ set(held_out))
            raise UserError(
                f"{root}: train and val do not have the same class folders ({len(odd)} differ, e.g. {odd[0]!r}). "
                "Sort the images of val into one folder per class, named as in train."
            )
    else:
        held_out = {name: files[9::10] for name, files in train.items()}
        train = {name: [file for i, file in enumerate(files) if i % 10 != 9] for name, files in train.items()}
    return images.ImageSets(_image_set(train), _image_set(held_out))


def token_files(folder: Path) -> Path:
    """A folder with nanoGPT's train.bin and val.bin (its data/openwebtext/prepare.py writes them), checked: give it to the
    GPT workload as `folder` in place of the course's own tokens. Returns it as an absolute path. Raises UserError where it is
    something else."""
    folder = Path(folder).expanduser().absolute()
    for name in (tokens.TRAIN, tokens.HELD_OUT):
        path = folder / name
        if not path.is_file() or path.stat().st_size < 2 or path.stat().st_size % 2:
            raise UserError(f"{path} is not a file of uint16 tokens. nanoGPT's data/openwebtext/prepare.py makes one.")
        looked_at = np.memmap(path, np.uint16, "r")[:1_000_000]
        if looked_at.max() >= tokens.GPT2_VOCABULARY:
            raise UserError(
                f"{path} holds the token {looked_at.max()}; GPT-2's are below {tokens.GPT2_VOCABULARY}. Was it written as uint16?"
            )
    return folder


def download(url: str, path: Path, algorithm: str, expected: str, progress: bool = True) -> None:
    """Bring `url` to `path`, unless that file is there with the right checksum.

    `algorithm` is a name of hashlib, `expected` the hexadecimal sum. On any error nothing is left behind.
    Raises UserError.
    """
    if path.exists():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if found == expected:
            return
        raise UserError(
            f"{path} is not the file it should be ({algorithm} {found}, expected {expected}). Delete it and try again."
        )
    digest = hashlib.new(algorithm)
    try:
        with cache.whole_file(path) as temporary:
            with urllib.request.urlopen(url, timeout=60) as source, temporary.open("wb") as target:
                size = int(source.headers.get("Content-Length") or 0) or None
                with tqdm(total=size, desc=path.name, unit="B", unit_scale=True, disable=not progress) as bar:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        target.write(block)
                        bar.update(len(block))
            if digest.hexdigest() != expected:
                raise UserError(
                    f"{url} gave a damaged or another file ({algorithm} {digest.hexdigest()}, expected {expected}); "
                    f"it was thrown away. Try again, or get the file some other way and put it at {path}."
                )
    except (OSError, HTTPException) as error:  # no network, no such address, cut off, disk full
        raise UserError(
            f"cannot download {url} to {path}: {error}. Check the network, or put the file there yourself; "
            "the course's own data (grader.data.images, grader.data.text) needs no download."
        ) from error


def _root(root: Path | None, name: str) -> Path:
    try:
        return cache.make_dir(Path(root).expanduser().absolute() if root else cache.cache_dir() / name)
    except OSError as error:
        raise UserError(f"cannot make the folder {root}: {error.strerror}. Choose another one.") from error


def _write_png(pixels: np.ndarray, path: Path) -> None:
    """Write (h, w, 3) uint8 as a PNG file, unless it is there."""
    if not path.exists():
        with cache.whole_file(path) as temporary:
            Image.fromarray(pixels).save(temporary, "PNG")


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class folder, all sorted by name."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder. An image set is laid out as train/<class>/<image>.jpg, and val alike."
        )
    classes = {}
    for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")):
        names = sorted(entry.name for entry in os.scandir(folder / name) if not entry.name.startswith("."))
        classes[name] = [folder / name / n for n in names if os.path.splitext(n)[1].lower() in IMAGE_ENDINGS]
    if not any(classes.values()):
        raise UserError(
            f"{folder} holds no images in class folders. An image set is laid out as train/<class>/<image>.jpg."
        )
    return classes


def _image_set(by_class: dict[str, list[Path]]) -> images.ImageSet:
    counts = [len(files) for files in by_class.values()]
    labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return images.ImageSet([file for files in by_class.values() for file in files], labels, list(by_class))
