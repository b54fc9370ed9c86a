"""The confinement, as it is seen from inside by a learner's code that looks around, and what has to work in it."""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import IS_ROOT, LAB, eventually, in_memory, loop, running
from variants import trains_ahead

from grader.data.cache import cache_dir
from grader.devices import NO_MULTICAST
from grader.measure.blocks import Arm, Plan, pair
from grader.paths import PACKAGE, REPOSITORY
from grader.sandbox import confine, freeze, rights
from grader.sandbox import fork_server as servers
from grader.sandbox.child_error import ChildError
from grader.sandbox.fork_server import fork_server
from grader.sandbox.parent import Child
from grader.sandbox.processes import Processes
from grader.sandbox.setting import Limits
from grader.sandbox.workspace import Workspace

pytestmark = pytest.mark.usefixtures("nothing_left")
root_only = pytest.mark.skipif(not IS_ROOT, reason="only root can give a child a user of its own")


PROBE = """
import ctypes, json, os, signal, socket, subprocess, sys, time
from pathlib import Path

import torch

libc = ctypes.CDLL(None, use_errno=True)

def attempt(function, *arguments):
    '''The class of the exception, or "done".'''
    try:
        function(*arguments)
    except BaseException as error:
        return type(error).__name__
    return "done"

def errno(result):
    return os.strerror(ctypes.get_errno()) if result < 0 else "done"

def probe(job):
{body}

def train(job):
    answer = probe(job)
    print("ANSWER" + json.dumps(answer), flush=True)
    while True:
        yield torch.ones(())
"""


def probing(body: str) -> str:
    """A submission that prints what the function body `body` returns, as JSON, before its first step."""
    return PROBE.replace("{body}", textwrap.indent(textwrap.dedent(body).strip(), "    "))


def answer(child: Child) -> Any:
    child.load()
    child.start(1)
    child.run(1)
    found = eventually(lambda: re.search("ANSWER(.*)\n", child.output()))
    return json.loads(found[1])


def inside(body: str) -> Any:
    with running(probing(body)) as child:
        return answer(child)


def test_what_torch_says_of_every_profile_is_not_shown():
    """torch 2.11 does: https://github.com/pytorch/pytorch/issues/180348"""
    remark = "Warning: Profiler clears events at the end of each cycle."
    with running(probing(f"import warnings; [warnings.warn(said) for said in ({remark!r}, 'another')]")) as child:
        answer(child)
        assert "UserWarning: another" in child.output() and f"UserWarning: {remark}" not in child.output()


@pytest.fixture
def outside(own_temporary) -> Iterator[Path]:
    """A folder that is not the child's, with files as a user has them, open for all by their modes."""
    folder = Path(tempfile.mkdtemp(prefix="o-"))
    folder.chmod(0o777)
    (folder / ".ssh").mkdir()
    for name in (".ssh/id_ed25519", "gradebook.db", "calibration.json"):
        (folder / name).write_text("secret")
        (folder / name).chmod(0o666)
    yield folder
    shutil.rmtree(folder)


# ---------------------------------------------------------------- files

REFUSED = {"PermissionError"}


def test_files_that_cannot_be_read(outside):
    files = [
        outside / ".ssh/id_ed25519",
        outside / "gradebook.db",
        REPOSITORY / "pyproject.toml",
        *cache_dir().glob("*.json"),
    ]
    files += [
        Path(__file__),
        *REPOSITORY.glob("solutions/*/*"),
        *REPOSITORY.glob("data/measured/*"),
        Path("/etc/shadow"),
    ]
    files += [Path.home() / ".bashrc", Path.home() / ".profile"]
    files = [str(path) for path in files if path.is_file()]
    folders = [
        outside,
        outside / ".ssh",
        Path.home(),
        REPOSITORY,
        REPOSITORY / "tests",
        REPOSITORY / ".git",
        cache_dir(),
    ]
    folders = [str(path) for path in folders if path.is_dir()]
    found = inside(f"""
        return {{
            "open": {{path: attempt(open, path) for path in {files}}},
            "by /proc": {{path: attempt(open, "/proc/self/root" + path) for path in {files}}},
            "by a program": {{path: subprocess.call(["cat", path]) and "PermissionError" for path in {files}}},
            "list": {{path: attempt(os.listdir, path) for path in {folders}}},
        }}
    """)
    for way, results in found.items():
        assert set(results.values()) == REFUSED, (way, results)


def test_links_lead_nowhere(outside):
    found = inside(f"""
        secret = "{outside}/gradebook.db"
        os.symlink(secret, "soft")
        hard = attempt(os.link, secret, "hard")
        return [attempt(open, "soft"), hard, attempt(os.rename, secret, "moved"), attempt(os.link, "soft", secret + ".x")]
    """)
    assert found[0] == "PermissionError" and "done" not in found, found
    assert (outside / "gradebook.db").read_text() == "secret"


@root_only
def test_file_handles_lead_nowhere(outside):
    """open_by_handle_at skips path lookup, and a root's child keeps the capability that it asks for."""
    found = inside(f"""
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

        handle, mount = Handle(bytes=128), ctypes.c_int()
        named = libc.name_to_handle_at(-100, b"{outside}/gradebook.db", ctypes.byref(handle), ctypes.byref(mount), 0)
        opened = libc.open_by_handle_at(os.open(".", os.O_RDONLY), ctypes.byref(handle), os.O_RDONLY)
        return [named, opened]
    """)
    assert found[1] == -1


def test_another_submission_s_folder(own_temporary):
    with running(loop("open('answers', 'w').write('42')")) as other:
        other.load()
        other.start(1)
        other.run(1)
        folder = other.workspace.folder
        assert (folder / "answers").read_text() == "42"
        found = inside(f"""
            other = Path("{folder}")
            return [
                attempt(os.listdir, other), attempt(open, other / "submission.py"), attempt(open, other / "answers"),
                attempt(open, other / "exchange/first.safetensors", "w"), attempt(os.listdir, other.parent),
            ]
        """)
    assert set(found) == REFUSED


