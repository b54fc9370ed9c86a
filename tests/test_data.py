"""The course's data: made whole, the same every time, and refused when it is not what it says."""

import hashlib
import json
import pickle
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grader.data import cache, images, pictures, real, text, tiles, tokens
from grader.errors import UserError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def generator(dest: Path, count: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "grader.data.images", str(dest), "--count", str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def whole_set(tmp_path_factory) -> Path:
    return images.make_images(tmp_path_factory.mktemp("data") / "whole", count=120, progress=False)


# Images


def test_layout_sizes_and_permissions(whole_set):
    sets = images.generated(whole_set, count=120)
    assert (len(sets.train), len(sets.held_out)) == (108, 12)
    for image_set, split in ((sets.train, "train"), (sets.held_out, "val")):
        assert image_set.labels.dtype == np.int64
        for path, label in zip(image_set.files, image_set.labels, strict=True):
            assert path.parent == whole_set / split / image_set.classes[label]
    files = sets.train.files + sets.held_out.files
    assert set(files) == set(whole_set.rglob("*.jpg"))
    for path in files:
        with Image.open(path) as image:
            image.load()
            assert image.mode == "RGB" and 400 <= image.width <= 600 and 320 <= image.height <= 430
        assert path.stat().st_mode & stat.S_IROTH and path.parent.stat().st_mode & stat.S_IXOTH
    sizes = np.array([path.stat().st_size for path in files])
    assert 30_000 < np.median(sizes) < 90_000 and sizes.max() < 150_000
    assert sorted(path.name for path in whole_set.iterdir()) == ["manifest.json", "train", "val"]


def test_an_image_depends_on_seed_and_index_only(whole_set, tmp_path):
    other_count = images.make_images(tmp_path / "a", count=12, progress=False)
    name = "train/stripes_67/000003.jpg"
    assert (other_count / name).read_bytes() == (whole_set / name).read_bytes()
    other_seed = images.make_images(tmp_path / "b", count=4, seed=1, progress=False)
    assert (other_seed / name).read_bytes() != (whole_set / name).read_bytes()


def test_killed_then_resumed_is_the_same_as_never_killed(whole_set, tmp_path):
    dest = tmp_path / "set"
    process = generator(dest, 120)
    deadline = time.monotonic() + 240
    while len(list(dest.rglob("*.jpg"))) < 15 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert not (dest / "manifest.json").exists()
    early = {path: path.stat().st_mtime_ns for path in dest.rglob("*.jpg")}
    assert 15 <= len(early) < 120
    expected = contents(whole_set)
    for path in early:  # every file that has its name is whole
        assert path.read_bytes() == expected[str(path.relative_to(dest))]
    images.make_images(dest, count=120, progress=False)
    assert contents(dest) == expected
    assert all(path.stat().st_mtime_ns == made for path, made in early.items())  # kept, not made again


def test_leftovers_of_a_killed_run_go_away(tmp_path):
    dest = images.make_images(tmp_path / "set", count=5, progress=False)
    (dest / "manifest.json").unlink()
    (dest / f".unfinished-version{images.VERSION}-seed0-count5").touch()
    (dest / "train" / "blobs_00" / ".000005.jpg.0123abcd.tmp").write_bytes(b"half a file")
    images.make_images(dest, count=5, progress=False)
    assert not list(dest.rglob("*.tmp")) and not list(dest.glob(".unfinished*"))


def test_two_at_once_do_not_harm_one_another(whole_set, tmp_path):
    both = [generator(tmp_path / "set", 120) for _ in range(2)]
    for process in both:
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        assert output.strip() == str(tmp_path / "set")
    assert contents(tmp_path / "set") == contents(whole_set)


def test_a_complete_set_is_returned_at_once(whole_set, monkeypatch):
    monkeypatch.setattr(images, "draw", lambda *_: pytest.fail("made again"))
    assert images.make_images(whole_set, count=120) == whole_set


DATA_SETS = {
    "images": lambda dest: images.make_images(dest, count=20, progress=False),
    "pictures": lambda dest: pictures.make_pictures(8, dest, dest.parent / "images", count=20),
    "tiles": lambda dest: tiles.make_database(8, 5, dest),
    "tile files": lambda dest: tiles.make_files(5, dest),
    "tokens": lambda dest: tokens.make_tokens(300, 1000, dest),
    "text": lambda dest: text.make_corpus().parent,
}


@pytest.mark.parametrize("kind", DATA_SETS)
@pytest.mark.parametrize("what", ["gone", "empty"])
def test_what_a_data_set_lost_is_made_again(kind, what, tmp_path):
    """Whoever cleans a cache takes what is old, and honest loops would fail at it. The list of what is there stays."""
    made = DATA_SETS[kind](tmp_path / "set")
    before = contents(made)
    for name in before:
        if not name.endswith("manifest.json"):
            (made / name).unlink()
            (made / name).write_bytes(b"") if what == "empty" else None
    assert DATA_SETS[kind](tmp_path / "set") == made
    after = contents(made)
    assert after.keys() == before.keys()
    same = {name for name in before if not name.endswith(".sqlite")}  # its bytes hold when it was made
    assert all(after[name] == before[name] for name in same) and all(after.values())


@pytest.mark.parametrize("kind", ["pictures", "tiles", "tile files"])
@pytest.mark.parametrize("manifest", ['{"version": 0}', '{"vers', ""])
def test_what_another_version_made_is_made_again(kind, manifest, tmp_path):
    made = DATA_SETS[kind](tmp_path / "set")
    before = {name: data for name, data in contents(made).items() if not name.endswith(".sqlite")}
    for name, data in contents(made).items():
        (made / name).write_bytes(manifest.encode() if name == "manifest.json" else data[::-1])
    after = contents(DATA_SETS[kind](tmp_path / "set"))
    assert {name: after[name] for name in before} == before


def test_default_folder_is_in_the_cache(tmp_path):
    assert images.make_images(count=3, seed=7, progress=False) == tmp_path / "cache" / "images-3-seed7"


@pytest.mark.parametrize("present", ["another count", "another version", "broken manifest", "foreign files", "a file"])
def test_a_folder_with_something_else_is_refused(tmp_path, present):
    dest = tmp_path / "set"
    if present == "a file":
        dest.write_text("mine")
    elif present == "foreign files":
        dest.mkdir()
        (dest / "thesis.txt").write_text("mine")
    else:
        images.make_images(dest, count=3 if present == "another count" else 2, progress=False)
        manifest = dest / "manifest.json"
        if present == "another version":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 0}))
        if present == "broken manifest":
            manifest.write_text("{")
    before = contents(dest)
    with pytest.raises(UserError, match="holds something else"):
        images.make_images(dest, count=2, progress=False)
    assert contents(dest) == before


