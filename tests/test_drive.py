"""The slow drive: its files come through it only, and only after their wait."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from grader import labs
from grader.grading.arms import open_arm, set_up
from grader.sandbox import drive, drive_server
from grader.sandbox.child_error import ChildError
from grader.sandbox.parent import turn
from grader.workloads import drive as drive_client

WAIT = 0.2  # seconds: sixteen of them are far from one, on a busy machine as well


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a").write_bytes(b"content")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    for n in range(1500):  # more than Python resolves
        (folder / f"{n}").symlink_to(f"{n + 1}")
    with drive.Drive(tmp_path / drive_client.NAME, folder, WAIT):
        yield str(tmp_path / drive_client.NAME), folder


def test_every_read_waits_and_reads_at_once_wait_together(served):
    name, folder = served
    began = time.monotonic()
    assert [drive_client.read(name, folder / "a") for _ in range(4)] == [b"content"] * 4
    assert time.monotonic() - began >= 4 * WAIT
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: drive_client.read(name, folder / "a"), range(16))) == {b"content"}
    assert time.monotonic() - began < 12 * WAIT


def test_waits_that_go_round(tmp_path):
    """Only the drive knows how long each request of a name takes."""
    name = str(tmp_path / drive_client.NAME)
    with drive.Drive(name, "", 0.0, waits={"log": [0.0, WAIT], "load": [0.0]}):
        began = time.monotonic()
        assert [drive_client.ask(name, b"log\n") for _ in range(6)] == [bytes(4)] * 6
        assert time.monotonic() - began >= 3 * WAIT
        assert [drive_client.ask(name, b"load\n"), drive_client.ask(name, b"other\n")] == [bytes(4), b""]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "{folder}/../secret",
        "{folder}/./a",
        "{folder}/link",
        "{folder}/linked/secret",
        "{folder}/0",
        "{folder}/none",
        "{folder}",
        "a",
        "",
        "\0",
    ],
)
def test_nothing_else_is_served(served, path):
    name, folder = served
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        connection.sendall(path.format(folder=folder).encode() + b"\n")
        assert connection.recv(100) == b""
    assert drive_client.read(name, folder / "a") == b"content"  # and it is still there for others


def test_closed_it_serves_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    name = str(tmp_path / "early")
    with drive.Drive(name, tmp_path, WAIT, opened=False) as served:
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="asked too early"):
                drive_client.read(name, tmp_path / "a")
        assert served.counts.reads == 0
        served.open(os.getpid(), os.getpid())
        assert drive_client.read(name, tmp_path / "a") == b"content"  # by the very thread that asked too early


def test_while_another_runs_reads_wait(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with drive.Drive(tmp_path / "paused", tmp_path, 0.0) as served:
        assert served.stop()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(drive_client.read, str(tmp_path / "paused"), tmp_path / "a") for _ in range(4)]
            time.sleep(0.3)
            assert served.counts.reads == 0 and not any(each.done() for each in asked)
            assert served.go_on()
            assert [each.result(60) for each in asked] == [b"content"] * 4
        assert served.counts.reads == 4


def fork(function, *arguments) -> None:
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.fixture
def watched(served, tmp_path):
    (served[1] / "b").write_bytes(b"other")
    with drive.Drive(tmp_path / "watched", served[1], 0.0) as watching:
        yield watching, str(tmp_path / "watched"), served[1] / "b"


def test_reads_of_the_main_process_are_told_from_those_of_its_workers(watched):
    watching, name, file = watched
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: drive_client.read(name, file), range(20)))
    assert watching.counts == (20, 20, 1, 0)
    for _ in range(3):
        fork(drive_client.read, name, file)
    assert watching.counts == (23, 20, 1, 0)
    watching.forget()
    assert watching.counts == (0, 0, 1, 0)


def connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(name)
    return connection


def asked(connection: socket.socket, file) -> bytes:
    connection.sendall(f"{file}\n".encode())
    return connection.recv(100)


def test_a_connection_serves_the_process_that_made_it(watched):
    """It can be handed to another one, and a process that is forked has it as well: neither is served over it."""
    watching, name, file = watched
    ours, theirs = socket.socketpair()

    def lend() -> None:
        with connected(name) as connection:
            assert asked(connection, file).endswith(b"other")
            socket.send_fds(theirs, [b"x"], [connection.fileno()])

    def refused() -> None:
        assert asked(own, file) == b""

    fork(lend)
    with socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0]) as lent:
        assert asked(lent, file) == b""
    with connected(name) as own:
        assert asked(own, file).endswith(b"other")
        fork(refused)
    assert watching.counts == (2, 1, 1, 0)
    ours.close()
    theirs.close()


def test_a_crowd_waits_outside(served):
    """However many connections are opened, so many are held, and it serves on when they are closed."""
    name, folder = served
    crowd = [connected(name) for _ in range(drive_server.MAX_CONNECTIONS + 50)]
    for each in (*crowd[: drive_server.MAX_CONNECTIONS], crowd[-1]):
        each.sendall(f"{folder / 'a'}\n".encode())
    assert all(each.recv(100).endswith(b"content") for each in crowd[: drive_server.MAX_CONNECTIONS])
    crowd[-1].settimeout(0.5)
    with pytest.raises(TimeoutError):
        crowd[-1].recv(100)
    for each in crowd[:-1]:
        each.close()
    crowd[-1].settimeout(60)
    assert crowd[-1].recv(100).endswith(b"content")
    crowd[-1].close()
    assert drive_client.read(name, folder / "a") == b"content"


def test_what_a_peer_leaves_unread_is_one_answer(tmp_path):
    """However much is asked for, and a line without an end is no request."""
    (tmp_path / "large").write_bytes(bytes(4 << 20))
    name = str(tmp_path / "drive")
    with drive.Drive(name, tmp_path, 0.0) as served:
        before, crowd = memory(served.pid), [connected(name) for _ in range(4)]
        for each in crowd:
            each.sendall(f"{tmp_path / 'large'}\n".encode() * 50)
        deadline = time.monotonic() + 10
        while served.counts.reads < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert served.counts.reads == 4
        assert memory(served.pid) - before < 100 << 20
        with connected(name) as endless, pytest.raises(ConnectionError):
            while True:
                endless.sendall(b"x" * 1000)
        for each in crowd:
            each.close()
        assert len(drive_client.read(name, tmp_path / "large")) == 4 << 20


def memory(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


STRANGER = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
try:
    one.sendall(sys.argv[2].encode() + b"\\n")
    print(len(one.recv(100)))
except ConnectionError:
    print(0)
"""


