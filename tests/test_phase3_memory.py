"""Memory, seen from outside: what grows, what does not fit, and the labs 3g and 3h that ask for it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import variants
from helpers import GPT, IS_ROOT, LAB, MARKER, first, loop, running, said

from grader import labs, machine
from grader.checks.memory import OUTLASTED, judge_budget, judge_growth, steps_to_tell
from grader.frontends.notebook import open_lab
from grader.frontends.notebook.note import Note
from grader.grade import grade
from grader.grading.arms import open_arm, set_up
from grader.grading.forms import prepared
from grader.grading.verdict import as_far_as
from grader.labs.lab import Budget, Growth
from grader.measure import memory as meters
from grader.measure.blocks import Plan
from grader.measure.memory import Level, Meter, growth
from grader.result import FAIL, INCONCLUSIVE, PASS, Result
from grader.sandbox import memory
from grader.sandbox.child_error import ChildError
from grader.sandbox.memory import Memory
from grader.submission import Submission

HINTS = ("a", "b", "c")
GROWTH = Growth(points=70, at_most=24e3, hints=HINTS)
BUDGET = Budget(points=20, hints=HINTS)

KEEPING = """
import torch


def train(job):
    kept = []
    while True:
        work = [torch.ones(1 << 18) for _ in range(4)]  # 1 MiB each
        kept.append({kept})
        del work
        yield torch.tensor(1.0)
"""


def metered(source: str, turns: int = 3, steps: int = 20, **options) -> Meter:
    with running(source, counted=True, **options) as child:
        meter = Meter(child, on_gpu=False)
        child.load()
        child.start(1)
        for _ in range(turns):
            with meter.turn():
                child.run(steps)
    return meter


# ---------------------------------------------------------------- what is seen


@pytest.mark.parametrize(
    ("kept", "least", "most"),
    [
        ("None", -5e3, 5e3),
        ("work[0]", 0.95 * 2**20, 1.1 * 2**20),
        ("work[0][:1].detach()", 0.95 * 2**20, 1.1 * 2**20),  # a view keeps all of it
        ("work[0][:1].clone()", -5e3, 5e3),  # small pieces among large ones: nothing is left behind
    ],
)
def test_growth_is_what_is_kept(kept, least, most):
    gpu, main = growth(metered(KEEPING.format(kept=kept), exact_memory=True).levels)
    assert gpu == 0 and least <= main <= most


SHORT_PEAK = """
import os
import time
import torch


def train(job):
    while True:
        {begin}
        held = torch.ones(15_000_000)  # 60 MB
        time.sleep(0.5)
        del held
        {end}
        yield torch.tensor(1.0)
"""


@pytest.mark.parametrize(
    ("begin", "end"), [("", ""), ("pid = os.fork()", "os._exit(0) if pid == 0 else os.waitpid(pid, 0)")]
)
def test_a_peak_within_a_step_is_seen_and_that_of_helpers_too(begin, end):
    with running(SHORT_PEAK.format(begin=begin, end=end)) as child:
        meter = Meter(child, on_gpu=False)
        child.load()
        child.start(1)
        with meter.turn():
            child.run(5)
    processes = 2 if begin else 1
    assert processes * 60e6 <= meter.peak < processes * 60e6 + 40e6


def test_what_the_import_holds_is_a_part_of_the_peak():
    """Held before the loop begins and given back then, it would be room that nobody sees."""
    source = "import torch\n\nballast = [torch.ones(100 << 18)]\n\n\ndef train(job):\n    ballast.clear()\n    while True:\n        yield torch.tensor(1.0)\n"
    assert metered(source.replace("ballast.clear()", "pass"), turns=1).peak > 100e6
    held = metered(source.replace("    while", "    own = torch.ones(90 << 18)\n    while"), turns=1)
    assert 90e6 < held.peak < 140e6


IN_ADVANCE = """
import ctypes

import torch

