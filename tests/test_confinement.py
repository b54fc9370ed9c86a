"""What the grader says of this machine's confinement, and what it refuses where files cannot be confined."""

import errno
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import scripts
from helpers import IS_ROOT

from grader.frontends import report
from grader.result import Result
from grader.sandbox import confine, probe

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "2a_workers"


def test_all_that_is_tried_would_work_if_nothing_were_confined():
    """Else "holds" would say nothing."""
    with probe._trial() as spec:
        program = "import json, sys; from grader.sandbox import probe; print(json.dumps(probe._try_all(json.load(sys.stdin))))"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=REPOSITORY, input=json.dumps(spec), capture_output=True, text=True
        )
    through = json.loads(done.stdout)
    assert len(through) == 20 and all(through.values()), through


def test_each_barrier_is_named():
    found = probe.confinement()
    assert found.files and found.landlock == confine.landlock_abi()
    assert list(found.to_dict()) == ["landlock", "files", "network", "sockets", "others", "user", "processes", "memory"]
    if IS_ROOT:
        assert all(barrier.holds for barrier in found.barriers), found.lines()
    assert [line.split()[0] for line in found.lines()] == list(found.to_dict())[1:]


def test_a_temporary_folder_with_a_long_path(open_folder, monkeypatch):
    """A socket's path has 107 bytes at most."""
    folder = open_folder / ("x" * 120)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with probe._trial() as spec:
        assert not probe._tried(spec)["read"]


def test_a_trial_that_fails_is_no_confinement():
    with probe._trial() as spec, pytest.raises(RuntimeError, match=r"could not be tried out .* No such file"):
        probe._tried(spec | {"home": "/nowhere"})


def test_a_trial_that_does_not_end_is_no_confinement(monkeypatch):
    """Said as any other reason, where a machine is so busy: `grader` has words for it, and no traceback."""
    monkeypatch.setattr(probe, "TRIAL_S", 0.0)
    with probe._trial() as spec, pytest.raises(RuntimeError, match=r"could not be tried out .* took more than 0 s"):
        probe._tried(spec)


@pytest.mark.parametrize("release", ["4.19+", "5.7-rc1", "4.19.0+bpo-cloud"])
def test_a_kernel_s_release_is_read_however_it_was_built(monkeypatch, release):
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    with pytest.raises(OSError, match="no /proc of its own"):  # which its callers know
        confine.own_processes()


# ---------------------------------------------------------------- a grader that is not root

# A submission has the same user as the grader then. Python itself may lie under /root, so the user of these tests keeps the
# right to read; what they try needs another one. `inside` is the confined process: what it prints is the last line.
WITHOUT_ROOT = """
import ctypes, fcntl, json, os, resource, shutil, stat, subprocess, sys, tempfile, time
from pathlib import Path

from grader.sandbox import confine, probe, rights

libc = ctypes.CDLL(None, use_errno=True)
{older}

def attempt(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except OSError as error:
        return type(error).__name__
    return "done"

def seen(path):
    found = path.stat()
    return [stat.S_IMODE(found.st_mode), found.st_gid, found.st_mtime, os.listxattr(path)]

def state(pid):
    limits = [resource.prlimit(pid, kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)]
    disk = libc.syscall({"x86_64": 252, "aarch64": 31}.get(os.uname().machine, -1), 1, pid)  # ioprio_get
    return [limits, sorted(os.sched_getaffinity(pid)), os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid), disk]

def inside(home, notebook, other):
{body}

if os.geteuid() == 0:
    confine.give_up_root(65534)
folder = Path(tempfile.mkdtemp())
other = subprocess.Popen(["sleep", "600"])
try:
    home, notebook = folder / "home", folder / "submitted" / "ann" / "2a.ipynb"
    for made in (home / "tmp", home / "cache", notebook.parent):
        made.mkdir(parents=True)
    notebook.write_text("answers")
    before = [seen(notebook), seen(notebook.parent), state(other.pid)]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ.update(rights.private_environment(home, "cpu"))
            tempfile.tempdir = None  # as it was found out outside
            files = rights.file_rights(home, [notebook], "cpu")
            confine.enter({"home": str(home), "uid": 0, "files": files, "processes": None, "memory": None})
            found = inside(home, notebook, other.pid)
            os.write(write, json.dumps(found).encode())
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with open(read) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    after = [seen(notebook), seen(notebook.parent), state(other.pid)]
    print(json.dumps({"before": before, "after": after, "found": found and json.loads(found)}))
finally:
    other.kill()
    shutil.rmtree(folder)
"""