def test_places_that_cannot_be_written(outside):
    folders = [REPOSITORY, REPOSITORY / "grader", tempfile.gettempdir(), "/tmp", "/var/tmp", "/", "/etc", outside]
    folders += [
        Path.home(),
        cache_dir(),
        Path(os.__file__).parent,
        Path(json.__file__).parent,
        Path(pytest.__file__).parent,
    ]
    files = [
        outside / "gradebook.db",
        outside / "calibration.json",
        cache_dir() / "calibration.json",
        REPOSITORY / "README.md",
    ]
    found = inside(f"""
        found = {{}}
        for folder in {[str(f) for f in folders]}:
            new = folder + "/grader-test-new"
            found[folder] = [
                attempt(open, new, "w"), attempt(os.mkdir, new), attempt(os.symlink, "x", new), attempt(os.mkfifo, new),
                attempt(os.rename, "/dev/shm", new), attempt(os.rename, "submission.py", new),
            ]
        for file in {[str(f) for f in files]}:
            found[file] = [attempt(open, file, "w"), attempt(open, file, "a"), attempt(os.truncate, file, 0)]
            found[file] += [attempt(os.unlink, file), attempt(os.replace, "submission.py", file)]
        found["/proc"] = [attempt(open, "/proc/sys/kernel/core_pattern", "w"), attempt(open, "/proc/sysrq-trigger", "w")]
        found["/proc"].append(attempt(open, "/proc/{os.getpid()}/oom_score_adj", "w"))
        found["home"] = [attempt(os.rename, os.environ["HOME"], os.environ["HOME"] + "-2")]
        return found
    """)
    assert not [(place, results) for place, results in found.items() if "done" in results]
    assert (outside / "gradebook.db").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == [".ssh", "calibration.json", "gradebook.db"]


def test_exchange_folder_that_is_a_link(outside):
    """The parent may read what its child may not: a link in place of the folder must not lead it there."""
    with running(loop(f"import os; os.rename('exchange', 'e'); os.symlink('{outside}', 'exchange')")) as child:
        child.load()
        child.start(1)
        child.run(1)
        with pytest.raises(ChildError, match=r"left no readable gradebook\.db"):
            child.fetch("gradebook.db", 100)


def test_python_path_that_holds_the_course(monkeypatch, outside):
    """Running from within the course, or with it on the path, must not open the solutions to children."""
    for entry in (f"{REPOSITORY}/", f"{REPOSITORY}/grader/..", str(REPOSITORY.parent), "/", ".", str(outside)):
        monkeypatch.setenv("PYTHONPATH", entry)
        opened = {
            Path(path).resolve() for path, rights in rights.file_rights(outside, [], "cuda") if rights != confine.LIST
        }
        assert REPOSITORY not in opened and not opened & set(REPOSITORY.parents), entry
        assert (outside in opened) == (entry == str(outside)) or entry != str(outside)


# ---------------------------------------------------------------- processes, network, rights


@pytest.mark.skipif(
    not IS_ROOT and confine.landlock_abi() < 6,
    reason="only root can close signals before Linux 6.12, and one would end pytest",
)
def test_other_processes_are_out_of_reach():
    with running(loop("")) as other:
        other.load()
        [victim] = [p.pid for p in psutil.Process(other.warden).children()]
        mine = os.getpid()
        server = fork_server()._process.pid
        found = inside(f"""
            found = {{}}
            for pid in [os.getppid(), {server}, {other.warden}, {victim}, {mine}]:
                found[pid] = [attempt(os.kill, pid, n) for n in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL)]
                found[pid].append(errno(libc.ptrace(0x4206, pid, 0, 0)))  # PTRACE_SEIZE
                found[pid].append(attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT)))
                found[pid].append(attempt(os.setpriority, os.PRIO_PROCESS, pid, 5))
                for name in ("environ", "mem", "maps"):
                    found[pid].append(attempt(lambda: open(f"/proc/{{pid}}/{{name}}").read(1)))
                for name in ("cwd", "root", "fd/1", "exe"):
                    found[pid].append(attempt(os.readlink, f"/proc/{{pid}}/{{name}}"))
            return found
        """)
        other.start(1)
        other.run(1)  # still there
    if not IS_ROOT:  # the same user: niceness is its own affair
        found = {pid: results[:5] + results[6:] for pid, results in found.items()}
    allowed = {"PermissionError", "Operation not permitted", "ProcessLookupError", "FileNotFoundError"}
    assert all(set(results) <= allowed for results in found.values()), found


@root_only
@pytest.mark.skipif(tuple(map(int, os.uname().release.split(".")[:2])) < (5, 8), reason="needs Linux 5.8")
def test_nobody_reads_what_others_were_called_with():
    """Tokens stand in command lines, and a submission's output comes back to whoever wrote it."""
    found = inside("""
        running = [name for name in os.listdir("/proc") if name.isdigit()]
        users = {os.stat(f"/proc/{name}").st_uid for name in running}
        return [sorted(users), os.getuid(), str(os.getpid()) in running, os.listdir("/proc/self/task")]
    """)
    users, own, is_there, threads = found
    assert users == [own] and is_there and threads


def test_no_network():
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0grader-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        found = inside(f"""
            def unix():
                socket.socket(socket.AF_UNIX).connect({name!r})

            return {{
                "connect": attempt(socket.create_connection, ("127.0.0.1", {tcp.getsockname()[1]}), 3),
                "abroad": attempt(socket.create_connection, ("1.1.1.1", 443), 3),
                "listen": attempt(socket.create_server, ("127.0.0.1", 0)),
                "abstract": attempt(unix),
                "udp": attempt(socket.socket(type=socket.SOCK_DGRAM).connect, ("1.1.1.1", 53)),
            }}
        """)
    if not IS_ROOT:
        del found["udp"]  # Landlock knows TCP only; root has an empty network namespace
    if confine.landlock_abi() < 6:
        del found["abstract"]
    assert "done" not in found.values(), found


@root_only
@root_only
def test_a_user_who_is_there_is_left_alone(monkeypatch):
    """On a host whose users have such ids: theirs would be ended, and their shared memory removed, with the submission."""
    with subprocess.Popen(["sleep", "600"], user=40_000) as theirs:
        drawn = iter([5_000, 5_001])
        monkeypatch.setattr("secrets.randbelow", lambda below: next(drawn))
        workspace = Workspace("")
        theirs.kill()
    workspace.remove()
    assert workspace.uid == 40_002


