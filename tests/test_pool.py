"""A pool that lasts and its front door: what comes in, what stays out, and that its grades outlive their coordinator."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, Security
from helpers import eventually, free_port

from grader import labs, machine
from grader.classroom import coordinator, gateway, keys, pool
from grader.classroom.client import address, grade_at
from grader.classroom.store import Store
from grader.classroom.submissions import Call, Job
from grader.data.cache import cache_dir
from grader.errors import UserError
from grader.frontends import cli
from grader.frontends.pool import open_pool
from grader.submission import MAX_SOURCE, Submission

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"
RAISES = "# submission cell 1\ndef train(job):\n    raise ValueError('on purpose')\n    yield\n"
SLOW = "import time\n\ntime.sleep(10)\n" + RAISES


def test_workers_with_two_gpus_each(monkeypatch):
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: [f"GPU-{n}" for n in range(4)])
    monkeypatch.setattr(machine, "gpu_shares", lambda: machine.cpu_shares(4))
    options = cli.parsed(["class", "labs", "submitted", "--device", "cuda", "--gpus-each", "2"])
    with open_pool(options) as opened:
        seen = opened.client.run(os.getenv, "CUDA_VISIBLE_DEVICES")
    assert sorted(seen.values()) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]


def test_what_a_worker_starts_has_the_threads_of_whoever_started_the_pool(monkeypatch):
    """Dask tells its workers to use one thread each, and the kernel of a lesson would inherit that."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    with pool.embedded("cpu") as made:
        (told,) = made.client.run(subprocess.check_output, ["env"]).values()
    found = dict(line.split("=", 1) for line in told.decode().splitlines() if "=" in line)
    assert found["MKL_NUM_THREADS"] == "3"
    assert not {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_"} & found.keys()


def test_a_list_of_users_that_somebody_edited(tmp_path):
    keys.make_keys(tmp_path, ["ann", "bob"])
    listed = tmp_path / "users.txt"
    ann, bob = (line for line in listed.read_text().splitlines() if line)
    listed.write_text(f"#{ann}\n{bob}")  # as an editor may leave it
    keys.make_keys(tmp_path, ["cyd"])
    assert sorted(keys.read_users(tmp_path).values()) == ["bob", "cyd"]


def test_a_gpu_has_one_worker(monkeypatch):
    monkeypatch.setattr(machine, "has_gpu", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: ["GPU-0", "GPU-1"])
    monkeypatch.setattr(machine, "gpu_shares", lambda: machine.cpu_shares(2))
    for chosen in ([0, 0], [1, 0, 1]):
        with pytest.raises(UserError, match=rf"GPU {chosen[0]} is named twice"):
            pool.environments("cuda", chosen)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in pool.environments("cuda", [1, 0])] == ["GPU-1", "GPU-0"]