def without_root(body: str, landlock_abi: int | None = None) -> Any:
    """What the function body `body` returns in a confined process of the grader's own user, who is not root. What it tried
    on a notebook, the folder that this lies in and another process must not be seen there. landlock_abi: of an older kernel."""
    program = WITHOUT_ROOT.replace("{body}", textwrap.indent(textwrap.dedent(body).strip(), "    "))
    if landlock_abi:
        program = program.replace("{older}", f"confine.landlock_abi = lambda: {landlock_abi}")
    program = program.replace("{older}", "")
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert not done.returncode and done.stdout, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["after"] == told["before"], told
    assert told["found"] != "", done.stderr
    return told["found"]


filtered = pytest.mark.skipif(os.uname().machine not in confine._CALLS, reason="no filter of system calls here")


@filtered
def test_modes_and_times_of_others_files_stay_as_they_are():
    """No error either: compilers set those of their own files, and nothing tells these apart."""
    found = without_root("""
        tried = []
        opened = os.open(notebook, os.O_RDONLY)
        for path in (notebook, notebook.parent, opened):
            tried += [attempt(os.chmod, path, 0), attempt(os.utime, path, (0, 0)), attempt(os.chown, path, -1, os.getgid())]
        tried.append(attempt(os.chmod, notebook.name, 0, dir_fd=os.open(notebook.parent, os.O_PATH)))
        if os.uname().machine == "x86_64":
            path, times = os.fsencode(notebook), (ctypes.c_long * 4)()
            here = -100  # AT_FDCWD
            for call in ((90, path, 0), (132, path, times), (235, path, times), (261, here, path, times), (94, path, -1, -1)):
                tried.append("done" if libc.syscall(*call) == 0 else "refused")
        tried.append("done" if libc.syscall(452, -100, os.fsencode(notebook), 0, 0) == 0 else "refused")  # fchmodat2
        return tried
    """)
    assert set(found) == {"done"}


@filtered
def test_attributes_of_others_files():
    """An access list is one of them. Programs go on where a file system has none."""
    found = without_root("""
        import errno
        def number(function, *arguments, **named):
            try:
                function(*arguments, **named)
            except OSError as error:
                return errno.errorcode[error.errno]
        opened = os.open(notebook, os.O_RDONLY)
        shutil.copy2(sys.executable, home / "copy")
        return [
            number(os.setxattr, notebook, "user.x", b"1"),
            number(os.setxattr, notebook, "user.x", b"1", follow_symlinks=False),
            number(os.setxattr, opened, "user.x", b"1"),
            number(os.removexattr, notebook, "user.x"),
        ]
    """)
    assert set(found) == {"ENOTSUP"}


@filtered
def test_limits_and_scheduling_of_other_processes():
    found = without_root("""
        kinds = resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU
        tried = [attempt(resource.prlimit, other, kind, (3, 3)) for kind in kinds]
        tried.append(attempt(resource.prlimit, os.getppid(), resource.RLIMIT_NOFILE, (3, 3)))
        with_priority = os.PRIO_PROCESS, os.PRIO_PGRP, os.PRIO_USER
        whom = (other, os.getpgid(other), 0) if os.getuid() == 65534 else (other,)  # not all that runs the tests
        for which, who in zip(with_priority, whom):
            attempt(os.setpriority, which, who, 15)
        attempt(os.sched_setaffinity, other, {min(os.sched_getaffinity(0))})
        attempt(os.sched_setscheduler, other, os.SCHED_IDLE, os.sched_param(0))
        libc.syscall({"x86_64": 251, "aarch64": 30}[os.uname().machine], 1, other, 3 << 13)
        return tried, [resource.prlimit(other, kind) != (3, 3) for kind in kinds]  # which may be read
    """)
    assert found == [["PermissionError"] * 4, [True] * 3]


@filtered
def test_nobody_waits_for_a_file_that_a_submission_may_read():
    """A lease on the grader's own code would stop every import of it for 45 seconds, and then again."""
    found = without_root("""
        opened = os.open(notebook, os.O_RDONLY)
        return [attempt(fcntl.fcntl, opened, fcntl.F_SETLEASE, kind) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK)]
    """)
    assert found == ["PermissionError"] * 2