def test_a_long_path_for_temporary_files(monkeypatch, tmp_path):
    """Loader workers have sockets in it, whose paths have 107 bytes at most: the loop would wait for ever."""
    folder = tmp_path / ("x" * 60)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    workspace = Workspace("")
    assert len(f"{workspace.folder}/tmp/pymp-01234567/listener-01234567") < 107
    workspace.remove()


def test_a_file_that_cannot_be_taken_leaves_nothing_open():
    """A folder in its place can be opened, but not removed."""
    workspace = Workspace("")
    (workspace.exchange / "answer.json").mkdir()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ChildError, match=r"no readable answer\.json"):
        workspace.fetch("answer.json", 100, take=True)
    after = os.listdir("/proc/self/fd")
    workspace.remove()
    assert after == before


def test_a_compiler_that_is_not_the_system_s(monkeypatch, open_folder):
    """That of a cluster's module, or conda's."""
    compiler = open_folder / "gcc" / "bin" / "mine"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("#!/bin/sh\necho compiled\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert inside("return subprocess.run([os.environ['CXX']], capture_output=True, text=True).stdout") == "compiled\n"


def test_packages_of_the_user(monkeypatch, tmp_path):
    """As `pip install --user` puts them, for programs that a loop starts: HOME is another one there."""
    (tmp_path / "of_the_user.py").write_text("print('found')")
    monkeypatch.setattr("site.ENABLE_USER_SITE", True)
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path))
    command = "[sys.executable, '-c', 'import of_the_user']"
    assert inside(f"return subprocess.run({command}, capture_output=True, text=True).stdout") == "found\n"


def test_root_is_given_up():
    found = inside("""
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        back = [attempt(os.setuid, 0), attempt(os.setgid, 0), attempt(os.setgroups, [0]), attempt(os.chroot, ".")]
        spawned = subprocess.run(["id", "-u"], capture_output=True, text=True).stdout
        return [status, back, os.getresuid(), os.getgroups(), spawned]
    """)
    status, back, users, groups, spawned = found
    assert len(set(users)) == 1 and users[0] >= 30_000 and groups == [] and int(spawned) == users[0]
    assert set(back) == REFUSED
    read_all = 1 << 2  # CAP_DAC_READ_SEARCH: Python itself may lie under /root. What can be read Landlock decides
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        assert int(status[name], 16) == read_all
    assert status["NoNewPrivs"] == "1"


def test_no_way_out_by_mounting():
    found = inside("""
        entered = libc.unshare(0x10000000 | 0x00020000)  # CLONE_NEWUSER, CLONE_NEWNS
        return errno(libc.mount(b"none", b"tmp", b"tmpfs", 0, None))
    """)
    assert found == "Operation not permitted"


def test_nobody_is_told_of_others_files():
    """Who watches a file makes each read of it cost: the starter's, too, which the submission may read as well."""
    found = inside(f"""
        import fcntl
        import errno as names

        def by_number(*call):
            return names.errorcode[ctypes.get_errno()] if libc.syscall(*call) < 0 else "done"

        file = os.fsencode({str(REPOSITORY / "grader" / "__init__.py")!r})
        watched = os.open(os.path.dirname(file), os.O_RDONLY)
        x86 = os.uname().machine == "x86_64"
        found = [attempt(fcntl.fcntl, watched, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT)]
        found += [errno(libc.inotify_init1(0)), errno(libc.fanotify_init(0x200, 0))]  # FAN_REPORT_FID needs no root
        # as if there were queues already
        found += [by_number(254 if x86 else 27, 0, file, 0xFFF), by_number(301 if x86 else 263, 0, 1, 1, -100, file)]
        return found
    """)
    assert found == ["PermissionError", *["Operation not permitted"] * 2, *["EPERM"] * 2]


def test_others_files_stay_in_memory():
    """Else the starter would wait for the disk, or for a network, while the submission reads a copy."""
    file = REPOSITORY / "grader" / "grade.py"
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())  # what is not yet written stays anyway
        opened.read()
    found = inside(f"""
        opened = os.open({str(file)!r}, os.O_RDONLY)
        return attempt(os.posix_fadvise, opened, 0, 0, os.POSIX_FADV_DONTNEED)
    """)
    assert found == "done" and in_memory(file) == 1


LOCKS = """
import fcntl, os, struct
opened = os.open({file!r}, os.O_RDONLY)
for n in range({count}):
    fcntl.fcntl(opened, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 2 * n, 1, 0))
"""


def test_a_crowd_is_noticed(monkeypatch):
    """Turns would begin and end slowly: processes that ended are looked at as long as nobody waits for them."""
    assert freeze.MAX_PROCESSES <= 1000
    monkeypatch.setattr(freeze, "MAX_PROCESSES", 50)
    crowd = "import os\n\nfor _ in range(60):\n    os.posix_spawn('/usr/bin/true', ['true'], {})"
    with running(loop("", crowd)) as child:
        child.load()
        child.start(1)
        child.run(1)
        with pytest.raises(ChildError, match=r"has 61 processes. At most 50 are allowed"):
            child.freeze()


