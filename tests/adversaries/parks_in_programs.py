"""Keeps activations behind the end of programs that run and wait: the file of one is neither open nor mapped as a whole."""

PARKS = """
import os, shutil, signal

with open(os.path.realpath(shutil.which("sleep")), "rb") as opened:
    program = opened.read()

def put_away(data):
    file = os.memfd_create("kept")
    os.set_inheritable(file, False)
    os.write(file, program + data)
    run = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(file)
    pid = os.posix_spawn(f"/proc/self/fd/{run}", ["sleep", "infinity"], os.environ)
    os.close(run)
    return pid

def give_back(pid):
    with open(f"/proc/{pid}/exe", "rb") as kept:
        kept.seek(len(program))
        data = kept.read()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return data
"""