@filtered
def test_nobody_empties_others_files_where_landlock_does_not_know_of_it():
    """It does since Linux 6.2; Ubuntu 22.04 and Debian 12 are older."""
    found = without_root(
        """
        empty = attempt(os.truncate, notebook, 0)
        with open(home / "file", "w") as own:
            own.truncate(9)
        return empty, os.path.getsize(home / "file")
        """,
        landlock_abi=2,
    )
    assert found == ["PermissionError", 9]


def test_triton_keeps_kernels_where_files_cannot_be_moved_between_folders():
    """Before Linux 5.19 Landlock allows that to nobody."""
    found = without_root(
        """
        os.environ["TRITON_CACHE_DIR"] = str(home / "cache")
        from triton.runtime import cache
        from grader.sandbox.flat_cache import FlatCache
        def put(manager, data, name):
            return Path(manager("ab" * 32).put(data, name)).read_bytes().decode()
        plain = attempt(put, cache.FileCacheManager, b"kernel", "k.cubin")
        kept = put(FlatCache, b"kernel", "k.cubin"), put(FlatCache, "text", "k.json")
        return plain, kept
        """,
        landlock_abi=1,
    )
    assert found == ["OSError", ["kernel", "text"]]


@filtered
def test_nobody_is_told_of_others_files():
    found = without_root("""
        opened = os.open(home, os.O_RDONLY)
        told = attempt(fcntl.fcntl, opened, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
        return told, libc.inotify_init1(0), libc.inotify_add_watch(0, os.fsencode(notebook), 0xFFF)
    """)
    assert found == ["PermissionError", -1, -1]


@filtered
def test_others_files_stay_in_memory():
    """Of its own user's files, a process could also give up the pages that it has mapped."""
    found = without_root("""
        import mmap
        size = 20 * mmap.PAGESIZE
        (home / "file").write_bytes(bytes(size))
        opened = os.open(home / "file", os.O_RDONLY)
        os.fsync(opened)  # what is not yet written stays anyway
        libc.mmap.restype, length = ctypes.c_void_p, ctypes.c_size_t(size)
        me = os.pidfd_open(os.getpid())
        kept = []
        for mapped, give_up in (
            (0, lambda _: os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)),
            (size, lambda pages: libc.madvise(pages, length, 21)),  # MADV_PAGEOUT
            (size, lambda pages: libc.syscall(440, me, (ctypes.c_void_p * 2)(pages.value, size), 1, 21, 0)),
        ):
            os.pread(opened, size, 0)
            pages = ctypes.c_void_p(libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, opened, 0))
            ctypes.string_at(pages, mapped)
            give_up(pages)
            states = (ctypes.c_ubyte * 20)()
            libc.mincore(pages, length, states)
            libc.munmap(pages, length)
            kept.append(sum(states))
        return kept
    """)
    assert found == [20, 20, 20]


@filtered
def test_no_way_around_the_filter():
    """What is filtered by number could be asked for by another one, or by a ring that takes requests."""
    found = without_root("""
        import errno
        path = os.fsencode(notebook)
        calls = [(number, path, 0) for number in (425, 426, 427, 469)]  # io_uring_setup and the others, file_setattr
        if os.uname().machine == "x86_64":
            calls.append((0x40000000 | 90, path, 0))  # chmod as x32 has it
        tried = [(libc.syscall(*call), errno.errorcode[ctypes.get_errno()]) for call in calls]
        # a program that is started has the filter as well
        subprocess.run(["chmod", "0", notebook])
        return tried
    """)
    assert all(tried == [-1, "ENOSYS"] for tried in found), found


@filtered
def test_what_a_process_may_do_to_itself():
    found = without_root("""
        import psutil, threading
        core, began = min(os.sched_getaffinity(0)), os.nice(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
        resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (400, 400))
        os.sched_setaffinity(os.getpid(), {core})
        psutil.Process().nice(os.nice(1) + 1)
        (home / "new").touch()
        (home / "new").touch()
        subprocess.run(["touch", home / "newer"], check=True)
        subprocess.run(["cp", "-a", home / "new", home / "newest"], check=True)
        shutil.copytree(home, home.parent / "home/tmp/copy", ignore=lambda *_: ["tmp"])
        fcntl.fcntl(0, fcntl.F_GETFL)
        return [
            resource.getrlimit(resource.RLIMIT_NOFILE), list(os.sched_getaffinity(0)) == [core],
            os.nice(0) - began, sorted(os.listdir(home)), sorted(os.listdir(home / "tmp/copy"))
        ]
    """)
    files = ["cache", "new", "newer", "newest", "tmp"]
    assert found == [[400, 400], True, 2, files, [name for name in files if name != "tmp"]]