class Running:
    """`grader pool start` with two users, as a service would run it."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        command = [sys.executable, "-m", "grader.frontends.cli", "pool"]
        users = ["--user", "ann", "--user", "bob", "--user", "gone"]
        done = subprocess.run([*command, "keys", self.keys, *users], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        listed = self.keys / "users.txt"
        listed.write_text("".join(line for line in listed.read_text().splitlines(True) if not line.startswith("gone")))
        self.door, scheduler = free_port(), free_port()
        self.at, self.scheduler = f"tls://127.0.0.1:{self.door}", f"tls://127.0.0.1:{scheduler}"
        places = ["--door", f"127.0.0.1:{self.door}", "--scheduler", f"127.0.0.1:{scheduler}"]
        limits = ["--at-once", "1", "--device", "cpu"]
        self.process = subprocess.Popen([*command, "start", "--keys", self.keys, *places, *limits], text=True)
        assert eventually(self.answers, 600), "the pool did not start"

    def answers(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.door), timeout=1):
            return True
        return False

    def key(self, user: str) -> Path:
        return self.keys / "users" / f"{user}.pem"

    def send(self, data: bytes, user: str = "bob") -> dict:
        """What the door answers last to these bytes."""
        with self.connection(user) as connection, connection.makefile("rb") as replies:
            with contextlib.suppress(OSError):  # it may have closed before it has read all
                connection.sendall(data)
            return json.loads(list(replies)[-1])

    @contextlib.contextmanager
    def connection(self, user: str) -> Iterator[ssl.SSLSocket]:
        context = keys.user_context(self.key(user))
        with (
            socket.create_connection(("127.0.0.1", self.door), timeout=600) as plain,
            context.wrap_socket(plain) as connection,
        ):
            yield connection

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(600)


@pytest.mark.slow
def test_a_machine_that_joined_is_told_when_the_pool_ends(tmp_path):
    service = Running(tmp_path)
    command = [sys.executable, "-m", "grader.frontends.cli", "pool", "start", "--keys", service.keys, "--device", "cpu"]
    joined = subprocess.Popen([*command, "--join", service.scheduler], stderr=subprocess.PIPE, text=True)
    try:
        with pool.at_address(service.scheduler, "cpu", service.keys) as workers:
            assert eventually(lambda: workers.size() == 2, 600)
        service.stop()
        said = joined.communicate(timeout=600)[1]
        assert joined.returncode == 2 and f"The pool at {service.scheduler} has ended." in said, said
    finally:
        joined.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    service = Running(tmp_path_factory.mktemp("pool"))
    yield service
    if service.process.poll() is None:
        service.stop()


def request(**changed: object) -> bytes:
    return json.dumps({"lab": NAME, "source": RAISES} | changed).encode() + b"\n"


def test_a_submission_is_graded_and_the_report_is_the_same(running):
    said = []
    made = Submission(RAISES, prediction=(("cause", "input-bound"), ("gain", 8.0)))
    result = grade_at(
        running.at, made, labs.get(NAME), key=running.key("ann"), quick=True, progress=lambda *what: said.append(what)
    )
    assert "on purpose" in result.fatal and "submission cell 1" in result.fatal
    assert result.quick and result.lab == NAME and result.form == "cpu"
    assert any("loading the submission" in what for _, what in said)


def test_a_lab_of_recorded_traces_needs_no_pool_and_says_so():
    said = []
    lab = labs.get("1c_diagnose")
    result = grade_at("tls://127.0.0.1:1", Submission("answers = {}"), lab, progress=lambda *what: said.append(what))
    assert result.lab == lab.name and "because nothing of this lab is measured" in said[0][1]


def test_who_gives_the_front_door_for_the_pool_is_told(running):
    with pytest.raises(UserError, match="not the front door's"), pool.at_address(running.at, "cpu", running.keys):
        pass


@pytest.mark.slow
def test_on_the_command_line(running, tmp_path):
    notebook = tmp_path / "a.ipynb"
    cell = {"cell_type": "code", "source": "%%submission\n" + RAISES, "metadata": {}}
    notebook.write_text(json.dumps({"cells": [cell]}))
    command = [
        sys.executable,
        "-m",
        "grader.frontends.cli",
        "grade",
        NAME,
        str(notebook),
        "--cluster",
        running.at,
        "--json",
        "-",
    ]
    done = subprocess.run([*command, "--key", running.key("ann")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "on purpose" in json.loads(done.stdout)["fatal"]
    done = subprocess.run(command, env=os.environ | {"GRADER_POOL_KEY": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 2 and "no key to the pool" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"not JSON\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b"[]\n", "nothing else"),
        (b"\xff\xfe\n", "not JSON"),
        (request(lab="../../etc"), "no such lab"),
        (request(lab=["2a_workers"]), "no such lab"),
        (request(lab="1c_diagnose"), "needs no pool"),
        (request(source=3), "is text"),
        (request(source="x" * (MAX_SOURCE + 1)), "is text of at most"),
        (request(plan={"max_pairs": 10**9}), "nothing else"),
        (request(allow_unconfined=True), "nothing else"),
        (request(quick=1), "true or false"),
        (request(prediction={"cause": "x", "gain": "1"}), "positive number"),
        (request(prediction={"cause": "x", "gain": float("nan")}), "positive number"),
        (request(prediction={"cause": "x", "gain": 2, "more": 1}), "positive number"),
        (request(prediction={"cause": "x", "gain": 2, "device": ["cpu"]}), "positive number"),
        (b"x" * (gateway.MAX_REQUEST + 10) + b"\n", "too large"),
    ],
)
def test_only_a_lab_and_a_submission_come_in(running, data, says):
    assert says in running.send(data)["error"]


def test_who_may_come_in(running, tmp_path):
    def refused(context: ssl.SSLContext) -> bool:
        try:
            plain = socket.create_connection(("127.0.0.1", running.door), timeout=600)
            with plain, context.wrap_socket(plain) as connection:
                connection.sendall(request())
                return not connection.recv(100)  # TLS 1.3: the server's refusal comes with the first read
        except ssl.SSLError:
            return True

    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    assert refused(nobody)  # no certificate
    keys.make_keys(tmp_path / "other", ["ann"])
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    stranger.load_cert_chain(tmp_path / "other" / "users" / "ann.pem")
    assert refused(stranger)  # a certificate of somebody else's authority
    assert "does not open this pool any more" in running.send(request(), "gone")["error"]
    with socket.create_connection(("127.0.0.1", running.door), timeout=600) as plain:  # no TLS at all
        plain.sendall(request())
        assert b"{" not in plain.recv(1000)


def test_who_shows_no_key_keeps_nobody_out(running):
    """Anybody can open connections, and a process has only so many."""
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", running.door), timeout=600))
            for _ in range(gateway.MAX_STRANGERS + 40)
        ]
        assert "There is no such lab" in running.send(request(lab="9z"))["error"]
        for each in idle:
            each.setblocking(False)
        assert eventually(lambda: all(map(closed, idle[:40])), 600)
        assert not closed(idle[-1])


def closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    with contextlib.suppress(BlockingIOError):
        return not connection.recv(1)
    return False


def test_a_user_s_key_opens_nothing_but_the_door(running):
    """Whoever may speak to the scheduler can run any code: no user may."""
    key, own = str(running.key("ann")), str(running.keys / "door-ca.pem")
    for authority in (own, str(running.keys / "pool-ca.pem")):
        security = Security(require_encryption=True, tls_ca_file=authority, tls_client_cert=key, tls_client_key=key)
        with pytest.raises(OSError):
            Client(running.scheduler, security=security, timeout=5, set_as_default=False)
    with pytest.raises(OSError):
        Client(running.scheduler.replace("tls", "tcp"), timeout=5, set_as_default=False)


def test_no_user_can_pretend_to_be_the_door(running):
    """A user's certificate is no server's, though the same authority made it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(running.key("bob"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if os.fork() == 0:
            with contextlib.suppress(Exception):
                server.wrap_socket(listener.accept()[0], server_side=True)
            os._exit(0)
        with pytest.raises(UserError, match="Is it a key for this pool"):
            grade_at(f"tls://127.0.0.1:{port}", Submission(RAISES), labs.get(NAME), key=running.key("ann"))


@pytest.mark.slow
def test_limits_of_a_user(running):
    """One at once, as this pool was started; one user's grades do not count for another."""
    with running.connection("bob") as first:
        first.sendall(request(source=SLOW))
        assert "waiting" in json.loads(first.makefile("rb").readline())
        assert "are already being graded" in running.send(request())["error"]
    # it counts though its user has gone
    assert "are already being graded" in running.send(request())["error"]
    result = grade_at(running.at, Submission(RAISES), labs.get(NAME), key=running.key("ann"), quick=True)
    assert "on purpose" in result.fatal


def test_limits_of_an_hour(tmp_path):
    entry = gateway.Gateway(None, tmp_path, "cpu", gateway.Rules(at_once=1, an_hour=2))
    for _ in range(2):
        entry._admit("ann")
        entry._busy["ann"] -= 1  # it is over
    with pytest.raises(gateway.Refused, match="2 grades in the last hour"):
        entry._admit("ann")
    entry._admit("bob")


def test_what_the_pool_did_not_take_is_not_being_graded(tmp_path):
    """Else its user would be locked out until the door is started anew."""

    async def hand_in_twice() -> None:
        async with Client(processes=False, asynchronous=True, dashboard_address=None, set_as_default=False) as client:
            pass
        entry = gateway.Gateway(client, tmp_path, "cpu", gateway.Rules(at_once=1))
        for _ in range(2):
            with pytest.raises(Exception, match="closed"):  # not gateway.Refused
                await entry._grade("ann", Job(NAME, Submission(RAISES)), None)
        assert not entry._waiting

    asyncio.run(hand_in_twice())


@pytest.mark.slow
def test_a_class_on_a_pool_goes_on_without_its_coordinator(running, tmp_path):
    """A grade that is under way when the coordinator dies is not made twice: the next run takes it over."""
    folder = tmp_path / "submitted" / "ann" / NAME
    folder.mkdir(parents=True)
    source = "%%submission\nimport time\ntime.sleep(8)\n" + RAISES
    (folder / f"{NAME}.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": source, "metadata": {}}]})
    )
    command = [sys.executable, "-m", "grader.frontends.cli", "class", str(REPOSITORY / "labs"), "submitted", "--quick"]
    command += ["--device", "cpu", "--lab", NAME, "--cluster", running.scheduler, "--keys", str(running.keys)]
    first = subprocess.Popen(command, cwd=tmp_path)
    with pool.at_address(running.scheduler, "cpu", running.keys) as workers:
        assert eventually(workers.client.list_datasets, 600)
        (key,) = workers.client.list_datasets()
        first.kill()
        first.wait()
        time.sleep(1)
        assert key in workers.client.list_datasets()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and "1/1 ann" in done.stderr, done.stderr
        assert not workers.client.list_datasets()
        (path,) = (tmp_path / "measured" / NAME).glob("*.json")
        assert json.loads(path.read_text())["tries"] == 1
        story = workers.client.run_on_scheduler(lambda dask_scheduler: [each[2] for each in dask_scheduler.story(key)])
        assert story.count("processing") == 1