def stranger(name: str, file, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", STRANGER, name, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_strangers_are_not_served(tmp_path):
    """Of the same user: it does not descend from whom the drive is for. One that does is served, though its parent has ended."""
    (tmp_path / "a").write_bytes(b"content")
    name = str(tmp_path / "drive")
    with drive.Drive(name, tmp_path, 0.0, opened=False) as served:
        sleeper = subprocess.Popen(["sleep", "60"])
        served.open(sleeper.pid, sleeper.pid)
        assert stranger(name, tmp_path / "a").stdout == "0\n"
        served.open(os.getpid(), os.getpid())
        assert stranger(name, tmp_path / "a").stdout == "11\n"
        sleeper.kill()
        sleeper.wait()
        assert served.counts.reads == 1


CROWD = """
import os, socket, sys
while os.getppid() == int(sys.argv[2]):
    pass
print("begins", os.getpid(), flush=True)
held = []
while True:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(0.1)
    try:
        one.connect(sys.argv[1])
    except OSError:
        continue
    held = [*held[-500:], one]
"""


def test_strangers_hold_no_connections(tmp_path):
    """They come again and again, and leave none open; whom the drive is for connects and reads meanwhile."""
    (tmp_path / "a").write_bytes(b"content")
    name = str(tmp_path / "drive")
    with drive.Drive(name, tmp_path, 0.0) as served:
        orphan = f"{sys.executable} -c '{CROWD}' {name} $$ &"
        shell = subprocess.Popen(["sh", "-c", orphan], stdout=subprocess.PIPE, text=True)
        assert shell.wait() == 0
        word, pid = shell.stdout.readline().split()
        for _ in range(100):
            with connected(name) as each:
                assert asked(each, tmp_path / "a").endswith(b"content")
        psutil.Process(int(pid)).kill()  # it had not ended
        assert word == "begins" and served.counts.reads == 100
        shell.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a child a user of its own")
def test_another_user_cannot_connect(tmp_path, own_temporary):
    """Not even with the right to read any file, which children have; and this user's, who descend from somebody else, neither."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        (Path(folder) / "a").write_bytes(b"content")
        name = folder + "/drive"
        with drive.Drive(name, folder, 0.0, user=30_000) as served:
            program = (
                "import os, sys; from grader.sandbox import confine\n"
                "confine.give_up_root(int(sys.argv[3]))\n" + STRANGER
            )
            for user, said in (("30_000", "11"), ("30_002", "PermissionError: [Errno 13] Permission denied")):
                command = [sys.executable, "-c", program, name, folder + "/a", user]
                tried = subprocess.run(command, capture_output=True, text=True, check=False)
                assert (tried.stdout + tried.stderr).strip().splitlines()[-1] == said
            assert stranger(name, folder + "/a").stdout == "0\n"  # root may connect
            assert served.counts.reads == 1


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def stop_and_wake(pid: int) -> None:
    stop(pid)
    os.kill(pid, signal.SIGCONT)


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def wake_and_stop(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    while psutil.Process(pid).status() == psutil.STATUS_STOPPED:
        time.sleep(0.001)
    stop(pid)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("awake", "does"),
    [(True, stop), (True, stop_and_wake), (True, end), (False, wake), (False, wake_and_stop), (False, end)],
)
def test_who_stops_wakes_or_ends_it_is_noticed(tmp_path, monkeypatch, awake, does):
    monkeypatch.setattr(drive, "ANSWERS_S", 1.0)
    with drive.Drive(tmp_path / "drive", tmp_path, 0.0) as served:
        for _ in range(3):
            assert served.stop() and served.go_on()
        assert awake or served.stop()
        does(served.pid)
        assert served.disturbed()
        assert not (served.stop() if awake else served.go_on())
        assert served.counts == (0, 0, 0, 0)


GRADER = """
import sys, time
from grader.sandbox import drive
served = drive.Drive(sys.argv[1] + "/drive", sys.argv[1], 0.0, opened=sys.argv[2] != "starting")
if sys.argv[2] == "stopped":
    served.stop()
print(served.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["starting", "serving", "stopped"])
def test_it_ends_with_the_grader(tmp_path, state):
    """And says nothing."""
    command = [sys.executable, "-c", GRADER, str(tmp_path), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as grader:
        process = psutil.Process(int(grader.stdout.readline()))
        grader.kill()
        gone, _ = psutil.wait_procs([process], timeout=600)
        assert gone and grader.stderr.read() == ""


def test_a_submission_is_served_in_its_turns(own_temporary):
    """Neither at import, which nobody times, nor while it is frozen."""
    form = labs.get("2a_workers").forms["cpu"]
    setup = set_up(form, "cpu")
    source = (
        "import torch\nfrom pathlib import Path\nfrom grader.workloads.drive import read\n"
        "try:\n    read(str(Path.home() / 'drive'), 'x')\nexcept FileNotFoundError as error:\n    print(error)\n"
        "def train(job):\n    job.dataset[0]\n"
        "    import threading\n"
        "    threading.Thread(target=lambda: [job.dataset[i] for i in range(10**4)], daemon=True).start()\n"
        "    while True:\n        yield torch.ones(())\n"
    )
    with open_arm(source, setup) as ours:
        ours.child.load()
        ours.child.start(1)
        ours.child.run(1)
        ours.child.freeze()
        time.sleep(2 * setup.options["read_s"] + 0.1)
        before = ours.drive.counts.reads
        time.sleep(0.3)
        assert before > 0 and psutil.Process(ours.drive.pid).status() == psutil.STATUS_STOPPED
        with turn(ours.child):
            time.sleep(0.5)
        assert ours.drive.counts.reads > before


def test_a_submission_cannot_read_past_it(own_temporary):
    form = labs.get("2a_workers").forms["cpu"]
    setup = set_up(form, "cpu")
    source = (
        "import torch\ndef train(job):\n    try:\n        open(job.dataset.files[0], 'rb')\n"
        "    except PermissionError:\n        print('refused', len(job.dataset[0]), flush=True)\n"
        "    while True:\n        yield torch.ones(())\n"
    )
    with open_arm(source, setup) as ours:
        ours.child.load()
        ours.child.start(1)
        ours.child.run(1)
        assert "refused 2" in ours.child.output()


def test_a_drive_that_somebody_disturbs_is_nobody_s_fault(own_temporary):
    """Whether the loop has met it already, or not yet."""
    form = labs.get("2a_workers").forms["cpu"]
    setup = set_up(form, "cpu")
    for does in (stop_and_wake, end):
        with open_arm(labs.get("2a_workers").starter, setup) as ours:
            ours.child.load()
            ours.child.start(1)
            ours.child.run(1)
            does(ours.drive.pid)
            with pytest.raises(ChildError, match="Another program") as seen:
                ours.child.freeze() if does is stop_and_wake else ours.child.run(2)
            assert seen.value.trusted
