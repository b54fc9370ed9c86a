"""The slow drive: its files come through it only, and only after their wait."""

import multiprocessing
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from grader import labs
from grader.grade import arm, prepared
from grader.sandbox import drive
from grader.sandbox.parent import turn

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


def test_closed_it_serves_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with drive.Drive(tmp_path / "early", tmp_path, WAIT, opened=False) as served:
        with pytest.raises(FileNotFoundError, match="asked too early"):
            drive.read(str(tmp_path / "early"), tmp_path / "a")
        assert served.reads == 0


def test_while_another_runs_reads_wait(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with drive.Drive(tmp_path / "paused", tmp_path, 0.0) as served:
        served.serving.clear()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(drive.read, str(tmp_path / "paused"), tmp_path / "a") for _ in range(4)]
            time.sleep(0.3)
            assert served.reads == 0 and not any(each.done() for each in asked)
            served.serving.set()
            assert [each.result(5) for each in asked] == [b"content"] * 4


def fork(function, *arguments) -> None:
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.fixture
def watched(served, tmp_path):
    (served[1] / "b").write_bytes(b"other")
    with drive.Drive(tmp_path / "watched", served[1], 0.0) as watching:
        watching.main = os.getpid()
        yield watching, str(tmp_path / "watched"), served[1] / "b"


def test_reads_of_the_main_process_are_told_from_those_of_its_workers(watched):
    watching, name, file = watched
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: drive.read(name, file), range(20)))
    assert (watching.reads, watching.reads_in_main) == (20, 20)
    for _ in range(3):
        fork(drive.read, name, file)
    assert (watching.reads, watching.reads_in_main) == (23, 20)


def asked(connection: socket.socket, file) -> bytes:
    connection.sendall(f"{file}\n".encode())
    return connection.recv(100)


def test_whoever_reads_counts_and_not_whoever_connected(watched):
    """A worker can hand its connection to the main process, and has the main one's when it is forked."""
    watching, name, file = watched
    ours, theirs = socket.socketpair()

    def lend() -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(name)
        socket.send_fds(theirs, [b"x"], [connection.fileno()])

    fork(lend)
    lent = socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])
    assert asked(lent, file).endswith(b"other")
    assert (watching.reads, watching.reads_in_main) == (1, 1)
    own = socket.socket(socket.AF_UNIX)
    own.connect(name)
    fork(asked, own, file)
    assert (watching.reads, watching.reads_in_main) == (2, 1)
    for each in (ours, theirs, lent, own):
        each.close()


def test_a_crowd_waits_outside(served, monkeypatch):
    """However many connections are opened, the grader's own process has so many threads for them, and serves on."""
    name, folder = served
    before = threading.active_count()
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(drive.MAX_CONNECTIONS + 50)]
    try:
        for each in crowd:
            each.connect(name)
        time.sleep(0.5)
        assert threading.active_count() - before <= drive.MAX_CONNECTIONS
    finally:
        for each in crowd:
            each.close()
    assert drive.read(name, folder / "a") == b"content"


def test_a_submission_is_served_in_its_turns(own_temporary):
    """Neither at import, which nobody times, nor while it is frozen."""
    form = labs.get("2a_workers").forms["cpu"]
    options, readable = prepared(form)
    source = (
        "import torch\ndef train(job):\n    job.dataset[0]\n"
        "    import threading\n"
        "    threading.Thread(target=lambda: [job.dataset[i] for i in range(10**4)], daemon=True).start()\n"
        "    while True:\n        yield torch.ones(())\n"
    )
    with arm(source, form, options, readable, "cpu", None) as ours:
        ours.child.load()
        assert not ours.drive.opened
        ours.child.start(1)
        ours.child.run(1)
        ours.child.freeze()
        time.sleep(2 * options["read_s"] + 0.1)
        before = ours.drive.reads
        time.sleep(0.3)
        assert before > 0 and ours.drive.reads == before
        with turn(ours.child):
            time.sleep(0.5)
        assert ours.drive.reads > before


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