@pytest.mark.slow
def test_a_result_that_could_not_be_written_is_taken_over(running, tmp_path):
    """The pool has it until it is on disk: the next run writes it, and grades nothing."""
    made, store = tmp_path / "made", Store(tmp_path / "measured")
    made.mkdir()
    store.folder.mkdir()
    in_the_way = store.folder / "any"  # a file where the lab's folder is to be
    in_the_way.touch()
    call = Call("any", "tempfile:mkdtemp", {"dir": str(made)}, device="cpu")  # leaves a folder each time it is run
    with pool.at_address(running.scheduler, "cpu", running.keys) as workers, pytest.raises(OSError):
        coordinator.grade_all([call], workers, store)
    in_the_way.unlink()
    with pool.at_address(running.scheduler, "cpu", running.keys) as workers:
        ((_, record),) = coordinator.grade_all([call], workers, store)
        assert [str(path) for path in made.iterdir()] == [record["result"]]
        assert not workers.client.list_datasets()


def test_a_pool_that_stops_leaves_nothing(running):
    assert running.stop() == 0


# ---------------------------------------------------------------- the parts


def test_keys_are_for_their_owner_and_made_once(tmp_path):
    folder = tmp_path / "keys"
    keys.make_keys(folder, ["ann"])
    before = {path.name: path.read_bytes() for path in folder.glob("*.pem")}
    keys.make_keys(folder, ["bob"])
    assert {path.name: path.read_bytes() for path in folder.glob("*.pem")} == before
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*.pem"))
    with open(folder / "users.txt", "ab") as file:
        file.write("# bob: Müller\n".encode("latin-1"))  # an instructor's note; it once let nobody in any more
    assert sorted(keys.read_users(folder).values()) == ["ann", "bob"]
    for name in ("", "a/b", "..", "a b", "x" * 65, "é"):
        with pytest.raises(UserError):
            keys.make_keys(folder, [name])
    with pytest.raises(UserError, match=r"pool-ca\.pem is missing"):
        pool.node_security(tmp_path)


