"""Runs a program as in other people's machines: python tests/boxes.py BOX[,BOX...] PROGRAM ARGUMENT ...

A box takes something away, for the program and all it starts: capabilities, file systems, system calls, settings. Most need root.
They are applied in the order in which they stand in `BOXES`, whatever order they are named in."""

import ctypes
import errno
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)

# BPF: ld, jeq, jset, ret; what seccomp answers
_LOAD, _EQUAL, _HAS, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _FIRST_ARGUMENT = 0, 16
_NEW_NAMESPACE = 0x7E020000 | 0x80  # each of CLONE_NEW*
_NEWNS = 0x20000
_RDONLY, _NOEXEC, _REMOUNT, _BIND, _MOVE, _REC, _PRIVATE = 1, 8, 32, 4096, 8192, 0x4000, 0x40000
_NEWUSER = 0x10000000
NOBODY, NAMELESS = 65534, 54321  # the second has no entry in /etc/passwd
scratch = ""  # the folder of this box's own, removed behind it

_ARM = os.uname().machine == "aarch64"
NUMBERS = {
    "clone": 220 if _ARM else 56, "unshare": 97 if _ARM else 272, "ptrace": 117 if _ARM else 101, "seccomp": 277 if _ARM else 317,
    "kcmp": 272 if _ARM else 312, "memfd_create": 279 if _ARM else 319, "userfaultfd": 282 if _ARM else 323, "setns": 268 if _ARM else 308,
    "flock": 32 if _ARM else 73, "perf_event_open": 241 if _ARM else 298, "bpf": 280 if _ARM else 321, "mbind": 235 if _ARM else 237,
    "set_mempolicy": 237 if _ARM else 238, "process_vm_readv": 270 if _ARM else 310, "rseq": 293 if _ARM else 334,
    "inotify_init1": 26 if _ARM else 294, "sched_setattr": 274 if _ARM else 314,
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_open": 434,
    "clone3": 435, "close_range": 436, "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446, "memfd_secret": 447,
}  # fmt: skip
LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def _check(value: int, what: str) -> None:
    if value < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def answer(names: Iterable[str], error: int, namespaces: int = 0) -> None:
    """From now on these system calls fail so; namespaces: how `unshare` and `clone` fail where they would make one."""
    rows = [(_LOAD, 0, 0, _NUMBER)]
    for name in names:
        rows += [(_EQUAL, 0, 1, NUMBERS[name]), (_RETURN, 0, 0, _ERRNO | error)]
    for name in ("unshare", "clone") if namespaces else ():
        rows += [(_EQUAL, 0, 4, NUMBERS[name]), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_HAS, 0, 1, _NEW_NAMESPACE)]
        rows += [(_RETURN, 0, 0, _ERRNO | namespaces), (_LOAD, 0, 0, _NUMBER)]
    rows.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code)))
    for arguments in ((38, 1, 0, 0, 0), (22, 2, program, 0, 0)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        _check(libc.prctl(*arguments), "prctl")


# ---------------------------------------------------------------- file systems


def _mount(
    source: str | None, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    _check(libc.mount(*words, flags, options.encode() if options is not None else None), f"mount({target})")


def _folder(name: str) -> str:
    path = os.path.join(scratch, name)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o777)
    return path


def _own_mounts() -> None:
    _check(libc.unshare(_NEWNS), "unshare")
    _mount(None, "/", flags=_REC | _PRIVATE)


def _read_only(folder: str) -> None:
    _mount(folder, folder, flags=_BIND | _REC)
    _mount(None, folder, flags=_REMOUNT | _BIND | _RDONLY)


def _read_only_here() -> None:
    here = os.getcwd()
    _read_only(here)
    os.chdir(here)


def _dev_without_shm() -> None:
    new = _folder("dev")
    _mount("tmpfs", new, "tmpfs", options="mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        Path(new, name).touch()
        _mount(f"/dev/{name}", f"{new}/{name}", flags=_BIND)
    Path(new, "fd").symlink_to("/proc/self/fd")
    _mount(new, "/dev", flags=_MOVE)
    os.rmdir(new)


def _home(options: str, flags: int = 0) -> None:
    """HOME on a file system of its own."""
    home = _folder("home")
    _mount("tmpfs", home, "tmpfs", flags, options)
    os.environ["HOME"] = home
    for name in ("XDG_CACHE_HOME", "GRADER_CACHE"):
        os.environ.pop(name, None)


def _full_home() -> None:
    _home("size=4096,mode=777")
    with open(Path(os.environ["HOME"], "full"), "wb") as file:
        file.write(bytes(4096))


# ---------------------------------------------------------------- users and rights


def _open_up(path: Path) -> None:
    """Let any user reach a folder: one above it that is root's alone gets to hold nothing but the way there."""
    closed = next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 1), None)
    if closed is None:
        return
    below = path.relative_to(closed).parts[0]
    with tempfile.TemporaryDirectory() as aside:
        _mount(str(closed / below), aside, flags=_BIND | _REC)
        _mount("tmpfs", str(closed), "tmpfs", options="mode=755")
        (closed / below).mkdir()
        _mount(aside, str(closed / below), flags=_MOVE)


