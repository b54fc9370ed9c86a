"""The fork server: one process that has imported torch, but never touched CUDA, and forks the children of a grade.

A fork takes some 0.04 s where a fresh start of torch takes 3 to 8 s. The server listens on one unnamed socket that only
the parent holds: a confined child cannot ask it for anything. Each child gets a *warden*, a trusted process between the
server and the child: it adopts the child's orphans, so that every process a learner's code leaves behind stays in the
warden's tree, and it kills that whole tree when the child ends or the parent goes away.

Run as `python -m grader.sandbox.server FD`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import tempfile

import psutil

from grader.sandbox import confine


def serve(listener: socket.socket) -> None:
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


def _warden(spec: dict, requests: int, replies: int, output: int, status: int, lifeline: int) -> None:
    confine.become_subreaper()
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
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    for fd in (requests, replies, output):
        os.close(fd)
    poller = select.poll()
    poller.register(wake_read, select.POLLIN)
    poller.register(lifeline, select.POLLIN | select.POLLHUP)
    ended = None
    while ended is None:
        ready = dict(poller.poll(1000))
        if wake_read in ready:
            os.read(wake_read, 4096)
        ended = _reap(child)
        if lifeline in ready:  # closed: the parent is done with this child, or dead
            break
    _kill_tree(spec["uid"])
    if ended is None:
        ended = _reap(child)
    with contextlib.suppress(OSError):
        os.write(status, json.dumps({"status": ended}).encode())
    if not os.read(lifeline, 1):  # closed without a word: nobody is left to clear the folder away
        confine.clear_away(spec["home"], spec["uid"])


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


def _kill_tree(uid: int) -> None:
    """Kill every descendant. Stopped first, so that none can fork while the others die; new ones are looked for until
    there are none. Processes that replace themselves faster than they can be looked for have no such end: where they
    have a user of their own, `uid`, the kernel kills all of that user's at once."""
    me = psutil.Process()
    for attempt in itertools.count():
        alive = [p for p in me.children(recursive=True) if _is_alive(p)]
        if not alive:
            return
        if attempt >= 3 and uid:
            _kill_all_of(uid)
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for process in alive:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(sig)
        psutil.wait_procs(alive, timeout=0.2)


def _kill_all_of(uid: int) -> None:
    killer = os.fork()
    if killer == 0:
        try:
            os.setuid(uid)
            os.kill(-1, signal.SIGKILL)  # spares the process that calls it
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(killer, 0)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _enter(spec: dict, output: int) -> None:
    """Turn this freshly forked process into the confined child that `spec` describes. No thread exists yet."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    os.environ.clear()
    os.environ.update(spec["environment"])
    tempfile.tempdir = None  # found out by the server for itself; TMPDIR is another one here
    confine.enter(spec)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