def pool_keys(folder: Path, *options: str | Path) -> tuple[list[str], str]:
    """`grader pool keys`: the files that it names, and its standard error."""
    command = [sys.executable, "-m", "grader.frontends.cli", "pool", "keys", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Path(line.split()[0]).name for line in done.stdout.splitlines()[1:]], done.stderr


def test_keys_for_who_comes_later(tmp_path):
    """The same command with the same file, which has one more name."""
    folder, users = tmp_path / "keys", tmp_path / "users"
    users.write_text("ann\nbob\n")
    assert pool_keys(folder, "--users", users) == (["ann.pem", "bob.pem"], "")
    before = {path.name: path.read_bytes() for path in folder.rglob("*.pem")}
    users.write_text("ann\nbob\ncyd\n")
    made, said = pool_keys(folder, "--users", users)
    assert made == ["cyd.pem"]
    (line,) = said.splitlines()
    assert "ann, bob" in line and "cyd" not in line and str(folder / "users.txt") in line
    assert {path.name: path.read_bytes() for path in folder.rglob("*.pem") if path.name in before} == before
    assert sorted(keys.read_users(folder).values()) == ["ann", "bob", "cyd"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_names_from_any_editor(tmp_path, encoding):
    users = tmp_path / "users"
    users.write_bytes("ann\r\n\r\nbob\r\n".encode(encoding))
    assert pool_keys(tmp_path / "keys", "--users", users) == (["ann.pem", "bob.pem"], "")


def test_a_file_of_names_that_is_missing(tmp_path, capsys):
    assert cli.main(["pool", "keys", str(tmp_path / "keys"), "--users", str(tmp_path / "users")]) == 2
    assert f"{tmp_path / 'users'}: No such file" in capsys.readouterr().err


def test_a_name_that_is_given_twice_has_one_key(tmp_path):
    users = tmp_path / "users"
    users.write_text("ann\nann\n")
    made, said = pool_keys(tmp_path / "keys", "--user", "ann", "--user", "ann", "--users", users)
    assert made == ["ann.pem"] and not said
    assert list(keys.read_users(tmp_path / "keys").values()) == ["ann"]


@pytest.mark.parametrize("content", ["", "garbage", "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"])
def test_a_damaged_certificate_is_named(tmp_path, content):
    keys.make_keys(tmp_path, ["ann"])
    for name, use in (
        ("pool-node.pem", lambda: pool.node_security(tmp_path)),
        ("pool-ca.pem", lambda: pool.node_security(tmp_path)),
        ("door.pem", lambda: keys.gateway_context(tmp_path)),
        ("door-ca.pem", lambda: keys.make_keys(tmp_path, ["bob"])),
        ("door-ca-key.pem", lambda: keys.make_keys(tmp_path, ["bob"])),
    ):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=rf"{name} is damaged.*grader pool keys"):
            use()
        (tmp_path / name).write_bytes(whole)
    assert list(keys.read_users(tmp_path).values()) == ["ann"]


