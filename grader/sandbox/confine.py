"""Confinement of the current process: Landlock, a filter of system calls, resource limits, no root, no network."""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grader.sandbox.around import around

_libc = ctypes.CDLL(None, use_errno=True)

# Landlock: https://docs.kernel.org/userspace-api/landlock.html, constants of include/uapi/linux/landlock.h
# system calls (the same numbers on x86-64 and arm64)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_MODIFY = 0x1FF0  # remove and make of every kind, bits 4 to 12
_REFER, _TRUNCATE, _IOCTL_DEV, CONNECT = 1 << 13, 1 << 14, 1 << 15, 1 << 16  # since ABI 2, 3, 5, 9 (Linux 7.1)
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2  # scopes, since ABI 6
# the rights that make sense for a plain file
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV | CONNECT

READ = READ_FILE | READ_DIR | EXECUTE
WRITE = READ | WRITE_FILE | _MODIFY | _REFER | _TRUNCATE | _IOCTL_DEV | CONNECT
LIST = READ_DIR

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 8, 36, 38, 47
_CAP_DAC_READ_SEARCH, _CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 2, 19, 21
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x08000000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

# The filter: https://docs.kernel.org/userspace-api/seccomp_filter.html, constants of linux/seccomp.h, filter.h and audit.h.
# seccomp(2), and the instructions of BPF that a filter needs: load a word, go on if it is this, at least this, or has one of
# these bits, answer
_SET_FILTER, _SPECULATION_AS_BEFORE = 1, 4
_LOAD, _EQUAL, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NOTHING = _ERRNO | 0  # the call is not made, and reports success
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # where they lie in struct seccomp_data
_X32 = 0x40000000  # x86-64 knows its calls by a second number, with this bit
_LEASES = (1024, 1040)  # fcntl: F_SETLEASE; F_SETDELEG, since Linux 6.19
_NOTIFY = 1026  # fcntl: F_NOTIFY
_LOCKS_OF_NO_PROCESS = (37, 38)  # fcntl: F_OFD_SETLK, F_OFD_SETLKW
_FADV_DONTNEED, _MADV_PAGEOUT = 4, 21
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_FILTERS = (26, 51)  # setsockopt: SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF

# Processes and threads of a child that has a user of its own: a worker on each core may start a thread for each core (OpenBLAS
# does), twice over, but a storm of them must not keep a small machine busy for minutes
PROCESSES = min(8192, 1200 + 2 * (os.cpu_count() or 1) ** 2)


def _check(value: int, what: str) -> int:
    if value < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return value


def require_linux() -> None:
    """Raise RuntimeError where no child can be started at all."""
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("Loops are measured on Linux only. Recorded traces and `grader diagnose` work here as well.")


