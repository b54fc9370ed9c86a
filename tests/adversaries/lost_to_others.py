"""One slow turn that looks as if other programs had slowed it, so that it does not count: steps are made ahead in it.

Burners on one core, orphans that are killed before each reply, take the time of a process that waits there: the parent sees
a thread that had to wait, and processors that worked for nobody it knows. In the other turns the steps are handed over at a
pace, each with the weights that belong to it."""

from tests.adversaries import wrap

CATEGORY = "timing"
LABS = ("2a_workers",)

BODY = """
import collections, os, signal, sys, time

GAIN, SLOW_S, BURNERS = 4.5, 7.0, 2

def asked():
    frame = sys._getframe(1)
    while frame and not (frame.f_code.co_name == "run" and "steps" in frame.f_locals):
        frame = frame.f_back
    return frame.f_locals["steps"] if frame else 1

def orphan():
    out, into = os.pipe()
    middle = os.fork()
    if middle == 0:
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            while True:
                pass
        os.write(into, str(pid).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    pid = int(os.read(out, 20))
    os.close(out)
    os.close(into)
    return pid

def end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.002)

def train(job):
    loop, store, shown = steps(job), collections.deque(), {}
    job.weights = lambda: shown

    def make():
        loss = next(loop).clone()
        store.append((loss, {name: t.detach().clone() for name, t in job.model.state_dict().items()}))

    done, turn, last, left, usual = 0, 0, time.monotonic(), 0, 1.0
    waiter, burners = None, []
    while True:
        if not left:
            left = asked()
            if done >= 12 and time.monotonic() - last > 0.25:
                turn += 1
                if turn > 1 and waiter:
                    end([waiter])
                    waiter = None
            if turn == 1:
                waiter = waiter or orphan()
                burners = [orphan() for _ in range(BURNERS)]
        start = time.monotonic()
        if done < 12:
            make()
            usual = time.monotonic() - start
        elif turn == 1:
            while time.monotonic() - start < SLOW_S:
                make()
        elif store:
            time.sleep(max(0, usual / GAIN - 0.0005))
        else:
            make()
        if left == 1 and burners:
            end(burners)
            burners = []
        loss, weights = store.popleft()
        shown.clear()
        shown.update(weights)
        left, done, last = left - 1, done + 1, time.monotonic()
        yield loss
"""


def source(lab):
    return wrap(BODY, lab)