def test_a_certificate_that_has_ended_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(keys, "DAYS", 0)
    keys.make_keys(tmp_path, ["ann"])
    for connect in (
        lambda: pool.node_security(tmp_path),
        lambda: keys.gateway_context(tmp_path),
        lambda: keys.user_context(tmp_path / "users" / "ann.pem"),
    ):
        with pytest.raises(UserError, match=r"The certificate in .*pem ended on \d{4}-\d\d-\d\d"):
            connect()


class Empty:
    """In the place of a pool, or of a client of one, that has so many workers at each look."""

    def __init__(self, *workers: int):
        self.workers = list(workers)

    def size(self) -> int:
        return self.workers.pop(0)

    nthreads = size


def test_a_pool_without_a_worker_is_spoken_of(monkeypatch, capsys):
    monkeypatch.setattr(coordinator, "PATIENCE_S", 0.2)
    alone, looks = coordinator.NoWorkerWarning(), Empty(1, *[0] * 100)
    while looks.workers:
        alone.look(looks)
        time.sleep(0.01)
    said = capsys.readouterr().err
    assert 1 < said.count("The pool has had no worker") < 50 and "Finished grades are kept" in said


def test_slurm_jobs_that_do_not_start_are_spoken_of(monkeypatch, capsys):
    monkeypatch.setattr(pool, "REMIND_S", 0.2)
    pool._wait(Empty(0, 0, 1), None)
    assert "No SLURM job has started a worker" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "host:1", "tcp://h:1", "tls://", "tls://h:x", "tls://h:99999999", "https://h"])
def test_addresses(text):
    with pytest.raises(UserError, match="tls://HOST:PORT"):
        address(text)


def test_a_job_of_the_door_is_only_what_was_asked_for():
    job = gateway.read_request(request(prediction={"cause": "input-bound", "gain": 3}).strip())
    assert job == Job(NAME, Submission(RAISES, (2,), (), (("cause", "input-bound"), ("gain", 3))))


SBATCH = """#!/bin/bash
# in the place of SLURM: runs the job at once
cp "$1" "$HOME/job.sh"
setsid bash "$HOME/job.sh" > "$HOME/job.log" 2>&1 < /dev/null &
echo "Submitted batch job $!"
"""


@pytest.mark.slow
def test_slurm(tmp_path):
    """dask-jobqueue's own way of starting jobs, with an sbatch that runs them here."""
    pytest.importorskip("dask_jobqueue")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(SBATCH)
    (programs / "scancel").write_text('#!/bin/bash\nkill -- "-$1"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    folder = tmp_path / "submitted" / "ann" / NAME
    folder.mkdir(parents=True)
    cell = {"cell_type": "code", "source": "%%submission\n" + RAISES, "metadata": {}}
    (folder / f"{NAME}.ipynb").write_text(json.dumps({"cells": [cell]}))
    command = [sys.executable, "-m", "grader.frontends.cli", "class", str(REPOSITORY / "labs"), "submitted", "--quick"]
    command += ["--device", "cpu", "--lab", NAME, "--slurm", "1", "--sbatch=--gres=gpu:1"]
    search = f"{programs}{os.pathsep}{os.environ['PATH']}"
    here = os.environ | {"HOME": str(tmp_path), "GRADER_CACHE": str(cache_dir()), "PATH": search}
    here["PYTHONPATH"] = str(REPOSITORY)
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert done.returncode == 0 and "1/1 ann" in done.stderr, (
        done.stderr,
        [p.read_text() for p in tmp_path.glob("job.log")],
    )
    script = (tmp_path / "job.sh").read_text()
    assert "#SBATCH --gres=gpu:1" in script and "--nthreads 1" in script and "tls://" in script
    assert not list(tmp_path.glob(".dask-jobqueue*"))  # the keys