@pytest.mark.parametrize("machine", confine._CALLS)
def test_each_call_that_has_a_number_has_a_rule(machine, monkeypatch):
    """One that is written wrongly in either place would be open."""
    monkeypatch.setattr(confine, "landlock_abi", lambda: 2)
    numbers = confine._CALLS[machine].numbers
    rules = confine._rules(numbers, own_user=False, trusted=False, counted=True, cuda=False)
    assert {number for number, *_ in rules} == {*numbers.values()} - {numbers["seccomp"]}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_function():
    """Compilers set the modes of what they make, and threads may be tied to cores."""
    found = without_root("""
        import torch
        compiled = torch.compile(lambda x: (x.sin() + x.cos()).relu())
        x = torch.linspace(0, 9, 100_000)
        right = torch.allclose(compiled(x), (x.sin() + x.cos()).relu(), atol=1e-5)
        made = [name for _, _, names in os.walk(home / "cache") for name in names if name.endswith(".so")]
        batches = torch.utils.data.DataLoader(torch.arange(8), batch_size=2, num_workers=2)
        tied = "import torch; torch.set_num_threads(2); print(torch.ones(1_000_000).exp().isfinite().all().item())"
        by_libgomp = subprocess.run(
            [sys.executable, "-c", tied], env=os.environ | {"OMP_PROC_BIND": "true"}, capture_output=True, text=True
        )
        return right, len(made) > 0, sum(int(batch.sum()) for batch in batches), by_libgomp.stdout
    """)
    assert found == [True, True, 28, "True\n"]


def trial_without_root(*before: str) -> dict[str, Any]:
    """What the probe says, by barrier, in a process that is not root and that ran `before`."""
    lines = (
        "import json, os",
        "from grader.sandbox import confine, probe",
        *before,
        "os.geteuid() or confine.give_up_root(65534)",
        "print(json.dumps({b.name: [b.holds, b.means] for b in probe.confinement().barriers}))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=REPOSITORY, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@filtered
def test_what_is_closed_without_root():
    found = trial_without_root()
    assert found["others"][0] and found["files"][0] and not found["user"][0], found


@filtered
def test_where_system_calls_cannot_be_filtered_that_is_told():
    """As in a container whose own filter forbids it."""
    machine = confine._CALLS[os.uname().machine]
    rows = confine._program(machine.architecture, [(machine.numbers["seccomp"], {}, confine._ERRNO | errno.EPERM)])
    found = trial_without_root("confine._libc.prctl(38, 1, 0, 0, 0)", f"assert confine._install({rows!r})")
    holds, means = found["others"]
    assert not holds and found["files"][0]
    for what in ("watches", "modes", "times", "limits", "scheduling"):
        assert what in means, means


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT or shutil.which("setpriv") is None, reason="needs root, and setpriv")
def test_root_in_a_container():
    """Who is root there may give others no right to read what root's folders hold, as Python often is, and has no network to
    take away. The loop's process is root's then, without any of its rights."""
    docker = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod,audit_write,setfcap"
    program = (
        "import json; from grader.sandbox import probe; from helpers import loop, running\n"
        "with running(loop('print(open(\"/proc/self/status\").read(), flush=True)')) as child:\n"
        "    child.load(), child.start(1), child.run(1)\n"
        "    rights = child.output().partition('CapEff:')[2].split()[0]\n"
        "print(json.dumps([rights, {b.name: b.holds for b in probe.confinement().barriers}]))"
    )
    command = ["setpriv", f"--bounding-set=-all,+{docker.replace(',', ',+')}", sys.executable, "-c", program]
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rights, holds = json.loads(done.stdout.splitlines()[-1])
    assert int(rights, 16) == 0 and holds["files"] and holds["others"] and holds["sockets"] is not None, holds