@pytest.mark.slow
@root_only
def test_a_storm_of_processes_ends():
    """Without root nobody but the machine's owner could set it a limit."""
    storm = """
import os

if not os.fork():
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
    with running(loop("", storm)) as child:
        child.load()
        child.start(1)
        child.run(1)
        assert eventually(lambda: len(child.processes.tree()) > 100)
        with contextlib.suppress(ChildError):  # it depends on the number of cores whether there are too many
            child.freeze()
        user = child.workspace.uid
    assert eventually(lambda: not [each for each in psutil.process_iter(["uids"]) if each.info["uids"].real == user])


@pytest.mark.parametrize("count", [10, 1000])
def test_many_locks_on_a_file_are_noticed(count):
    """Whoever closes the file looks through all of them: 50 000 make 3 ms of 3 us."""
    file = str(REPOSITORY / "grader" / "__init__.py")
    with running(loop(LOCKS.format(file=file, count=count))) as child:
        child.load()
        child.start(1)
        child.run(1)
        if count == 10:
            child.freeze()
            return
        with pytest.raises(ChildError, match="locks 1000 parts of a file"):
            child.freeze()


def test_locks_that_nobody_would_see():
    """In the table of locks one has the process that asked for it, which may have ended: or none."""
    found = inside(f"""
        import fcntl, struct

        def locked(name, how):
            return attempt(fcntl.flock, os.open(name, os.O_RDONLY | os.O_CREAT), how | fcntl.LOCK_NB)

        others = os.open({str(REPOSITORY / "grader" / "__init__.py")!r}, os.O_RDONLY)
        part = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)
        by_file = [attempt(fcntl.fcntl, others, command, part) for command in (37, 38)]  # F_OFD_SETLK, F_OFD_SETLKW
        shared = locked("a", fcntl.LOCK_SH)
        clone = 56 if os.uname().machine == "x86_64" else 220
        with_my_files = libc.syscall(clone, 0x400 | signal.SIGCHLD, 0, 0, 0, 0)
        if with_my_files == 0:
            os._exit(0)
        alone = [locked("b", fcntl.LOCK_EX), locked("b", fcntl.LOCK_EX)]
        held = [int(line.split()[4]) == os.getpid() for line in open("/proc/locks") if "->" not in line]
        return by_file, shared, with_my_files, sum(held), alone
    """)
    assert found == [["OSError"] * 2, "done", -1, 1, ["done", "BlockingIOError"]]


def test_no_namespace_of_users_and_no_ring():
    """In the one it would have all rights of root, though over little; the other takes requests that no filter sees."""
    found = inside("""
        import errno as names

        def by_number(*call):
            result = libc.syscall(*call)
            if result == 0 and call[0] in (56, 220):
                os._exit(0)
            return names.errorcode[ctypes.get_errno()] if result < 0 else "done"

        clone = 56 if os.uname().machine == "x86_64" else 220
        own_user = 0x10000000
        return [
            errno(libc.unshare(own_user)), by_number(clone, own_user | signal.SIGCHLD, 0, 0, 0, 0),
            by_number(435, bytes(64), 64), by_number(425, 8, bytes(120)),  # clone3, io_uring_setup
        ]
    """)
    assert found == ["Operation not permitted", "EPERM", "ENOSYS", "ENOSYS"]


@root_only
def test_with_a_user_of_its_own_a_submission_has_its_own_files():
    """What is closed for all files where they could be another's, the kernel closes for others' then."""
    found = inside("""
        Path("mine").touch()
        os.chmod("mine", 0o640)
        os.utime("mine", (1, 1))
        return [os.stat("mine").st_mode & 0o777, os.stat("mine").st_mtime, os.sched_getscheduler(0)]
    """)
    assert found == [0o640, 1, 0]


@pytest.mark.slow
def test_descriptors_and_environment(monkeypatch):
    """A server of its own, started where there is a secret in the environment."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in NO_MULTICAST:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(servers, "_server", None)
    with open("/etc/passwd"):
        found = inside("""
            fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and
                   os.path.exists(f"/proc/self/fd/{fd}")}
            texts = [str(dict(os.environ)), open("/proc/self/environ").read()]
            texts.append(subprocess.run(["env"], capture_output=True, text=True).stdout)
            return [fds, texts, sorted(os.environ), os.getcwd(), os.environ["HOME"], os.umask(0)]
        """)
    server, servers._server = servers._server, None
    server.close()
    fds, texts, names, folder, home, umask = found
    assert not [text for text in texts if "hunter2" in text]
    assert folder == home and umask == 0o077 and {"TMPDIR", *NO_MULTICAST} <= {*names}
    pipes = [target for target in fds.values() if target.startswith("pipe:")]
    rest = [t for t in fds.values() if not t.startswith(("pipe:", "/proc/"))]
    rest = [t for t in rest if t != f"{folder}/exchange/stack"]  # of its own, where it tells a line that hangs
    assert len(pipes) == 2 and all(t.startswith(("anon_inode:", "/dev/urandom")) for t in rest), fds


# ---------------------------------------------------------------- what has to work


def test_what_a_loop_needs_works():
    found = inside("""
        import getpass, multiprocessing.shared_memory, tempfile

        sample = job.dataset[0]
        shared = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
        shared.close(), shared.unlink()
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        with open("notes.txt", "w") as file:
            file.write("mine")
        os.mkdir("written")  # and then moved to where it is read, as Triton does in its cache
        os.rename("notes.txt", "written/notes.txt")
        os.link("written/notes.txt", "notes.txt")
        with open("/dev/stdout", "w") as output:
            output.write("")
        return [len(sample), getpass.getuser(), subprocess.call(["true"]), len(os.listdir("/dev/shm")) >= 0]
    """)
    assert found == [2, "learner", 0, True]


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_loader_workers_of_every_kind(context):
    source = LAB.starter.replace(
        "job.batches)", f"job.batches, num_workers=2, multiprocessing_context='{context}', collate_fn=collate)"
    )
    top = (
        "from torch.utils.data import default_collate\n\ndef collate(samples):\n    return default_collate(samples)\n\n"
    )
    with running(top + source, limits=Limits()) as child:
        child.load()
        child.start(1)
        with running(LAB.starter) as plain:
            plain.load()
            plain.start(1)
            assert child.run(3)[1] == plain.run(3)[1]


