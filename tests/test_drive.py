"""The slow drive: its files come through it only, and only after their wait."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grader import labs
from grader.grade import arm, prepared
from grader.sandbox import drive

WAIT = 0.05


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a").write_bytes(b"content")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    with drive.Drive(tmp_path / drive.NAME, folder, WAIT):
        yield str(tmp_path / drive.NAME), folder


def test_every_read_waits_and_reads_at_once_wait_together(served):
    name, folder = served
    began = time.monotonic()
    assert [drive.read(name, folder / "a") for _ in range(4)] == [b"content"] * 4
    assert time.monotonic() - began >= 4 * WAIT
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: drive.read(name, folder / "a"), range(16))) == {b"content"}
    assert time.monotonic() - began < 12 * WAIT


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "{folder}/../secret", "{folder}/link", "{folder}/none", "{folder}", "\0"]
)
def test_nothing_else_is_served(served, path):
    name, folder = served
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        connection.sendall(path.format(folder=folder).encode() + b"\n")
        assert connection.recv(100) == b""
    assert drive.read(name, folder / "a") == b"content"  # and it is still there for others


def test_a_submission_cannot_read_past_it(own_temporary):
    form = labs.get("2a_workers").forms["cpu"]
    options, readable = prepared(form)
    source = (
        "import torch\ndef train(job):\n    try:\n        open(job.dataset.files[0], 'rb')\n"
        "    except PermissionError:\n        print('refused', len(job.dataset[0]), flush=True)\n"
        "    while True:\n        yield torch.ones(())\n"
    )
    with arm(source, form, options, readable, "cpu", None) as ours:
        ours.child.load()
        ours.child.start(1)
        ours.child.run(1)
        assert "refused 2" in ours.child.output()