libc = ctypes.CDLL(None)
libc.mallopt(-4, 0)  # no block of its own for what is large
libc.mallopt(-1, 2**31 - 1)  # and nothing is given back
blocks = [torch.ones(1 << 18) for _ in range(400)]
del blocks
"""


def test_main_memory_that_was_taken_in_advance_hides_no_leak():
    starter = metered(KEEPING.format(kept="work[0]"))
    hidden = metered(IN_ADVANCE + KEEPING.format(kept="work[0]"))
    assert sum(growth(hidden.levels)) < 0.1 * sum(growth(starter.levels)), "the leak goes where memory is already"
    result = judge_growth(GROWTH, starter, hidden)
    assert (result.status, result.points) == (FAIL, 0) and "of main memory more" in result.reason, result.reason


# what a file holds is memory, too, where the loop has made it: 1 MiB more in each step
IN_FILES = """
import mmap
import os
import tempfile

import torch

SIZE = 1 << 20


def train(job):
    kept = []
    while True:
        fd = {opened}
        os.write(fd, b"1" * SIZE)
        kept.append({mapped})
        assert kept[-1].read() == b"1" * SIZE
        if len(kept) % 2:  # of half of them no page is the process's, and all are there as before
            kept[-1].madvise(mmap.MADV_DONTNEED)
        os.close(fd)
        yield torch.tensor(1.0)
"""
NAMELESS = "os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)"
OPENED = {
    "without a name": NAMELESS,
    "in the workspace": "tempfile.mkstemp()[0]",
    "in memory": "os.memfd_create('mine')",
    "in shared memory": f"os.open(f'/dev/shm/{MARKER}-{{len(kept)}}', os.O_CREAT | os.O_RDWR)",
}
SHARED = "mmap.mmap(fd, SIZE)"
MAPPED = {
    "to write": SHARED,
    "to read": "mmap.mmap(fd, SIZE, prot=mmap.PROT_READ)",
    "to read, for itself": "mmap.mmap(fd, SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)",
    "twice": f"{SHARED}); kept.append({SHARED}",
}


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("mapped", MAPPED)
def test_files_that_the_loop_made_are_counted_once(opened, mapped):
    source = IN_FILES.format(opened=OPENED[opened], mapped=MAPPED[mapped])
    if mapped == "twice":
        source = source.replace("% 2", "% 4")
    try:
        gpu, main = growth(metered(source, steps=10).levels)
    finally:
        for left in Path("/dev/shm").glob(f"{MARKER}-*"):
            left.unlink()
    assert gpu == 0 and 0.95 * 2**20 <= main <= 1.1 * 2**20


# closed again or not, and with nothing of it mapped
UNMAPPED = {
    "an open file in memory": "open_files.append(os.memfd_create('mine')); os.write(open_files[-1], block)",
    "one file in memory": "open_files or open_files.append(os.memfd_create('mine')); os.write(open_files[0], block)",
    "shared memory": f"open(f'/dev/shm/{MARKER}-{{step}}', 'wb').write(block)",
    "shared memory, in a folder": (
        f"os.makedirs('/dev/shm/{MARKER}-d/d', exist_ok=True); open(f'/dev/shm/{MARKER}-d/d/{{step}}', 'wb').write(block)"
    ),
    "a file without a name": "open_files.append(os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)); os.write(open_files[-1], block)",
    "a file": "open(f'kept-{step}', 'wb').write(block)",
    "what compilers keep": "open(f'cache/kept-{step}', 'wb').write(block)",
    "pipes": "in_pipes(block)",
    "a pipe with a name": "in_pipe_with_a_name(block)",
    "files that a thread has opened for itself": "asked.put(block); done.get()",
    "links without a name": "in_links(block)",
    "names of one file": "in_names(block)",
}
IN_UNMAPPED = """
import ctypes
import fcntl
import os
import queue
import resource
import tempfile
import threading

import torch

SIZE = 1 << 19

resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1:] * 2)
asked, done = queue.Queue(), queue.Queue()


def in_pipes(block):
    for at in range(0, len(block), 1 << 16):
        os.write(os.pipe()[1], block[at : at + (1 << 16)])


def in_pipe_with_a_name(block):
    name = tempfile.mktemp()
    os.mkfifo(name)
    pipe = os.open(name, os.O_RDWR)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, len(block))
    os.write(pipe, block)