@pytest.fixture
def another_grader(monkeypatch, open_folder) -> Iterator[None]:
    """Another checkout's, which this Python finds as well; a server of this one's own that has started so."""
    (open_folder / "grader").mkdir()
    (open_folder / "grader" / "__init__.py").write_text("raise ImportError('another grader')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(open_folder)]))
    monkeypatch.setattr(servers, "_server", None)
    yield
    servers.fork_server().close()


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_processes_that_a_loop_starts_have_this_grader(context, another_grader):
    top = "import multiprocessing\n\ndef where(answers):\n    import grader.paths\n    answers.put(str(grader.paths.PACKAGE))\n\n"
    body = f"""
        context = multiprocessing.get_context({context!r})
        answers = context.SimpleQueue()
        worker = context.Process(target=where, args=(answers,))
        worker.start()
        worker.join()
        return None if worker.exitcode else answers.get()
    """
    with running(top + probing(body)) as child:
        assert answer(child) == str(PACKAGE), child.output()


# ---------------------------------------------------------------- taking turns

COUNTING = """
import multiprocessing, os, threading, time
import torch

def count(name):
    for i in range(10**9):
        with open(name, "w") as file:
            file.write(f"{i:12d}")
        time.sleep(0.001)

def train(job):
    threading.Thread(target=count, args=("thread",), daemon=True).start()
    multiprocessing.get_context("fork").Process(target=count, args=("worker",), daemon=True).start()
    if os.fork() == 0:
        os.setsid()
        count("stray")
    while True:
        yield torch.ones(())
"""


def test_frozen_means_all_of_it():
    with running(COUNTING) as child:
        child.load()
        child.start(1)
        child.run(1)
        names = ("thread", "worker", "stray")

        def counts() -> list[str]:
            with contextlib.suppress(OSError):
                return [(child.workspace.folder / name).read_text() for name in names]
            return []

        assert eventually(lambda: len(counts()) == 3)
        for _ in range(3):
            child.freeze()
            before = counts()
            time.sleep(0.1)
            assert counts() == before
            child.thaw()
            assert eventually(lambda: all(a != b for a, b in zip(counts(), before, strict=True)))  # noqa: B023
        child.freeze()  # and frozen it can still be closed


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_a_turn_begins_on_the_core_that_is_asked_for():
    """A loop that always ran on the same slow core would look slower than itself."""
    cores = sorted(os.sched_getaffinity(0))
    own = loop(f"os.sched_setaffinity(0, {{{cores[0]}}})\nwhile True:\n    yield torch.ones(())", "import os")
    for source, free in ((COUNTING, True), (own, False)):
        with running(source) as child:
            child.load()
            child.start(1)
            child.run(1)
            main = psutil.Process(child.warden).children()[0]
            before = main.cpu_affinity()
            began_there = 0
            for core in (cores[0], cores[-1]) * 4:
                child.freeze()
                child.thaw(core)
                began_there += main.cpu_num() == (core if free else cores[0])
                assert main.cpu_affinity() == before  # it may leave again, and may have done so
            assert began_there >= 7  # 4, where it stays on one
            child.run(1)


def test_waking_itself_up_is_noticed():
    """A timer can send SIGCONT to a process that was stopped."""
    source = loop(
        "wake()\nyield torch.ones(())\nthreading.Thread(target=work).start()",
        """
import ctypes, signal, threading

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_int * 12)]

def wake():
    signal.signal(signal.SIGCONT, lambda *_: None)
    libc = ctypes.CDLL(None)
    for n in range(30):  # once each: one whose signal waits for its turn when the process is stopped fires no more
        timer = ctypes.c_void_p()
        assert libc.timer_create(1, ctypes.byref(Event(signo=18)), ctypes.byref(timer)) == 0  # SIGCONT
        assert libc.timer_settime(timer, 0, ctypes.byref((ctypes.c_long * 4)(0, 0, 1 + n, 0)), None) == 0

def work():
    while True:
        torch.rand(999).sum()
""",
    )
    with running(source) as child:
        child.load()
        child.start(1)
        child.run(2)
        child.freeze()
        before = child.processes.cpu_seconds()
        assert eventually(lambda: child.processes.cpu_seconds() > before + 0.1)
        with pytest.raises(ChildError, match=r"worked for .* s while they were stopped for the other side's turn"):
            child.thaw()


WAKES_AND_GOES = """
import ctypes, os, time
import torch

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_int * 12)]

def train(job):
    child = os.fork()
    if child == 0:
        if {orphan} and os.fork():
            os._exit(0)
        libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
        libc.prctl(15, {named}, 0, 0, 0)  # PR_SET_NAME
        libc.timer_create(1, ctypes.byref(Event(signo=18)), ctypes.byref(timer))  # SIGCONT
        libc.timer_settime(timer, 0, ctypes.byref((ctypes.c_long * 4)(0, 0, 4, 0)), None)
        with open("waits", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(3)
        os._exit(0)
    if {orphan}:
        os.waitpid(child, 0)
    while True:
        yield torch.ones(())
"""


def test_waking_up_and_being_gone_is_noticed():
    """Whoever has ended by the time of the next turn is in nobody's account."""
    with contextlib.ExitStack() as stack:
        waiting = {}
        for orphan, named in ((True, b"a name"), (False, b"a name"), (True, b"\xff no text")):
            child = stack.enter_context(running(WAKES_AND_GOES.format(orphan=orphan, named=named)))
            child.load()
            child.start(1)
            child.run(1)
            waits = child.workspace.folder / "waits"
            process = psutil.Process(int(eventually(lambda: waits.exists() and waits.read_text())))  # noqa: B023
            child.freeze()
            assert process.status() == psutil.STATUS_STOPPED  # it has not ended by itself
            waiting[child] = process
        for child, process in waiting.items():
            assert eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)  # noqa: B023
            with pytest.raises(ChildError, match="while they were stopped for the other side's turn"):
                child.thaw()


@pytest.mark.slow
def test_ending_right_after_a_turn_began_is_no_cheating():
    """As threads of pools do, and a loader's workers at the end of an epoch."""
    source = loop(
        "while True:\n    begin()\n    yield torch.ones(())",
        """
import multiprocessing, os, threading, time

def begin():
    threading.Thread(target=time.sleep, args=(0.03,)).start()
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.03,))
    process.start()
    if os.fork() == 0:
        time.sleep(0.03)
        os._exit(0)
""",
    )
    with running(source) as child:
        child.load()
        child.start(1)
        for pause in (0, 0.01, 0.02, 0.03, 0.04) * 4:
            child.run(2)
            time.sleep(pause)
            child.freeze()
            time.sleep(0.05)
            child.thaw()


def test_killed_while_it_was_stopped_is_no_cheating():
    """By the kernel, say, which needed the memory."""
    with running(loop("")) as child:
        child.load()
        child.start(1)
        child.run(1)
        child.freeze()
        [main] = psutil.Process(child.warden).children()
        main.kill()
        assert eventually(lambda: not main.is_running())
        child.thaw()
        with pytest.raises(ChildError, match="was killed by the kernel"):
            child.run(1)


def test_half_a_surrogate_pair_is_no_traceback():
    with running("# \ud800\n" + loop('assert len("\ud800") == 1')) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [1.0]