def test_command_line_says_in_one_line_what_is_wrong(tmp_path):
    (tmp_path / "file").write_text("mine")
    process = generator(tmp_path / "file", 2)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 2 and "Traceback" not in errors and len(errors.splitlines()) == 1


# Text


def test_corpus_is_the_library_without_tests_and_packages():
    corpus = text.corpus()
    assert corpus.dtype == np.uint8 and 5_000_000 < len(corpus) <= text.CAP
    parts = {part for path in text.source_files() for part in path.parts[-4:]}
    assert not parts & text.LEFT_OUT
    assert {"argparse.py", "asyncio"} <= parts and "test_argparse.py" not in parts
    assert (text.corpus() == corpus).all()
    (kept,) = cache.cache_dir().iterdir()
    assert kept.read_bytes() == corpus.tobytes() == b"".join(f.read_bytes() for f in text.source_files())[: text.CAP]


@pytest.mark.parametrize("length", [100, 105, 199, 1000, 1234])
def test_split_is_disjoint_and_covers(length):
    numbers = np.arange(length)
    train, held_out = text.split(numbers, chunk=10)
    assert (np.sort(np.concatenate([train, held_out])) == numbers).all()
    assert held_out[:10].tolist() == list(range(90, 100)) and abs(len(held_out) - length / 10) <= 10


def test_split_of_too_little_is_an_error():
    with pytest.raises(ValueError, match="too few"):
        text.split(np.arange(99), chunk=10)


# Real sets, from local files in place of the network


def test_download_checks_before_it_keeps(tmp_path):
    source, path = tmp_path / "source", tmp_path / "to" / "file"
    source.write_bytes(b"something")
    path.parent.mkdir()
    good = hashlib.sha256(b"something").hexdigest()
    with pytest.raises(UserError, match="thrown away"):
        real.download(source.as_uri(), path, "sha256", "0" * 64, progress=False)
    with pytest.raises(UserError, match="cannot download"):
        real.download((tmp_path / "nothing").as_uri(), path, "sha256", good, progress=False)
    assert not list(path.parent.iterdir())
    real.download(source.as_uri(), path, "sha256", good, progress=False)
    assert path.read_bytes() == b"something"
    source.unlink()
    real.download(source.as_uri(), path, "sha256", good, progress=False)  # there already: not fetched again
    path.write_bytes(b"changed")
    with pytest.raises(UserError, match="Delete it"):
        real.download(source.as_uri(), path, "sha256", good, progress=False)


