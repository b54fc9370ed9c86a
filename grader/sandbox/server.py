"""The fork server: one process that has imported torch, but never touched CUDA, and forks the children of a grade.

A fork takes some 0.04 s where a fresh start of torch takes 3 to 8 s. Only the parent holds the socket that the server listens on.
Each child gets a *warden*, a trusted process between the two: it adopts the child's orphans, stops the whole tree when the parent
asks for it, and kills it when the child ends or the parent goes away.

Run as `python -m grader.sandbox.server FD`."""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import Any

import psutil

from grader.sandbox import confine, folders


def serve(listener: socket.socket) -> None:
    # not above: a loader's worker that is spawned imports this file, which is its main module, and should take no seconds
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch
    import torch.profiler
    import torchvision  # noqa: F401

    from grader.sandbox import child, ranks  # noqa: F401
    from grader.workloads import gpt, resnet, tiles  # noqa: F401

    if torch.cuda.is_initialized():
        raise RuntimeError("the fork server must not initialise CUDA: forked children could not use it")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens need no waiting for
    listener.send(b"ready")
    while True:
        message, fds, _, _ = socket.recv_fds(listener, 1 << 16, 5)
        if not message:  # the parent has gone
            return
        pid = os.fork()
        if pid == 0:
            listener.close()
            status = 1
            try:
                _warden(json.loads(message), *fds)
                status = 0
            finally:
                os._exit(status)
        for fd in fds:
            os.close(fd)
        listener.send(str(pid).encode())


# 50 lines and more: all that a warden does, in its order
def _warden(spec: dict[str, Any], requests: int, replies: int, output: int, status: int, lifeline: int) -> None:
    if spec["shared"]:
        confine.own_shared_memory(spec["shared"])
    if spec["uid"] and spec["device"] == "cpu":  # a GPU's driver has files of its own there
        with contextlib.suppress(OSError):
            confine.own_processes()
    confine.become_subreaper()
    enclosed = confine.keep_signals_in()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (status, lifeline, wake_read, wake_write):
                os.close(fd)
            _enter(spec, output)
            from grader.sandbox import child as harness
            from grader.sandbox import ranks

            (ranks if spec["ranks"] > 1 else harness).serve(requests, replies, spec)
            code = 0
        except BaseException:  # whatever it was, it is reported and must not unwind into the server's code
            traceback.print_exc()
        finally:
            os._exit(code)
    for fd in (requests, replies, output):
        os.close(fd)
    poller = select.poll()
    poller.register(wake_read, select.POLLIN)
    poller.register(lifeline, select.POLLIN | select.POLLHUP)
    ended, word = None, b"s"
    while ended is None and word == b"s":
        ready = dict(poller.poll(1000))
        if wake_read in ready:
            os.read(wake_read, 4096)
        ended = _reap(child)
        if lifeline in ready:
            word = _word(lifeline, spec["uid"], enclosed)
    killed = _kill_tree(child, spec["uid"], enclosed)
    ended = killed if ended is None else ended
    with contextlib.suppress(OSError):
        os.write(status, json.dumps({"status": ended}).encode())
    while word == b"s":
        word = _word(lifeline, spec["uid"], enclosed)
    if not word:  # closed without one: nobody is left to clear the folder away
        folders.clear_away(spec["home"], spec["uid"])


def _word(lifeline: int, uid: int, enclosed: bool) -> bytes:
    """What the parent says: b"s" to stop all, which is done and answered; b"c" when it is done with this child; b"" when dead."""
    try:
        word = os.read(lifeline, 1)
    except ConnectionResetError:  # it died before it read an answer
        return b""
    if word == b"s":
        _signal_all(signal.SIGSTOP, uid, enclosed)
        with contextlib.suppress(BrokenPipeError):  # it died
            os.write(lifeline, word)
    return word


def _reap(child: int) -> int | None:
    """Collect ended processes; the wait status of `child` if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def _kill_tree(child: int, uid: int, enclosed: bool) -> int | None:
    """Kill every descendant, until the kernel says that there is none. Returns the wait status of `child` if it ended here."""
    # Whoever has lost its parent is this process's own child, so while one lives this process has a child. Without root, and
    # before Linux 6.12, they are killed as they are found: those that replace themselves very fast can outlast that for a
    # while. The parent waits 10 seconds, and this process goes on until they are gone
    ended = None
    while _has_children():
        if not _signal_all(signal.SIGKILL, uid, enclosed):
            _kill_one_by_one()
        found = _reap(child)
        ended = found if ended is None else ended
        time.sleep(0.001)
    return ended


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _signal_all(sig: int, uid: int, enclosed: bool) -> bool:
    """Signal every descendant, all at once; returns whether that could be done. enclosed: this process's signals reach nobody else."""
    # a process that is about to fork gets it first, or its child gets it as well; lists miss those that live for a millisecond
    if not enclosed:
        return uid != 0 and _signal_user(sig, uid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, sig)  # spares the process that calls it
    return True


def _signal_user(sig: int, uid: int) -> bool:
    sender = os.fork()
    if sender == 0:
        code = 1
        try:
            nobody = uid + 1  # see `Workspace`
            os.setresuid(nobody, uid, nobody)  # it may signal that user's processes, and they may not signal it
            os.kill(-1, sig)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(sender, 0)[1] == 0


def _kill_one_by_one() -> None:
    # Stopped first, so that none can fork while the others die. One that replaces itself is not found so, but among this
    # process's own children, as soon as the one before it has ended: they are looked at often
    found = psutil.Process().children(recursive=True)
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.send_signal(sig)
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as own:
        for _ in range(1000):
            own.seek(0)
            for pid in own.read().split():
                os.kill(int(pid), signal.SIGKILL)  # nobody else waits for it: the id is still its own


def _enter(spec: dict[str, Any], output: int) -> None:
    """Turn this freshly forked process into the confined child that `spec` describes. No thread exists yet."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    if spec["uid"]:
        os.fchown(output, spec["uid"], -1)  # a pipe of root's cannot be opened by its name, /dev/stdout
    os.close(null)
    os.close(output)
    os.environ.clear()
    os.environ.update(spec["environment"])
    tempfile.tempdir = None  # found out by the server for itself; TMPDIR is another one here
    # loader workers that are spawned take this path, and cannot list the folder in which the server found this package
    sys.path.insert(0, os.path.join(spec["home"], "lib"))
    confine.enter(spec)


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # the parent has gone, whatever it was told or asked last
        serve(socket.socket(fileno=int(sys.argv[1])))