@pytest.mark.parametrize("change", ["cores", "priority", "policy"])
def test_a_starter_that_somebody_slows_is_not_measured(change):
    """Without root a submission has the same user as the starter, and may do so."""
    with running(LAB.starter, trusted=True) as child:
        child.load()
        child.freeze()
        child.thaw()
        child.freeze()
        main = min(child.processes.tree(), key=psutil.Process.create_time)
        if change == "cores":
            os.sched_setaffinity(main.pid, {min(os.sched_getaffinity(main.pid))})
        elif change == "priority":
            main.nice(5)
        else:
            os.sched_setscheduler(main.pid, os.SCHED_IDLE, os.sched_param(0))
        with pytest.raises(ChildError, match="changed on which cores the starter runs, or how soon"):
            child.thaw()


def test_a_starter_that_somebody_slows_while_it_runs_is_not_measured():
    with running(LAB.starter, trusted=True) as child:
        child.load()
        main = min(child.processes.tree(), key=psutil.Process.create_time)
        os.sched_setaffinity(main.pid, {min(os.sched_getaffinity(main.pid))})
        with pytest.raises(ChildError, match="changed on which cores the starter runs, or how soon"):
            child.freeze()


@pytest.mark.slow
def test_a_fork_server_that_somebody_slows_starts_nobody():
    """Both loops would begin with its cores; the submission could take back the others."""
    fork_server().wait_ready()
    server, opened = psutil.Process(fork_server()._process.pid), len(os.listdir("/proc/self/fd"))
    os.sched_setaffinity(server.pid, {min(os.sched_getaffinity(server.pid))})
    with pytest.raises(ChildError, match="on which cores the grader runs, or how soon") as raised, running(LAB.starter):
        pass
    assert raised.value.trusted  # nothing is measured, nobody blamed
    assert (
        len(os.listdir("/proc/self/fd")) < opened
    )  # the server's socket is closed, and no pipe of the child's is left open
    assert not psutil.pid_exists(server.pid)  # it is gone, also where it takes long to end
    with running(LAB.starter) as child:  # by another server
        child.load()


CHAIN = """
import ctypes, mmap, os, signal, time

import numpy as np
import torch

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_int * 12)]

libc = ctypes.CDLL(None)
shared = np.frombuffer(mmap.mmap(-1, 4096), np.float64)  # seconds of work, the worker's process, whether timers run

def orphan(what):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)
    if os.fork():
        os._exit(0)
    what()

def waker():
    signal.signal(signal.SIGCONT, lambda *_: None)
    for n in range(30):  # once each: one whose signal waits for its turn when the process is stopped fires no more
        timer = ctypes.c_void_p()
        libc.timer_create(1, ctypes.byref(Event(signo=18)), ctypes.byref(timer))
        libc.timer_settime(timer, 0, ctypes.byref((ctypes.c_long * 4)(0, 0, 1 + n, 0)), None)
    shared[2] = 1
    while True:
        time.sleep(0.01)
        try:
            os.kill(int(shared[1]), 18)
        except OSError:
            pass

def worker():
    shared[1] = os.getpid()
    before = time.process_time()
    while True:
        for _ in range(20000):
            pass
        now = time.process_time()
        shared[0] += now - before
        before = now
        if now > 0.01:
            if os.fork():
                os._exit(0)
            shared[1], before = os.getpid(), time.process_time()

def train(job):
    orphan(worker)
    orphan(waker)
    while True:
        yield torch.tensor(shared[0] * shared[2], dtype=torch.float32)
"""


def test_a_chain_of_short_processes_that_wake_each_other_is_noticed():
    """The time of a process that has ended is in no living one's account."""
    with running(CHAIN) as child:
        child.load()
        child.start(1)
        child.run(1)
        assert eventually(lambda: child.run(1)[1][0] > 0.1)  # seconds that the chain has worked
        child.freeze()
        stopped = child.processes.threads()
        assert eventually(lambda: child.processes.threads() != stopped)
        with pytest.raises(ChildError, match="while they were stopped for the other side's turn"):
            child.thaw()


# a process that is gone before anybody sees it, but for the next one, which counts on
REPLACES_ITSELF = """
import subprocess, sys
import torch

CHAIN = '''
import mmap, os, time

os.setsid()
with open("count", "w+b") as file:
    file.write(bytes(8))
    file.flush()
    count = mmap.mmap(file.fileno(), 8)
end = time.monotonic() + 300
while time.monotonic() < end:
    until = time.perf_counter() + 0.0005
    while time.perf_counter() < until:
        pass
    count[:] = (int.from_bytes(count, "little") + 1).to_bytes(8, "little")
    if os.fork():
        os._exit(0)
'''

def train(job):
    subprocess.Popen([sys.executable, "-S", "-E", "-c", CHAIN]).wait()
    while True:
        yield torch.ones(())
"""


def counted(child: Child) -> int:
    file = child.workspace.folder / "count"
    return int.from_bytes(file.read_bytes(), "little") if file.exists() else 0