def test_tiny_shakespeare_splits_bytes(tmp_path, monkeypatch):
    play = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 4000
    (tmp_path / "play").write_bytes(play)
    monkeypatch.setattr(real, "SHAKESPEARE_URL", (tmp_path / "play").as_uri())
    with pytest.raises(UserError, match="sha256"):
        real.tiny_shakespeare()
    monkeypatch.setattr(real, "SHAKESPEARE_SHA256", hashlib.sha256(play).hexdigest())
    train, held_out = real.tiny_shakespeare()
    assert len(train) + len(held_out) == len(play) and train[:5].tobytes() == b"First" and len(held_out) > 8000


def test_cifar10_goes_through_torchvision_to_files(tmp_path, monkeypatch):
    """A tiny archive of CIFAR-10's format, read by the real torchvision class."""
    from torchvision.datasets import CIFAR10

    rng = np.random.default_rng(0)
    folder = tmp_path / "source" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    names = ["plane", "car"]
    pixels = {name: rng.integers(0, 256, (6, 3072), dtype=np.uint8) for name in ("data_batch_1", "test_batch")}
    for name, data in pixels.items():
        (folder / name).write_bytes(pickle.dumps({"data": data, "labels": [0, 1, 1, 0, 1, 0]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    archive = tmp_path / "source" / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, CIFAR10.base_folder)

    def md5(path: Path) -> str:
        return hashlib.md5(path.read_bytes()).hexdigest()

    monkeypatch.setattr(CIFAR10, "url", archive.as_uri())
    root = tmp_path / "root"
    with pytest.raises(UserError, match="c58f30108f718f92721af3b95e74349a"):  # not the published archive
        real.cifar10(root, progress=False)
    assert not list(root.iterdir())

    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(archive))
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", md5(folder / "data_batch_1")]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(folder / "test_batch")]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(folder / "batches.meta")}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    sets = real.cifar10(root, progress=False)
    assert sets.train.classes == ["car", "plane"] and sets.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    expected = pixels["data_batch_1"][1].reshape(3, 32, 32).transpose(1, 2, 0)
    with Image.open(sets.train.files[0]) as image:
        assert (np.asarray(image) == expected).all()
    assert len(sets.held_out) == 6
    archive.unlink()
    assert real.cifar10(root, progress=False).train.files == sets.train.files  # from the files, no archive needed


def test_image_folder_reads_what_the_generator_wrote(whole_set):
    made, read = images.generated(whole_set, count=120), real.image_folder(whole_set)
    for one, other in ((made.train, read.train), (made.held_out, read.held_out)):
        names = [{path: s.classes[label] for path, label in zip(s.files, s.labels, strict=True)} for s in (one, other)]
        assert names[0] == names[1]


def test_image_folder_endings_and_missing_val(tmp_path):
    for index in range(20):
        for name in ("cat", "dog"):
            path = tmp_path / "train" / name / f"{index:02d}.{('JPEG', 'jpg', 'png', 'txt')[index % 4]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    sets = real.image_folder(tmp_path)
    assert (len(sets.train), len(sets.held_out)) == (28, 2) and sets.held_out.labels.tolist() == [0, 1]
    assert not set(sets.train.files) & set(sets.held_out.files)


def test_image_folder_explains_a_wrong_layout(tmp_path):
    with pytest.raises(UserError, match="train/<class>"):
        real.image_folder(tmp_path)
    for path in ("train/cat/1.jpg", "val/1.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    with pytest.raises(UserError, match="no images in class folders"):
        real.image_folder(tmp_path)
    (tmp_path / "val" / "dog").mkdir()
    (tmp_path / "val" / "dog" / "1.jpg").touch()
    with pytest.raises(UserError, match="same class folders"):
        real.image_folder(tmp_path)


# Cache


def test_cache_dir_is_made_and_readable(tmp_path):
    folder = cache.cache_dir()
    assert folder == tmp_path / "cache" and folder.stat().st_mode & 0o777 == 0o755


def test_cache_dir_that_cannot_be_made_is_explained(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRADER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="GRADER_CACHE"):
        cache.cache_dir()


def test_a_file_is_whole_or_not_there(tmp_path):
    with pytest.raises(RuntimeError), cache.whole_file(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