def in_links(block):
    for _ in range(len(block) // 4096):
        os.symlink("x" * 4000, "link")
        open_files.append(os.open("link", os.O_PATH | os.O_NOFOLLOW))
        os.unlink("link")


def in_names(block):
    folder = tempfile.mkdtemp()
    open(f"{folder}/file", "w").close()
    for n in range(len(block) // 4096 - 2):
        os.link(f"{folder}/file", f"{folder}/{n}")


open_files = []


def by_itself():
    ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
    while True:
        os.write(os.memfd_create("mine"), asked.get())
        done.put(None)


threading.Thread(target=by_itself, daemon=True).start()


def train(job):
    block, step = b"1" * SIZE, 0
    while True:
        {kept}
        step += 1
        yield torch.tensor(1.0)
"""


@pytest.mark.parametrize("kept", UNMAPPED)
def test_memory_that_is_not_mapped_is_memory(kept):
    gpu, main = growth(metered(IN_UNMAPPED.replace("{kept}", UNMAPPED[kept]), steps=10).levels)
    assert gpu == 0 and 0.95 * 2**19 <= main <= 1.1 * 2**19


def test_memory_of_a_helper_whose_first_thread_has_ended():
    """The system tells nothing at that thread's place any more."""
    source = """
import ctypes, os, threading, time
import torch


def hold():
    held = torch.ones(15_000_000)  # 60 MB
    time.sleep(60)


def train(job):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        time.sleep(0.1)
        ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # exit, of one thread
    while True:
        time.sleep(0.2)
        yield torch.tensor(1.0)
"""
    assert 60e6 <= metered(source, turns=1).peak - metered(IDLE, turns=1).peak < 80e6


@pytest.mark.skipif(not IS_ROOT, reason="only root sees which pages are shared")
def test_memory_that_two_helpers_share_is_memory():
    """And that the main process, from which they have it, has given up."""
    source = """
import os, time
import torch


def train(job):
    held = torch.ones(15_000_000)  # 60 MB
    for _ in range(2):
        if os.fork() == 0:
            time.sleep(60)
    del held
    while True:
        yield torch.tensor(1.0)
"""
    kept, idle = (metered(each, turns=1).levels[-1].main for each in (source, IDLE))
    assert 60e6 <= kept - idle < 80e6


# 60 MB that no process has as pages of its own, and no descriptor leads to
LET_GO = """
import ctypes, mmap, os, shutil, time
import torch

SIZE = 60_000_000


def in_a_program():
    program = open(os.path.realpath(shutil.which("sleep")), "rb").read()
    file = os.memfd_create("mine")
    os.write(file, program + b"1" * SIZE)
    run = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(file)
    os.posix_spawn(f"/proc/self/fd/{run}", ["sleep", "60"], os.environ)
    os.close(run)


def in_pages_to_be_freed():
    inlet, outlet = os.pipe()
    if os.fork() == 0:
        held = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, SIZE, 4096):
            held[at] = 1
        held.madvise(8)  # MADV_FREE
        os.write(outlet, b"x")
        time.sleep(60)
    os.read(inlet, 1)


def train(job):
    {kept}()
    while True:
        yield torch.tensor(1.0)
"""


@pytest.mark.parametrize("kept", ["in_a_program", "in_pages_to_be_freed"])
def test_memory_that_a_helper_has_let_go_is_memory(kept):
    held, idle = (metered(each, turns=1).levels[-1].main for each in (LET_GO.replace("{kept}", kept), IDLE))
    assert 60e6 <= held - idle < 80e6


def test_a_mapping_does_not_lead_to_what_is_not_mapped():
    """Of a file that nobody has open only what is mapped can be seen, so that is all there is of it."""
    source = """
import ctypes, mmap, os
import torch


def train(job):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    file = os.memfd_create("mine")
    os.write(file, b"1" * (1 << 20))
    one = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 1, mmap.MAP_SHARED, file, ctypes.c_long(0)))
    os.close(file)
    larger = libc.mremap(one, ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_size_t(1 << 20), 1)
    further = libc.remap_file_pages(one, ctypes.c_size_t(mmap.PAGESIZE), 0, ctypes.c_size_t(1), 0)
    while True:
        yield torch.tensor(float(larger in (None, ctypes.c_void_p(-1).value) and further == -1))
"""
    with running(source, counted=True) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [1.0]


@pytest.mark.slow
def test_what_is_held_while_a_look_takes_long_is_seen(monkeypatch):
    slow = Memory.in_files
    monkeypatch.setattr(Memory, "in_files", lambda child: time.sleep(1) or slow(child))
    source = "import time\n" + IDLE.replace(
        "    while True:", "    held = torch.ones(15_000_000)\n    time.sleep(0.8)\n    del held\n    while True:", 1
    )
    assert 59e6 <= metered(source, turns=1).peak - metered(IDLE, turns=1).peak < 80e6


def test_who_hides_memory_in_a_turn_ends_the_grade(monkeypatch):
    def hidden(_: Memory) -> int:
        raise ChildError("A process of the loop does not let others see its memory.")

    monkeypatch.setattr(Memory, "in_files", hidden)
    with pytest.raises(ChildError, match="does not let"):
        metered("import time\n" + IDLE.replace("    while True:", "    time.sleep(0.5)\n    while True:", 1), turns=1)


NOWHERE = {
    "sockets": "socket.socketpair()",
    "a socket of datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a socket of the network": "socket.socket()",
    "a socket of the kernel's": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    **{
        f"a socket that listens, {kind}": f"accept(socket.socket(socket.AF_UNIX, socket.{kind}))"
        for kind in ("SOCK_STREAM", "SOCK_SEQPACKET")
    },
    "files that nobody has open any more": "os.sendfile(os.open('copy', os.O_RDWR | os.O_CREAT), os.open('submission.py', 0), 0, 9)",
    "pages on their way": "os.splice(os.open('submission.py', 0), os.pipe()[1], 9)",
    "attributes of files": "os.setxattr('submission.py', 'user.x', b'x')",
    "shared memory of System V": "called(libc.shmget(0, 4096, 0o1600))",
    "semaphores of System V": "called(libc.semget(0, 1, 0o1600))",
    "messages of System V": "called(libc.msgget(0, 0o1600))",
    "messages of POSIX": f"called(libc.mq_open(b'/{MARKER}', 0o102, 0o600, None))",
    "secret memory": "called(libc.syscall(447, 0))",
    "programs of sockets": "socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, 26, bytes(16))",
    "event queues": "called(libc.epoll_create1(0))",
    "keys": "called(libc.syscall({'x86_64': 248, 'aarch64': 217}[os.uname().machine], b'user', b'x', b'x', 1, -2))",
}


@pytest.mark.parametrize("what", NOWHERE)
def test_where_nobody_could_see_memory_there_is_none(what):
    source = f"""
import ctypes, os, socket
import torch

libc = ctypes.CDLL(None, use_errno=True)


def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def accept(server):
    server.bind("name")
    server.listen()
    socket.socket(socket.AF_UNIX, server.type).connect("name")
    server.accept()


{NOWHERE[what]}
"""
    with running(source, counted=True) as child, pytest.raises(ChildError, match="OSError") as refused:
        child.load()
    assert ("This lab counts memory" in refused.value.message) == ("a socket" in what or what == "sockets")


DEEP = "for _ in range(20):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\nopen('kept', 'wb').write(b'1' * 1000)"


def test_folders_that_no_path_is_long_enough_for():
    with running(loop(DEEP, "import os"), counted=True) as child:
        child.load()
        child.start(1)
        child.run(1)
        for look in (child.memory.main, child.freeze):
            with pytest.raises(ChildError, match="a folder that nobody can look into"):
                look()
    assert not child.workspace.folder.exists()


@pytest.mark.parametrize(
    ("where", "limit", "said"), [(memory, "MAX_OPENED", "files open"), (meters, "MAX_LOOK_S", "in time")]
)
def test_where_a_look_takes_long_memory_could_come_and_go_unseen(where, limit, said, monkeypatch):
    monkeypatch.setattr(where, limit, 0)
    with pytest.raises(ChildError, match=said):
        metered(loop("import time\ntime.sleep(0.5)"), turns=1)


NO_TEXT = {
    "a thread's": "ctypes.CDLL(None).prctl(15, bytes([255, 254, 65]), 0, 0, 0)",
    "a mapped file's": "open(b'\\xff', 'wb').write(bytes(4096)); held = mmap.mmap(os.open(b'\\xff', os.O_RDWR), 4096)",
}


@pytest.mark.parametrize("whose", NO_TEXT)
def test_names_that_are_no_text(whose):
    helpers = "for _ in range(2):\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)"
    assert metered(loop(f"{NO_TEXT[whose]}\n{helpers}", "import ctypes, mmap, os, time"), turns=1).levels[-1].main > 0


def test_loader_workers_where_memory_is_counted():
    losses = []
    for workers in (0, 2):
        source = LAB.starter.replace("job.batches)", f"job.batches, num_workers={workers})")
        with running(source, counted=True) as child:
            child.load()
            child.start(1)
            losses.append(child.run(3)[1])
    assert losses[0] == losses[1]


IDLE = """
import torch


def train(job):
    while True:
        yield torch.tensor(1.0)
"""


def test_files_that_a_helper_made_are_counted():
    """Written out to the disk, they are nothing that a process has changed in memory."""
    source = f"""
import mmap, os, tempfile, time
import torch

SIZE = 50 << 20


def train(job):
    if os.fork() == 0:
        fd = {NAMELESS}
        os.write(fd, bytes(SIZE))
        os.fsync(fd)
        held = {SHARED}
        sum(held[at] for at in range(0, SIZE, 4096))
        time.sleep(60)
    while True:
        time.sleep(0.2)
        yield torch.tensor(1.0)
"""
    held = metered(source, turns=1).peak - metered(IDLE, turns=1).peak
    assert 50 * 2**20 <= held < 60 * 2**20  # what a fork has for itself, too


@pytest.mark.parametrize("mode", ["r", "c"])
def test_data_that_is_only_read_costs_nothing(mode):
    data = prepared(GPT)[1][0]
    source = f"""
import numpy as np
import torch

data = np.memmap({str(data)!r}, np.uint8, {mode!r})


def train(job):
    while True:
        yield torch.tensor(float(data.max()))
"""
    held = metered(source, turns=1).peak - metered("import numpy as np\n" + IDLE, turns=1).peak
    assert held < 3e6 < 0.3 * data.stat().st_size


def test_nobody_hides_what_it_has_mapped(monkeypatch):
    """A process can have the system show that to nobody but root."""

    def refused(*_):
        raise PermissionError

    for seen in (False, True):  # on some machines it is never shown, and nobody is to blame
        with running("import torch") as child:
            child.ask("ready")
            if seen:
                child.memory.main()
            with monkeypatch.context() as patched:
                patched.setattr(memory, "_mapped", refused)
                if seen:
                    with pytest.raises(ChildError, match="does not let"):
                        child.memory.main()
                else:
                    assert child.memory.main() > 0


def test_the_job_says_what_may_be_used():
    source = "import torch\n\n\ndef train(job):\n    while True:\n        yield torch.tensor(float(job.budget))\n"
    with running(source, budget=12345) as child:
        child.load()
        child.start(1)
        assert child.run(1)[1] == [12345.0]


# ---------------------------------------------------------------- verdicts


def seen(*levels: tuple[int, float], gpu: bool = False, peak: float = 0) -> Meter:
    """A meter as it is after these (steps, bytes)."""
    meter = object.__new__(Meter)
    meter.on_gpu, meter.peak = gpu, int(peak)
    meter.levels = [Level(steps, int(size) * gpu, int(size) * (not gpu)) for steps, size in levels]
    return meter


STARTER = seen((10, 100e6), (20, 120e6), (30, 140e6), (40, 160e6))


@pytest.mark.parametrize(
    ("submission", "status", "points"),
    [
        (seen((10, 100e6), (20, 100e6), (30, 100e6), (40, 100e6)), PASS, 70),
        (seen((10, 100e6), (20, 130e6), (30, 130e6), (40, 130e6)), PASS, 70),  # once: a buffer
        (seen((10, 100e6), (20, 110e6), (30, 120e6), (40, 130e6)), FAIL, 35),
        (seen((10, 100e6), (20, 120e6), (30, 140e6), (40, 160e6)), FAIL, 0),
        (seen((10, 100e6), (20, 119.7e6), (30, 139.4e6), (40, 159.1e6)), FAIL, 0),  # by chance
        (seen((10, 100e6), (20, 150e6), (30, 200e6), (40, 250e6)), FAIL, 0),
        (seen((10, 100e6), (20, 120e6)), INCONCLUSIVE, 0),
    ],
)
def test_growth_that_is_gone_earns_its_part(submission, status, points):
    result = judge_growth(GROWTH, STARTER, submission)
    assert (result.status, result.points) == (status, points), result.reason


def test_level_memory_is_told_with_its_numbers():
    result = judge_growth(GROWTH, STARTER, seen((10, 100e6), (20, 100.07e6), (30, 100.14e6), (40, 100.21e6)))
    assert result.reason == (
        "From step to step memory grows by 7 KB (the untouched loop's by 2,000 KB). Up to 24 KB counts as level."
    )
    less = judge_growth(GROWTH, STARTER, seen((10, 100e6), (20, 99e6), (30, 98e6), (40, 97e6)))
    assert "grows by 0 KB" in less.reason


def test_memory_taken_in_advance_hides_nothing():
    starter = seen((10, 1e9), (20, 1.02e9), (30, 1.04e9), gpu=True)
    level = seen((10, 20e9), (20, 20e9), (30, 20e9), gpu=True)
    result = judge_growth(GROWTH, starter, level)
    assert result.status == FAIL and result.points == 0 and "taken in advance" in result.reason
    assert judge_growth(GROWTH, starter, seen((10, 1.2e9), (900, 1.2e9), (910, 1.2e9), gpu=True)).status == PASS
    late = judge_growth(GROWTH, starter, seen((10, 1e9), (20, 20e9), (30, 20e9), (40, 20e9), gpu=True))
    assert late.points == 0 and "taken in advance" in late.reason


@pytest.mark.parametrize("gpu", [True, False])
def test_what_could_hide_a_leak_is_outlasted(gpu):
    """Memory that is let go as the leak grows: the level tells nothing until the leak would be some times as large."""
    starter = seen((10, 100e6), (20, 120e6), (30, 140e6), gpu=gpu)

    def holding(*steps: int) -> Meter:
        meter = seen(*((n, 300e6) for n in steps), gpu=gpu)
        meter.levels = [replace(level, largest=level.main) for level in meter.levels]
        starter.levels = [replace(level, largest=level.main) for level in starter.levels]
        return meter

    early = holding(10, 20, 30)
    assert judge_growth(GROWTH, starter, early).status == INCONCLUSIVE
    more = steps_to_tell(GROWTH, starter, early)
    assert more == OUTLASTED * 100 - 20  # the starter leaks 2 MB a step, 200 MB are held
    late = holding(10, 20, 30, 30 + more)
    assert judge_growth(GROWTH, starter, late).status == PASS
    assert steps_to_tell(GROWTH, starter, late) == 0
    assert steps_to_tell(GROWTH, starter, seen((10, 100e6), (20, 100e6), (30, 100e6), gpu=gpu)) == 0


def test_a_long_leak_is_no_memory_taken_in_advance():
    starter = seen((10, 1e9), (20, 1.02e9), (30, 1.04e9), gpu=True)
    half = seen(*((steps, 1e9 + steps * 1e6) for steps in range(10, 5000, 10)), gpu=True)
    assert judge_growth(GROWTH, starter, half).points == pytest.approx(35, abs=0.1)  # it began with 10 MB more


def test_a_budget_is_a_budget():
    assert judge_budget(BUDGET, 100, seen(peak=100)).points == 20
    beyond = judge_budget(BUDGET, 100_000_000, seen(peak=101e6))
    assert beyond.status == FAIL and beyond.points == 0 and "101 MB" in beyond.reason
    assert judge_budget(BUDGET, 100_000_000, seen(peak=101e6, gpu=True)).status == PASS  # CUDA's own is not the loop's


@pytest.mark.parametrize(("supported", "status", "points"), [(0, FAIL, 0), (0.5, FAIL, 10), (1, PASS, 20)])
def test_the_untouched_loop_fits_as_well(supported, status, points):
    budget = judge_budget(BUDGET, 100, seen(peak=100))
    check = as_far_as(supported, "the gain", budget)
    assert (check.status, check.points) == (status, points), check.reason
    open_ = as_far_as(supported, "the gain", budget, undecided=True)
    assert (open_.status, open_.points) == (INCONCLUSIVE if supported < 1 else PASS, points), open_.reason


@pytest.mark.parametrize(("supported", "points"), [(0, 0), (0.5, 5), (1, 10)])
def test_what_is_worse_than_the_untouched_loop_has_no_more_points(supported, points):
    worse = replace(judge_budget(BUDGET, 100, seen(peak=100)), status=FAIL, points=10)
    check = as_far_as(supported, "the gain", worse)
    assert check.points == points and check.status == FAIL, check.reason


# ---------------------------------------------------------------- the labs

LEAK, FIT = "3g_leak", "3h_fit"
LABS = (LEAK, FIT)
# three stretches: libraries take their memory in one of them
SHORT = Plan(block_s=0.2, block_steps=2, min_pairs=3, max_pairs=3, profile_steps=2)
gpu = pytest.mark.skipif(not machine.has_gpu(), reason="needs an NVIDIA GPU")


def graded(name: str, source: str, **options) -> Result:
    return grade(Submission(source), labs.get(name), **{"device": "cpu", "plan": SHORT} | options)


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[LEAK])
def test_what_is_no_fix_of_a_leak_is_named(what):
    source, words = variants.wrongs(LEAK)[what]
    result = graded(LEAK, source)
    assert words in said(result) and result.check("growth").points < 5


@pytest.mark.slow
@pytest.mark.parametrize("what", variants.WRONGS[FIT])
def test_what_does_not_fit_or_is_another_training_is_named(what):
    source, words = variants.wrongs(FIT)[what]
    result = graded(FIT, source)
    assert words in said(result) and result.score == 0
    assert result.check("throughput").status == FAIL


def watched(name: str, source: str, turns: int, steps: int) -> Meter:
    """What a loop of a lab holds after so many turns, seen as a grade sees it."""
    form = labs.get(name).forms["cpu"]
    with open_arm(source, set_up(form, "cpu", counted=True)) as one:
        one.meter = Meter(one.child, on_gpu=False)
        one.child.load()
        one.child.start(1)
        for _ in range(turns):
            with one.metered():
                one.run(steps)
    return one.meter


@pytest.mark.slow
def test_each_reference_that_is_gone_earns_its_part():
    """These are sizes, not times: the same on a busy machine."""
    starter, solution = (watched(LEAK, which(LEAK), 4, 12) for which in (variants.starter, variants.solution))
    # the running confidence's softmax, the logits behind a view, the activations: (256 + 256 + 64) numbers a byte, and nodes
    shapes = 8 * 64 * 576 * 4
    assert shapes < sum(growth(starter.levels)) < 1.2 * shapes
    assert sum(growth(solution.levels)) < 12e3
    check = labs.get(LEAK).memory
    assert judge_growth(check, starter, solution).points == check.points
    for what, source in variants.halves(LEAK).items():
        half = judge_growth(check, starter, watched(LEAK, source, 4, 12))
        assert half.status == FAIL and 5 < half.points < 65, f"{what}: {half.reason}"


@pytest.mark.slow
def test_what_fits_is_within_the_budget():
    for source in (variants.starter(FIT), variants.solution(FIT), *variants.halves(FIT).values()):
        peak = watched(FIT, source, 1, 3).peak
        assert 20e6 < peak < labs.get(FIT).forms["cpu"].budget


@pytest.mark.slow
def test_a_loop_that_leaks_has_no_merit_in_its_speed():
    assert graded(LEAK, variants.starter(LEAK)).score < 2


# ahead of a loop: all that the C library hands out from here on lies in a file
IN_A_FILE = """
import ctypes, mmap, os, tempfile

def hide(size):
    libc = ctypes.CDLL(None)
    for name in ("malloc", "mmap"):
        getattr(libc, name).restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mallopt(-1, 2**31 - 1)  # the heap is never given back
    libc.mallopt(-3, 2**30)  # and nothing has a place of its own beside it
    libc.mallopt(-4, 0)
    fd, name = tempfile.mkstemp()
    os.unlink(name)
    os.ftruncate(fd, size)
    block = libc.malloc(size)
    first, last = ((at + 4095) // 4096 * 4096 for at in (block + 4096, block + size - 8192))
    flags = mmap.MAP_SHARED | 0x10  # MAP_FIXED
    assert libc.mmap(first, last - first, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0) == first
    libc.free(block)
    return first, last - first

HIDDEN = hide({size})
"""
# and no page of it is the process's for long
SET_ASIDE = """
def set_aside():
    import time
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    while True:
        madvise(*HIDDEN, 4)  # MADV_DONTNEED: of a shared mapping it drops nothing but the pages' places
        time.sleep(0.005)

import threading
threading.Thread(target=set_aside, daemon=True).start()
"""


@pytest.mark.parametrize("more", ["", SET_ASIDE])
def test_memory_in_a_file_fits_no_more_than_other_memory(more):
    whole = variants.edit(variants.solution(FIT), [("MICRO_BATCH = 6", "MICRO_BATCH = 14")])
    budget = labs.get(FIT).forms["cpu"].budget
    assert watched(FIT, whole, 1, 3).peak > budget
    hidden = IN_A_FILE.format(size=1 << 30) + more + whole
    assert watched(FIT, hidden, 1, 3).peak > budget


@pytest.mark.parametrize("more", first(["", SET_ASIDE]))
def test_memory_in_a_file_hides_no_leak(more):
    starter = variants.starter(LEAK)
    hidden = IN_A_FILE.format(size=500 << 20) + more + starter
    result = judge_growth(labs.get(LEAK).memory, watched(LEAK, starter, 4, 12), watched(LEAK, hidden, 4, 12))
    assert (result.status, result.points) == (FAIL, 0), result.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_memory_in_a_file_earns_nothing(name):
    whole = variants.edit(variants.solution(FIT), [("MICRO_BATCH = 6", "MICRO_BATCH = 14")])
    source = IN_A_FILE.format(size=1900 << 20) + {FIT: whole, LEAK: variants.starter(LEAK)}[name]
    result = graded(name, source)
    assert result.check("growth" if name == LEAK else "budget").points == 0 and result.score < 2, said(result)


# what it leaks it gives back of what it took before its first step
SHRINKING = [
    (
        "def train(job):\n",
        """def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def train(job):
    reserve, level = [bytearray(b"x" * (1 << 20)) for _ in range(225)], 0
""",
    ),
    ("lr=job.lr)", "lr=job.lr, fused=True)"),
    (
        "        yield loss.detach()\n",
        """        if step == 8:
            level = resident()
        if level:
            del reserve[len(reserve) - min(len(reserve), max(0, round((resident() - level) / (1 << 20)))) :]
        yield loss.detach()
""",
    ),
]


@pytest.mark.slow
def test_a_reserve_that_shrinks_hides_no_leak():
    result = graded(LEAK, variants.edit(variants.starter(LEAK), SHRINKING))
    assert result.check("growth").points < 5, said(result)


@pytest.mark.slow
def test_a_leak_that_is_ended():
    """Where a busy machine makes two steps a turn, the 4 KB pages that a process takes now and then were a leak of 57 KB a step."""
    result = graded(LEAK, variants.solution(LEAK), plan=replace(SHORT, block_steps=12))
    assert result.check("parity").status == result.check("logs").status == result.check("growth").status == PASS


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_faults_are_rejected(name):
    """That honest forms are not takes minutes: see tests/benchmarks/honest.py."""
    for what, source in variants.faults(name).items():
        assert graded(name, source).check("parity").status == FAIL, what


@pytest.mark.slow
def test_run_says_what_memory_does(monkeypatch):
    shown = []
    for name in LABS:
        lab = open_lab(name, device="cpu")
        monkeypatch.setattr(lab, "_submission", lambda name=name: Submission(variants.starter(name)))
        monkeypatch.setattr(Note, "show", lambda note, place=None: shown.append(note.text()))
        lab.run(5)
    text = " ".join(shown)
    assert "Memory grew by" in text and "in main memory" in text and "of main memory. 70 MB are allowed" in text


@gpu
def test_memory_on_a_gpu():
    """Growth from shapes: softmax and logits of 256 numbers a byte, activations of 256; and the budget's two guards."""
    grown = graded(LEAK, variants.starter(LEAK), device="cuda").check("growth").evidence["of_it_on_the_gpu"]
    assert 0.9 < grown / (8 * 128 * 768 * 4 / 1e3) < 1.2
    solution = graded(LEAK, variants.solution(LEAK), device="cuda", plan=None)
    assert solution.check("growth").status == PASS, solution.check("growth")
    assert graded(FIT, variants.solution(FIT), device="cuda").check("budget").status == PASS
    source = variants.solution(FIT).replace("MICRO_BATCH = 6", "MICRO_BATCH = 64")
    assert "more GPU memory than the 4.29 GB" in graded(FIT, source, device="cuda").fatal
    unlimited = source.replace(
        "    model = job.model", "    torch.cuda.set_per_process_memory_fraction(1.0)\n    model = job.model", 1
    )
    assert graded(FIT, unlimited, device="cuda").check("budget").status == FAIL