ENDS = """
from helpers import eventually, running
from test_sandbox import REPLACES_ITSELF, counted
from grader.sandbox import workspace

if {without_user}:
    workspace.Workspace.uid = property(lambda self: 0, lambda self, uid: None)
with running(REPLACES_ITSELF, allow_unconfined=True) as child:
    child.load()
    child.start(1)
    child.run(1)
    assert eventually(lambda: counted(child) > 50)
# whoever lives holds the end of the pipe to which it prints
assert not child.ending.output._thread.is_alive()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("without_landlock", "without_user"),
    [
        (False, False),
        pytest.param(False, True, marks=root_only),
        (True, False),
        pytest.param(True, True, marks=root_only),
    ],
)
def test_processes_that_replace_themselves_are_ended(without_landlock, without_user):
    """Each of them is too short-lived to be found in a list of processes."""
    program = [sys.executable, "-c", ENDS.format(without_user=without_user)]
    wrapped = [sys.executable, str(REPOSITORY / "tests/boxes.py"), "without_landlock"] if without_landlock else []
    path = os.pathsep.join(map(str, (REPOSITORY / "tests", REPOSITORY)))
    done = subprocess.run(
        [*wrapped, *program], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600
    )
    assert not done.returncode, done.stderr


def test_a_parent_that_dies_while_it_stops_a_child_leaves_nothing():
    """It has not read the answer then, which makes of the end of their connection an error."""
    with running(loop("")) as child:
        child.load()
        os.write(child._lifeline, b"s")
        assert eventually(lambda: select.select([child._lifeline], [], [], 0)[0])
        os.close(child._lifeline)
        child._lifeline = os.open(os.devnull, os.O_WRONLY)
        assert eventually(lambda: not child.processes.tree() and not child.workspace.folder.exists())


def test_processes_that_replace_themselves_are_stopped():
    with running(REPLACES_ITSELF) as child:
        child.load()
        child.start(1)
        child.run(1)
        assert eventually(lambda: counted(child))
        for _ in range(5):
            child.freeze()
            before = counted(child)
            time.sleep(0.1)
            assert counted(child) == before
            child.thaw()
            assert eventually(lambda: counted(child) > before)  # noqa: B023


@pytest.fixture(params=["its own", "everybody's"])
def shared(request, monkeypatch) -> str:
    """Whose /dev/shm a child has; it has everybody's where it can have none of its own."""
    if request.param == "everybody's":
        if not IS_ROOT:
            pytest.skip("only a user of its own tells what is a child's")
        monkeypatch.setattr(rights, "has_own_shared_memory", lambda _: False)
    elif not rights.has_own_shared_memory(IS_ROOT):
        pytest.skip("this kernel gives nobody a /dev/shm of his own")
    return request.param


def test_shared_memory_does_not_outlast_a_submission(shared, tmp_path):
    file = Path("/dev/shm") / f"left-{tmp_path.name}-{os.getpid()}"
    with running(loop(f"open({str(file)!r}, 'w').write('kept')\nwhile True:\n    yield torch.ones(())")) as child:
        child.load()
        child.start(1)
        child.run(1)
        assert file.exists() == (shared == "everybody's") and sum(1 for _ in child.memory.shared()) == 1
        child.workspace.empty()
        assert not file.exists()


@pytest.mark.slow
def test_without_root_shared_memory_is_its_own_as_well(shared, open_folder):
    """Root tries it for another user."""
    program = (
        "import os; os.environ['GRADER_CACHE'] = os.environ['HOME'] = os.getcwd()\n"
        "from grader.sandbox import confine\n"
        "os.geteuid() or confine.give_up_root(40_000)\n"
        "from grader.sandbox import rights\n"
        "from helpers import loop, running\n"
        "if not rights.has_own_shared_memory(False): raise SystemExit('none')\n"
        'with running(loop(\'open("/dev/shm/grader-mine", "w").write("kept")\')) as child:\n'
        "    child.load(), child.start(1), child.run(1), child.freeze(), child.thaw(), child.run(1)\n"
        "    print(os.path.exists('/dev/shm/grader-mine'), len(dict(child.memory.shared())), child.memory.main() > 0)"
    )
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=open_folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout == "False 1 True\n" or done.stderr == "none\n", done


def test_folders_without_rights_do_not_outlast_a_grade(open_folder):
    """Root can open them; another user tries it."""
    program = (
        "import os; from grader.sandbox import folders\n"
        "os.geteuid() or os.setresuid(40_000, 40_000, 40_000)\n"
        "os.makedirs('a/b'), os.mkdir('a/b/c', 0o300), os.mkdir('a/b/c/d')\n"
        "folders.clear_away(os.path.abspath('a'), 0), print(os.path.exists('a'))"
    )
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=open_folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout == "False\n", done


def test_shared_memory_has_an_end(shared, monkeypatch):
    """Others' loader workers die where it is full."""
    monkeypatch.setattr(rights, "shared_limit", lambda: 8 << 20)
    body = "open('/dev/shm/big', 'wb').write(bytes(20 << 20))"
    with running(loop(body)) as child:
        child.load()
        child.start(1)
        with pytest.raises(ChildError, match=r"No space left|wrote 0\.0 GB to shared memory. At most 0\.0 GB are"):
            child.run(1)
            child.freeze()


def test_a_temporary_folder_in_shared_memory(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert inside("return os.getcwd()").startswith(folder)


FULL = '''
import os, sys
from grader.sandbox import confine

os.environ["GRADER_CACHE"] = sys.argv[1]
try:
    confine.own_shared_memory(32 << 20)  # for this test alone: as the machine's
except OSError:
    raise SystemExit("none")
from grader.sandbox import rights
from helpers import grade_cells, loop

rights.has_own_shared_memory = lambda _: False
open("/dev/shm/others", "wb").write(bytes({others} << 20))
BODY = """
import mmap
with open("/dev/shm/own", "wb+") as file:
    file.truncate({own} << 20)
    mapped = mmap.mmap(file.fileno(), 0)
    mapped[:] = bytes(len(mapped))
"""
result = grade_cells(loop(BODY))
print(result.disturbed or result.fatal)
'''


@pytest.mark.slow
@root_only
@pytest.mark.parametrize(
    ("others", "own", "said"),
    [
        (28, 8, "other programs have filled /dev/shm"),
        (1, 40, "crashed with SIGBUS, most likely because shared memory was full"),
    ],
)
def test_shared_memory_that_others_filled(others, own, said):
    """A loop that dies of it is nobody's failure."""
    program = FULL.replace("{others}", str(others)).replace("{own}", str(own))
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, str(cache_dir())],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert said in done.stdout or done.stderr == "none\n", done


@pytest.mark.slow
def test_training_ahead_gains_nothing():
    """A background thread that trains ahead of being asked, while the other side's blocks are timed: it would gain 2x."""
    assert gain_over_starter(waiting(trains_ahead("3a_precision"))) < 1.5


@pytest.mark.slow
def test_a_loop_is_looked_at_while_it_is_stopped(monkeypatch):
    """What it does meanwhile is not timed."""
    looked = []
    for name in ("waited", "cpu_seconds"):
        look = getattr(Processes, name)

        def noted(processes: Processes, look=look, name=name) -> Any:
            states = {psutil.Process(pid).status() for pid in {pid for pid, _ in processes.threads()}}
            looked.append((name, states == {psutil.STATUS_STOPPED}))
            return look(processes)

        monkeypatch.setattr(Processes, name, noted)
    gain_over_starter(waiting(LAB.starter))
    assert {name for name, _ in looked} == {"waited", "cpu_seconds"} and all(stopped for _, stopped in looked), looked