# ---------------------------------------------------------------- a kernel without Landlock


def without_landlock(*arguments: str | Path, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess:
    python = [sys.executable, REPOSITORY / "tests/boxes.py", "without_landlock", sys.executable, "-m"]
    return subprocess.run(
        [*map(str, [*python, *arguments])],
        cwd=cwd,
        env=scripts.environment(PYTHONPATH=f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"),
        capture_output=True,
        text=True,
        timeout=600,
    )


def grader(*arguments: str | Path) -> subprocess.CompletedProcess:
    return without_landlock("grader.frontends.cli", *arguments)


def test_doctor_says_that_files_are_open():
    done = grader("doctor")
    assert done.returncode == 1, done.stderr
    assert (
        "files      OPEN" in done.stdout
        and "read, write, create, empty, the calibration, a solution went through" in done.stdout
    )
    assert "no marks" in done.stdout


@pytest.mark.slow
def test_no_mark_without_confined_files_unless_allowed(tmp_path):
    notebook = REPOSITORY / "labs" / NAME / f"{NAME}.ipynb"
    command = ("grade", NAME, notebook, "--device", "cpu", "--quick")
    done = grader(*command)
    assert done.returncode == 1 and not done.stdout
    assert "no marks are given" in done.stderr and "--allow-unconfined" in done.stderr
    done = grader(*command, "--allow-unconfined", "--json", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    assert "Graded without confined files" in done.stdout
    result = Result.from_dict(json.loads((tmp_path / "result.json").read_text()))
    assert result.confinement["files"] is False and result.confinement["landlock"] == 0
    assert not result.fatal and result.check("parity").status == "PASS"
    assert "Graded without confined files" in report.html(result) and "not confined: files" in report.html(result)


def test_a_class_is_not_graded_without_confined_files(tmp_path):
    shutil.copytree(REPOSITORY / "labs" / NAME, tmp_path / "ann" / NAME)
    done = grader("class", REPOSITORY / "labs", tmp_path, "--lab", NAME, "--device", "cpu", "--quick")
    assert done.returncode == 1 and "no marks are given" in done.stderr, done.stderr
    assert "confinement  files      OPEN" in done.stderr
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.slow
def test_nbgrader_gives_no_mark_without_confined_files_unless_allowed(tmp_path):
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    shutil.copytree(REPOSITORY / "solutions" / NAME, tmp_path / "solutions" / NAME)
    done = without_landlock("nbgrader", "generate_assignment", NAME, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    handed_in = tmp_path / "submitted" / "ann" / NAME
    handed_in.mkdir(parents=True)
    nb = nbformat.read(tmp_path / "labs" / NAME / f"{NAME}.ipynb", as_version=4)
    next(cell for cell in nb.cells if cell.id == "submission").source = "%%submission\nraise SystemExit"
    nbformat.write(nb, handed_in / f"{NAME}.ipynb")
    autograde = ("nbgrader", "autograde", NAME, "--MeasuredGrade.device=cpu")
    done = without_landlock(*autograde, cwd=tmp_path)
    assert done.returncode and "no marks are given" in done.stderr, done.stderr
    assert "Confinement: files      OPEN" in done.stderr
    assert not list(tmp_path.glob("autograded/ann/*/*.result.json"))
    done = without_landlock(*autograde, "--MeasuredGrade.allow_unconfined=True", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("autograded/ann/*/*.result.json")
    result = json.loads(path.read_text())
    assert result["confinement"]["files"] is False and result["score"] == 0
    assert any("Graded without confined files" in warning for warning in result["warnings"])


def test_packages_that_a_pth_file_names_can_be_read(tmp_path):
    """As in an environment that lies on top of another one."""
    layer, extra = tmp_path / "layer", tmp_path / "extra"
    extra.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", layer], check=True)
    packages = next(layer.glob("lib/python*/site-packages"))
    (packages / "below.pth").write_text(f"{sysconfig.get_path('purelib')}\n{extra}\n")
    program = "from grader.sandbox import rights; print(*(path for path, _ in rights.file_rights(rights.Path('/h'), [], 'cpu')), sep='\\n')"
    done = subprocess.run([layer / "bin/python", "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    readable = done.stdout.splitlines()
    assert {sysconfig.get_path("purelib"), str(extra)} <= set(readable)
    assert str(REPOSITORY) not in readable