def _become(user: int, **environment: str | None) -> None:
    for path in {sys.prefix, sys.base_prefix}:
        _open_up(Path(path))
    _set(**environment)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _only_root() -> None:
    """Root of a user namespace that has no other user, as some containers without a daemon."""
    _check(libc.unshare(_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    for name in ("uid_map", "gid_map"):
        Path("/proc/self", name).write_text("0 0 1")


def _drop_capabilities(kept: int = 0) -> None:
    for capability in range(64):
        if not kept >> capability & 1 and libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
            break
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("IIIIII", *[kept] * 2, 0, 0, 0, 0)
    _check(libc.capset(header, data), "capset")


# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod, audit_write, setfcap
_OF_DOCKER = sum(1 << n for n in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31))


def _set(**values: str | None) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _long_temporary() -> None:
    os.environ["TMPDIR"] = _folder("a-cluster-gives-each-job-a-folder-with-a-long-name" * 3)


def _full_disk() -> None:
    """No room wherever temporary files go."""
    for folder in ("/tmp", "/var/tmp"):  # the second has this box's own folder, of which nothing is needed any more
        _mount("tmpfs", folder, "tmpfs", options="size=4096,mode=1777")
        with open(Path(folder, "full"), "wb") as file:
            file.write(bytes(4096))
    _set(TMPDIR=None)


def _full_folder() -> None:
    """No room where one is."""
    _mount("tmpfs", _folder("full"), "tmpfs", options="size=4096,mode=777")
    with open(Path(scratch, "full", "full"), "wb") as file:
        file.write(bytes(4096))
    os.chdir(Path(scratch, "full"))


def _small_folder() -> None:
    """Room for little more than what a run's folder is tried out with."""
    _mount("tmpfs", _folder("small"), "tmpfs", options="size=64k,mode=777")
    os.chdir(Path(scratch, "small"))


def _noexec_temporary() -> None:
    _mount("tmpfs", _folder("noexec"), "tmpfs", _NOEXEC, "mode=1777")
    os.environ["TMPDIR"] = _folder("noexec")


def _old_cgroups() -> None:
    """Version 1, with the time of one and a half cores and 3 GiB, as a container of it sees them."""
    own = Path(scratch, "cgroup")
    own.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    _mount(str(own), f"/proc/{os.getpid()}/cgroup", flags=_BIND)
    _mount("tmpfs", "/sys/fs/cgroup", "tmpfs", options="mode=755")
    for name, value in {
        "cpu,cpuacct/cpu.cfs_quota_us": 150_000,
        "cpu,cpuacct/cpu.cfs_period_us": 100_000,
        "memory/memory.limit_in_bytes": 3 << 30,
        "memory/memory.usage_in_bytes": 1 << 30,
    }.items():
        path = Path("/sys/fs/cgroup", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{value}\n")


def _at_start(*lines: str) -> None:
    """Every Python of the box begins with these lines."""
    folder = Path(_folder("start"))
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


def _limit(what: int, count: int) -> None:
    resource.setrlimit(what, (count, count))


_MOUNTS: dict[str, Callable[[], None]] = {
    "no_proc": lambda: _mount("tmpfs", "/proc", "tmpfs", options="mode=555"),
    "read_only_proc": lambda: _read_only("/proc"),
    "hidepid": lambda: _mount("proc", "/proc", "proc", options="hidepid=2"),
    "subset_pid": lambda: _mount("proc", "/proc", "proc", options="subset=pid"),
    "no_cgroups": lambda: _mount("tmpfs", "/sys/fs/cgroup", "tmpfs", options="mode=755"),
    "small_shm": lambda: _mount("tmpfs", "/dev/shm", "tmpfs", options="size=64m,mode=1777"),
    "no_shm": _dev_without_shm,
    "read_only_home": lambda: _home("mode=555", _RDONLY),
    "full_home": _full_home,
    "full_disk": _full_disk,
    "full_folder": _full_folder,
    "small_folder": _small_folder,
    "read_only_here": _read_only_here,
    "noexec_temporary": _noexec_temporary,
    "read_only_packages": lambda: [_read_only(path) for path in {sys.prefix, str(Path(__file__).parents[1])}] and None,
    "old_cgroups": _old_cgroups,
    "no_ps": lambda: [
        _mount("/dev/null", os.path.realpath(path), flags=_BIND) for path in ("/usr/bin/ps",) if os.path.exists(path)
    ],
}
# what Python of macOS has not, as far as it has been seen to matter
_LINUX_ONLY = (
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_getscheduler",
    "sched_setscheduler",
    "O_PATH",
    "setresuid",
    "setresgid",
)


# the clock on the wall, an hour ahead at every second look
_JUMPS = "import itertools, time; a, b = time.time, itertools.cycle((0, 3600)); time.time = lambda: a() + next(b)"


_SETTINGS: dict[str, Callable[[], None]] = {
    "no_home": lambda: _set(HOME=None, USER=None, LOGNAME=None, XDG_CACHE_HOME=None),
    "like_macos": lambda: _at_start("import os", *(f"vars(os).pop({name!r}, None)" for name in _LINUX_ONLY)),
    "jumping_clock": lambda: _at_start(_JUMPS),
    "few_files": lambda: _limit(resource.RLIMIT_NOFILE, 256),
    "few_processes": lambda: _limit(resource.RLIMIT_NPROC, 40),  # for users, not for root
    "strict_umask": lambda: os.umask(0o077) and None,
    "bare_path": lambda: _set(PATH="/nonexistent"),
    "one_core": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "long_temporary": _long_temporary,
    "locale_c": lambda: _set(LC_ALL="C", LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    "latin_1": lambda: _set(LC_ALL="C", LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="latin-1"),
    "locale_posix": lambda: _set(LC_ALL="POSIX", LANG=None, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
}
_RIGHTS: dict[str, Callable[[], None]] = {
    "nobody": lambda: _become(NOBODY, HOME=_folder("nobody"), USER="nobody"),
    "nameless": lambda: _become(NAMELESS, HOME="/", USER=None, LOGNAME=None, XDG_CACHE_HOME=None),
    "only_root": _only_root,
    "no_capabilities": _drop_capabilities,
    "docker_capabilities": lambda: _drop_capabilities(_OF_DOCKER),
}
_CALLS: dict[str, Callable[[], None]] = {
    "no_namespaces": lambda: answer(["clone3"], errno.ENOSYS, namespaces=errno.EPERM),
    "without_landlock": lambda: answer(LANDLOCK, errno.ENOSYS),
    "no_locks": lambda: answer(["flock"], errno.ENOLCK),
    "without_seccomp": lambda: answer(["seccomp"], errno.EPERM),
    "docker_calls": lambda: answer(
        [
            "ptrace",
            "pidfd_open",
            "pidfd_getfd",
            "userfaultfd",
            "kcmp",
            "bpf",
            "perf_event_open",
            "setns",
            "mbind",
            "set_mempolicy",
            "process_vm_readv",
            "process_madvise",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
        ],
        errno.EPERM,
    ),
    "gvisor_calls": lambda: answer(
        [
            *LANDLOCK,
            "pidfd_open",
            "pidfd_getfd",
            "pidfd_send_signal",
            "kcmp",
            "memfd_secret",
            "userfaultfd",
            "bpf",
            "perf_event_open",
            "process_madvise",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "clone3",
            "openat2",
            "close_range",
            "rseq",
            "sched_setattr",
            "inotify_init1",
        ],
        errno.ENOSYS,
    ),
}
BOXES = _MOUNTS | _SETTINGS | _RIGHTS | _CALLS


def enter(names: Iterable[str]) -> None:
    wanted = {*names}
    if unknown := wanted - BOXES.keys():
        raise SystemExit(f"unknown: {', '.join(unknown)}. There are {', '.join(BOXES)}")
    if wanted & {*_MOUNTS, "nobody", "nameless"}:
        _own_mounts()
    for name, take_away in BOXES.items():
        if name in wanted:
            take_away()


def run(names: Iterable[str], command: list[str]) -> int:
    """Run a command in a box and leave nothing behind; returns its exit status."""
    global scratch
    scratch = tempfile.mkdtemp(prefix=f"box-{os.getppid()}-", dir="/var/tmp")  # whoever asked for it knows it by that
    os.chmod(scratch, 0o755)
    parent = os.getpid()
    try:
        if not (child := os.fork()):
            enter(names)
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which a change of user takes away
            if os.getppid() == parent:
                os.execvp(command[0], command)
            os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        if os.getpid() == parent:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    status = run(sys.argv[1].split(","), sys.argv[2:])
    sys.exit(status if status >= 0 else 128 - status)