SAVING_UP = """
import queue, sys, threading, time
{steps}

def asked_for():
    frame = sys._getframe()
    while frame.f_code.co_name != "run":
        frame = frame.f_back
    return frame.f_locals["steps"]

def train(job):
    done = queue.Queue(maxsize=100_000)
    threading.Thread(target=lambda: [done.put(loss) for loss in steps(job)], daemon=True).start()
    due, requests, left = time.monotonic(), 0, 0
    while True:
        loss, now = done.get(), time.monotonic()
        if now - due > 0.15:  # it was stopped: its turn begins
            due, requests = now, 0
        if not left:
            requests, left = requests + 1, asked_for()
        left -= 1
        due += {step_s} * (2 if requests <= 2 else 0.5)  # slow while it is burnt, then fast
        time.sleep(max(0.0, due - now))
        yield loss
"""


@pytest.mark.slow
def test_saving_up_steps_gains_nothing():
    """Work done ahead in the part of a turn that is not timed, and handed over in the part that is: it would gain 2x."""
    steps = waiting(LAB.starter).replace("def train(job):", "def steps(job):")
    assert gain_over_starter(SAVING_UP.format(steps=steps, step_s=WAIT_S)) < 1.5


WAIT_S = 0.02


def waiting(source: str) -> str:
    """The loop with steps that wait most of their time, which takes as long on a busy machine."""
    step = "        loss.backward()"
    return "import time\n" + source.replace(step, f"        time.sleep({WAIT_S})\n{step}")


def gain_over_starter(source: str) -> float:
    """The median gain of three pairs of blocks over the starter that waits, while it trains the same model."""
    with running(source) as child, running(waiting(LAB.starter)) as starter:
        arms = Arm(child), Arm(starter)
        for arm in arms:
            arm.child.load()
            arm.child.start(1)
            arm.warm_up(4)
            arm.child.freeze()
        times = [pair(arms[1], arms[0], Plan(block_s=0.4)) for _ in range(3)]
    assert arms[0].losses[:4] == pytest.approx(arms[1].losses[:4], rel=1e-4)
    return statistics.median(each.starter_s / each.submission_s for each in times)


def test_nothing_of_system_v_is_left():
    """It outlives its processes, whoever it was given to; so do queues of messages, and a user's keys."""
    made = inside(
        """
        keyctl = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
        kept = libc.syscall(keyctl, 22, -1, -2)  # KEYCTL_GET_PERSISTENT, the user's own, into the process's
        shared = [libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600), libc.mq_open(b'/x', 0o102, 0o600, 0)]
        return [kept, *shared, libc.shmctl(1 << 20, 0, None), libc.mq_unlink(b"/y")]
        """
    )
    assert made == [-1] * 7


def test_nothing_happens_while_all_stand_still():
    """Whoever runs meanwhile pays: for one event that 15,000 event queues are told of, 2.2 ms on an AMD EPYC."""
    made = inside(
        """
        zeros = ctypes.create_string_buffer(128)
        io_setup = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
        return [libc.timerfd_create(1, 0), libc.signalfd(-1, zeros, 0), libc.syscall(io_setup, 8, zeros)]
        """
    )
    assert made == [-1] * 3


def test_the_main_process_s_time_is_that_of_all_its_threads_and_of_no_other():
    """Each of them works for 0.3 s of processor time: a thread that has ended, and a process."""
    work = """
import os, threading, time
def work():
    began = time.thread_time()
    while time.thread_time() - began < 0.3:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
if os.fork() == 0:
    work()
    os._exit(0)
os.wait()
"""
    with running(loop(work)) as child:
        child.load()
        before, of_all = child.processes.main_seconds(), child.processes.cpu_seconds()
        child.start(1)
        child.run(1)
        child.freeze()
        main, of_all = child.processes.main_seconds() - before, child.processes.cpu_seconds() - of_all
    assert main > 0.28 and of_all - main > 0.28


# ---------------------------------------------------------------- the fork server


@pytest.mark.slow
def test_server_that_died_is_replaced(monkeypatch):
    monkeypatch.setattr(servers, "_server", None)
    server = fork_server()
    server._process.kill()
    server._process.wait()
    assert inside("return 1") == 1
    replaced, servers._server = servers._server, None
    assert replaced is not server
    replaced.close()


SERVED = """
import signal, sys, time
from grader.sandbox.fork_server import fork_server
from grader.sandbox.parent import Child
from grader.sandbox.setting import Setting
from grader.sandbox.workspace import Workspace
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so does all that it starts
if sys.argv[1] == "early":
    fork_server()
    sys.exit()
setting = Setting(workload="grader.workloads.gpt", options={}, device="cpu")
child = Child(Workspace("def train(job):\\n    while True:\\n        yield 0"), setting)
child.load()
print("loaded", flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_server_whose_parent_has_gone_says_nothing():
    """At whatever point: before it is ready, before that is read, before a request is answered."""
    ours, servers = [], []
    for _ in range(3):
        end, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "grader.sandbox.server", str(theirs.fileno())]
            server = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        ours.append(end)
        servers.append(server)
    ours[0].close()
    for end in ours[1:]:
        assert select.select([end], [], [], 120)[0]
    ours[1].close()
    assert ours[2].recv(64) == b"ready"
    ours[2].sendall(b"{}")
    ours[2].close()
    assert [server.communicate(timeout=600)[1] for server in servers] == [b""] * 3
    assert [server.returncode for server in servers] == [0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["early", "open", signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_script_that_ends_is_all_that_speaks_of_it(ending, own_temporary):
    """It ends before its server is ready, without closing its child, by Ctrl-C, or by a signal it does not know of."""
    how = ending if isinstance(ending, str) else "wait"
    command = [sys.executable, "-c", SERVED, how]
    with subprocess.Popen(command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        if ending != "early":
            assert script.stdout.readline() == "loaded\n"
        if how == "wait":
            script.send_signal(ending)
        _, said = script.communicate(timeout=600)  # its server has ended as well: it has these pipes
    assert said.count("Traceback") == (ending == signal.SIGINT), said
    assert ("KeyboardInterrupt" in said) == (ending == signal.SIGINT)