def landlock_abi() -> int:
    """The kernel's Landlock ABI version; 0 where there is none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, 0, 1))


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children, so none of them can slip out of the tree."""
    _check(_libc.prctl(_PR_SET_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def keep_signals_in() -> bool:
    """From now on this process can signal only itself and what it starts; returns whether that worked (since Linux 6.12)."""
    abi = landlock_abi()
    if abi < 6:
        return False
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    # beside another ruleset that is for files, any forbids to move one to another folder, unless it says where that is allowed
    attributes = struct.pack("QQQ", _REFER, 0, _SIGNALS)
    ruleset = _check(_libc.syscall(_CREATE_RULESET, attributes, 24, 0), "landlock_create_ruleset")
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    _check(_libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", _REFER, root), 0), "landlock_add_rule(/)")
    os.close(root)
    # else the system's log has an entry for each process that a signal to all did not reach
    quiet = 1 if abi >= 7 else 0
    _libc.syscall(_RESTRICT_SELF, ruleset, quiet)
    os.close(ruleset)
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    return False  # whatever the kernel says of itself: a signal to all would reach everybody


def restrict_files(rights: Iterable[tuple[str, int]], tcp: bool = False) -> None:
    """Allow this process, and all it will start, only the file accesses in `rights`, each for everything below its path.

    Also closed, where the kernel can: TCP (unless `tcp`), signals to processes outside, sockets without a path. The process
    must have no_new_privs. Raises OSError where Landlock is missing or refuses."""
    abi = landlock_abi()
    if not abi:
        raise OSError("this kernel has no Landlock")
    handled = 0x1FFF
    handled |= _REFER if abi >= 2 else 0
    handled |= _TRUNCATE if abi >= 3 else 0
    handled |= _IOCTL_DEV if abi >= 5 else 0
    handled |= CONNECT if abi >= 9 else 0
    network = 3 if abi >= 4 and not tcp else 0  # bind and connect of TCP
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if abi >= 6 else 0
    attributes = struct.pack("QQQ", handled, network, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _check(_libc.syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    try:
        for path, allowed in rights:
            try:
                target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # there is no such path
                continue
            if not os.path.isdir(path):
                allowed &= _FILE_RIGHTS
            rule = struct.pack("=Qi", allowed & handled, target)
            _check(_libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule({path})")
            os.close(target)
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


class _Calls(NamedTuple):
    """A machine's system calls. architecture: the word by which a filter tells them from others' (AUDIT_ARCH_...)."""

    architecture: int
    numbers: dict[str, int]


_NEW_CALLS = {  # the same numbers on both
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435,
    "process_madvise": 440, "memfd_secret": 447, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
_CALLS = {
    "x86_64": _Calls(0xC000003E, _NEW_CALLS | {
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "utime": 132,
        "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "fcntl": 72, "prlimit64": 302, "setpriority": 141,
        "ioprio_set": 251, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314,
        "seccomp": 317, "inotify_init": 253, "inotify_init1": 294, "inotify_add_watch": 254, "fanotify_init": 300,
        "fanotify_mark": 301, "flock": 73, "clone": 56, "unshare": 272, "fadvise64": 221, "madvise": 28, "truncate": 76,
        "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220, "msgget": 68,
        "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "add_key": 248, "request_key": 249,
        "keyctl": 250, "bpf": 321, "timerfd_create": 283, "signalfd": 282, "signalfd4": 289, "io_setup": 206,
        "epoll_create": 213, "epoll_create1": 291, "socket": 41, "socketpair": 53, "setsockopt": 54, "accept": 43,
        "accept4": 288, "sendfile": 40, "splice": 275, "tee": 276, "vmsplice": 278, "mremap": 25, "remap_file_pages": 216,
    }),
    "aarch64": _Calls(0xC00000B7, _NEW_CALLS | {
        "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54, "utimensat": 88, "setxattr": 5, "lsetxattr": 6,
        "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "fcntl": 25, "prlimit64": 261,
        "setpriority": 140, "ioprio_set": 30, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122,
        "sched_setattr": 274, "seccomp": 277, "inotify_init1": 26, "inotify_add_watch": 27, "fanotify_init": 262,
        "fanotify_mark": 263, "flock": 32, "clone": 220, "unshare": 97, "fadvise64": 223, "madvise": 233, "truncate": 45,
        "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190, "semop": 193, "semctl": 191, "semtimedop": 192,
        "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180, "mq_unlink": 181, "add_key": 217,
        "request_key": 218, "keyctl": 219, "bpf": 280, "timerfd_create": 85, "signalfd4": 74, "io_setup": 0,
        "epoll_create1": 20, "socket": 198, "socketpair": 199, "setsockopt": 208, "accept": 202, "accept4": 242, "sendfile": 71,
        "vmsplice": 75, "splice": 76, "tee": 77, "mremap": 216, "remap_file_pages": 234,
    }),
}  # fmt: skip


class _Bits(int):
    """Stands for each value that has one of these bits."""


# a system call's number; the words of its arguments, by offset, that a rule is for; the answer
_Rule = tuple[int, Mapping[int, int], int]
_NamedRule = tuple[str, Mapping[int, int], int]


def restrict_calls(own_user: bool, trusted: bool, counted: bool = False, cuda: bool = False) -> bool:
    """Close, for this process and all it will start, what Landlock leaves open. counted: its memory is counted. cuda: it needs CUDA.

    The process must have no_new_privs. Returns whether that worked; it does not where a machine is neither x86-64 nor arm64, or
    its kernel or container has no seccomp."""
    # A filter sees numbers, no paths: what is closed for others' files is closed for one's own, and of processes it knows only
    # 0, the one that asks, and this one's id. So what compilers and libraries do to their own files and threads does nothing
    # and reports success, and only what none of them needs is an error.
    calls = _CALLS.get(os.uname().machine)
    return calls is not None and _install(
        _program(calls.architecture, _rules(calls.numbers, own_user, trusted, counted, cuda))
    )


def _rules(numbers: dict[str, int], own_user: bool, trusted: bool, counted: bool, cuda: bool) -> list[_Rule]:
    """What is not allowed as it is; the first rule of a call that fits holds."""
    rules = _rules_for_all()
    rules += _rules_of_counted_memory(cuda) if counted else []
    rules += [] if trusted else _rules_for_the_untrusted()
    rules += [] if own_user else _rules_of_the_same_user(os.getpid())
    return [(numbers[name], words, answer) for name, words, answer in rules if name in numbers]


def _rules_for_all() -> list[_NamedRule]:
    refused, missing, unknown = (_ERRNO | number for number in (errno.EPERM, errno.ENOSYS, errno.EINVAL))
    return [
        # whoever opens or reads a file pays for those who are told of it
        *((name, {}, refused) for name in ("inotify_init", "inotify_init1", "inotify_add_watch")),
        *((name, {}, refused) for name in ("fanotify_init", "fanotify_mark")),
        ("fcntl", {_int(1): _NOTIFY}, refused),
        # whoever closes a file pays for each lock on it, and these are in no list with a process (see `Freezer._check_locks`)
        *(("fcntl", {_int(1): command}, unknown) for command in _LOCKS_OF_NO_PROCESS),
        # a file can have one exclusive lock, but a shared one for each time that it is open
        ("flock", {_int(1): _Bits(fcntl.LOCK_SH)}, _NOTHING),
        *((name, {_int(0): _Bits(_CLONE_NEWUSER)}, refused) for name in ("clone", "unshare")),
        # a process that is no thread, but has another one's files, could take locks for that one and end
        ("clone", {_int(0): _Bits(_CLONE_THREAD)}, _ALLOW),
        ("clone", {_int(0): _Bits(_CLONE_FILES)}, refused),
        # clone3 has its flags in memory, which no filter sees; libraries fall back to clone
        ("clone3", {}, missing),
        # what io_uring is asked for, no filter sees either
        *((f"io_uring_{what}", {}, missing) for what in ("setup", "enter", "register")),
        # what outlives its processes, or holds bytes that nobody sees from outside; it may be missing in a kernel
        *((name, {}, missing) for name in ("memfd_secret", "bpf", "add_key", "request_key", "keyctl")),
        *((f"mq_{what}", {}, missing) for what in ("open", "unlink")),
        *((name, {}, missing) for name in ("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop")),
        *((f"msg{what}", {}, missing) for what in ("get", "snd", "rcv", "ctl")),
        # what happens while all processes stand still: whoever runs then pays for each event queue that is told of it
        *((name, {}, missing) for name in ("timerfd_create", "signalfd", "signalfd4", "io_setup")),
    ]


def _rules_of_counted_memory(cuda: bool) -> list[_NamedRule]:
    """No sockets, in which bytes and open files can be on their way, no calls that move these unseen, no attributes of files, and,
    as CUDA may want them, without it only: no event queues, which hold a word for each file that they watch, and no mapping that
    moves on in its file."""
    # CUDA listens on a socket, of packets that need a connection, and does not start without it; but here nobody accepts one,
    # so nothing that is sent can be had again. Seen with CUDA 13.0 on an H100
    flags = (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    kinds = (kind | flag for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET) for flag in flags)
    return [
        # a program that filters what comes to a socket can be had again
        *(
            ("setsockopt", {_int(1): socket.SOL_SOCKET, _int(2): option}, _ERRNO | errno.ENOPROTOOPT)
            for option in _FILTERS
        ),
        *(("socket", {_int(0): socket.AF_UNIX, _int(1): kind}, _ALLOW) for kind in kinds),
        *((name, {}, _ERRNO | errno.EAFNOSUPPORT) for name in ("socket", "socketpair", "accept", "accept4")),
        # a thread that waits in one of these holds a file that no descriptor shows any more; libraries fall back to read and write
        *((name, {}, _ERRNO | errno.EINVAL) for name in ("splice", "tee", "vmsplice", "sendfile")),
        *((name, {}, _ERRNO | errno.ENOSYS) for name in ("epoll_create", "epoll_create1") if not cuda),
        # one page that is mapped leads to all of a file that nobody has open; the C library allocates anew and copies then
        *((name, {}, _ERRNO | errno.ENOMEM) for name in ("mremap", "remap_file_pages") if not cuda),
        *_rules_of_attributes(),
    ]


def _rules_of_attributes() -> list[_NamedRule]:
    return [
        # as on a file system that has none: programs are used to that. An access list is an attribute
        *(
            (f"{kind}{what}xattr", {}, _ERRNO | errno.EOPNOTSUPP)
            for kind in ("", "l", "f")
            for what in ("set", "remove")
        ),
        # libraries fall back to the older calls
        *((name, {}, _ERRNO | errno.ENOSYS) for name in ("setxattrat", "removexattrat")),
    ]


def _rules_for_the_untrusted() -> list[_NamedRule]:
    return [  # whoever reads next what the system has forgotten of a file waits for the disk
        ("fadvise64", {_int(3): _FADV_DONTNEED}, _NOTHING),
        ("madvise", {_int(2): _MADV_PAGEOUT}, _NOTHING),
        ("process_madvise", {}, _ERRNO | errno.ENOSYS),
    ]


def _rules_of_the_same_user(me: int) -> list[_NamedRule]:
    """Where the process has no user of its own; else the kernel keeps it from what is others', and its own is its own affair."""
    first, second, path, times, limit = _int(0), _int(1), _pointer(1), _pointer(2), _pointer(2)
    refused, missing = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    rules: list[_NamedRule] = [
        *((name, {}, _NOTHING) for name in ("chmod", "fchmod", "fchmodat", "fchmodat2")),
        *((name, {}, _NOTHING) for name in ("chown", "fchown", "lchown", "fchownat")),
        *((name, {}, _NOTHING) for name in ("utime", "utimes", "futimesat")),
        # Python's Path.touch asks for the present time first, and makes the file only if that is refused; with a descriptor
        # in place of a path (which is 0) the file is there
        ("utimensat", dict.fromkeys(path, 0), _NOTHING),
        ("utimensat", dict.fromkeys(times, 0), refused),
        ("utimensat", {}, _NOTHING),
        *_rules_of_attributes(),
        ("file_setattr", {}, missing),  # libraries fall back to the older calls
        # whoever opens a file that another process has a lease on waits until that gives it back, 45 s at most
        *(("fcntl", {second: command}, refused) for command in _LEASES),
        *(("prlimit64", {first: pid}, _ALLOW) for pid in (0, me)),
        ("prlimit64", dict.fromkeys(limit, 0), _ALLOW),  # it only reads them
        ("prlimit64", {}, refused),
        # Landlock knows it since Linux 6.2
        *([("truncate", {}, refused)] if landlock_abi() < 3 else []),
    ]
    # of a thread or process. An error would end libraries that tie a thread of their own to a core, by its id
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        rules += [(name, {first: 0}, _ALLOW), (name, {first: me}, _ALLOW), (name, {}, _NOTHING)]
    for name, one_process in (("setpriority", 0), ("ioprio_set", 1)):  # else a group, or all of this user
        rules += [(name, {first: one_process, second: pid}, _ALLOW) for pid in (0, me)]
        rules.append((name, {}, _NOTHING))
    return rules


def _int(argument: int) -> int:
    """Where an argument lies that is an int: the kernel ignores its upper half."""
    return _ARGUMENTS + 8 * argument


def _pointer(argument: int) -> tuple[int, int]:
    return _int(argument), _int(argument) + 4


def _program(architecture: int, rules: Iterable[_Rule]) -> list[tuple[int, int, int, int]]:
    """The filter in BPF, a row an instruction: what, how many to leave out if so, how many if not, with what."""
    rows = [
        (_LOAD, 0, 0, _ARCHITECTURE),  # a program of 32 bits has other numbers
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number, words, answer in rules:
        tests = [(_NUMBER, number), *words.items()]
        for i, (offset, value) in enumerate(tests):
            to_next_rule = 2 * (len(tests) - i - 1) + 1
            rows += [(_LOAD, 0, 0, offset), (_HAS if isinstance(value, _Bits) else _EQUAL, 0, to_next_rule, value)]
        rows.append((_RETURN, 0, 0, answer))
    return [*rows, (_RETURN, 0, 0, _ALLOW)]


def _install(rows: list[tuple[int, int, int, int]]) -> bool:
    calls = _CALLS[os.uname().machine]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code))
    # by its own system call, not by prctl: before Linux 5.16 a filter slowed its process down, unless told not to
    return _libc.syscall(calls.numbers["seccomp"], _SET_FILTER, _SPECULATION_AS_BEFORE, program) == 0


def leave_network() -> bool:
    """Move into an empty network namespace (needs root). Returns whether that worked."""
    return _libc.unshare(_CLONE_NEWNET) == 0


def own_loopback() -> None:
    """Move into a network namespace whose loopback is up, where the ranks of one loop talk, and reach nobody else; or OSError."""
    with _namespaces(_CLONE_NEWNET), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def own_shared_memory(size: int) -> None:
    """A /dev/shm of one's own, of `size` bytes, gone with its processes; or OSError. Call it before Landlock, which forbids mounts."""
    with _namespaces(_CLONE_NEWNS):
        _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount(/)")
        kind, options = b"tmpfs", f"size={size},mode=1777".encode()
        _check(_libc.mount(kind, b"/dev/shm", kind, _MS_NOSUID | _MS_NODEV, options), "mount(/dev/shm)")


def own_processes() -> None:
    """Have a /proc without other users' processes for who is not root; or OSError. Called as early as `own_shared_memory`."""
    # before Linux 5.8 the option is one of the whole machine's, and without these rights this process would miss its own tree
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if release < (5, 8) or not _permitted() & 1 << _CAP_SYS_PTRACE:
        raise OSError(errno.ENOSYS, "no /proc of its own")
    with _namespaces(_CLONE_NEWNS):
        _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount(/)")
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        _check(_libc.mount(b"proc", b"/proc", b"proc", flags, b"hidepid=2"), "mount(/proc)")


@contextlib.contextmanager
def _namespaces(kinds: int) -> Iterator[None]:
    """Move into namespaces of these kinds, to be set up within the block."""
    # who is no administrator needs one of users for it, and keeps no rights from that
    uid, gid = os.geteuid(), os.getegid()
    is_administrator = bool(_permitted() & 1 << _CAP_SYS_ADMIN)
    _check(_libc.unshare(kinds | (0 if is_administrator else _CLONE_NEWUSER)), "unshare")
    if not is_administrator:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    yield
    if not is_administrator:
        _set_capabilities(0)


def give_up_root(uid: int, gid: int = 65534) -> None:
    """Become user `uid` for good, or raise OSError; the right to read files whatever their mode is kept where root has it."""
    # Python itself often lives under /root, where no other user may look; what may be read at all is Landlock's decision
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    held = _permitted() & 1 << _CAP_DAC_READ_SEARCH
    _set_capabilities(held)
    # the change of user made this process's own files in /proc root's; CUDA writes some of them
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")
    if held:
        # ambient: programs started from here (loader workers that are spawned, compilers) need it as well
        _check(_libc.prctl(_PR_CAP_AMBIENT, 2, _CAP_DAC_READ_SEARCH, 0, 0), "prctl(PR_CAP_AMBIENT_RAISE)")


def _permitted() -> int:
    return int(Path("/proc/self/status").read_text().partition("CapPrm:")[2].split()[0], 16)


def _set_capabilities(mask: int) -> None:
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    data = struct.pack("IIIIII", *[mask] * 3, 0, 0, 0)  # effective, permitted, inheritable: low words, then high
    _check(_libc.capset(header, data), "capset")


MAX_TIMERS = 64  # each of a loop that stands still can cost a core its time: the kernel sets it again


def limit_resources(processes: int | None, memory: int | None) -> None:
    """No core dumps, large files or many timers; so many processes and threads of this user, and bytes of private data a process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = (
        (resource.RLIMIT_FSIZE, 16 << 30),  # of shared memory, too: /dev/shm must hold loader batches
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_SIGPENDING, processes and MAX_TIMERS),
        (resource.RLIMIT_DATA, memory),  # not RLIMIT_AS: CUDA reserves terabytes of address space
    )
    for kind, value in limits:
        if value is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def enter(spec: dict[str, Any]) -> None:
    """Confine this process, which has no thread yet, and all it will start, for good, as `Child` or `probe` says; or OSError."""
    several = spec.get("ranks", 1) > 1
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")  # if memory runs out, this one goes first
    own_user, is_root = spec["uid"] != 0, os.geteuid() == 0
    if several:
        own_loopback()
    elif is_root:
        leave_network()
    # processes are counted by user
    limit_resources(spec["processes"] if own_user else None, spec["memory"])
    if own_user:
        give_up_root(spec["uid"])
    elif is_root:
        _set_capabilities(0)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    if spec["files"] is not None:  # else the kernel cannot, and that was allowed
        restrict_files(around(spec["files"], spec.get("kept", ())), tcp=several)
    # the probe tells where that does not work
    restrict_calls(own_user, spec.get("trusted", False), spec.get("counted", False), spec.get("device") == "cuda")
    os.chdir(spec["home"])
    os.umask(0o077)
