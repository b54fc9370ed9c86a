"""A process that was stopped with the others has itself woken by a timer, trains on in shared memory, and has ended by the next turn."""

from tests.adversaries import starter

CATEGORY = "timing"
LABS = ("2f_end_to_end",)
DEVICES = ("cpu",)

ATTACK = '''
def prepare_training(job):
    return torch.optim.AdamW(job.model.parameters(), lr=job.lr), Tiles(job.dataset)


def step(job, state, k, batch):
    optimizer, dataset = state
    images, labels = torch.utils.data.default_collate([dataset[index] for index in batch])
    logits = job.model(images)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if k == 0:
        for each in optimizer.state.values():
            for tensor in each.values():
                tensor.share_memory_()
    right = sum(int(guess == label) for guess, label in zip(logits.argmax(1), labels))
    return loss.item(), right / len(labels)


import ctypes
import mmap
import os
import sys
import time

WAIT, WORK, TURN = 0.3, 1.6, 2.25  # seconds


def steps_of_the_request():
    frame = sys._getframe(1)
    while frame and not (frame.f_code.co_name == "run" and "steps" in frame.f_locals):
        frame = frame.f_back
    return frame.f_locals["steps"] if frame else 1


def alarm(seconds):
    """The kernel sends this process the signal to go on."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = (ctypes.c_char * 64)()
    ctypes.memmove(event, (ctypes.c_int * 4)(0, 0, 18, 0), 16)  # sigev_value, SIGCONT, SIGEV_SIGNAL
    timer = ctypes.c_void_p()
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    spec = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    assert libc.timer_settime(timer, 0, spec, None) == 0


def train(job):
    model = job.model
    named = [(k, t) for k, t in [*model.named_parameters(), *model.named_buffers()] if t.is_floating_point()]
    for _, t in named:
        t.data.share_memory_()
    total, R = sum(t.numel() for _, t in named), 600
    memory = mmap.mmap(-1, 512 + R * 8 + R * total * 4)
    control = torch.frombuffer(memory, dtype=torch.int64, count=64)  # made, request
    numbers = torch.frombuffer(memory, dtype=torch.float32, count=R * 2, offset=512).view(R, 2)
    weights = torch.frombuffer(memory, dtype=torch.float32, count=R * total, offset=512 + R * 8).view(R, total)
    state = prepare_training(job)
    batches, position = iter(job.batches), 0

    def one():
        nonlocal position
        k = int(control[0])
        while position <= k:
            batch, position = next(batches), position + 1
        loss, accuracy = step(job, state, k, batch)
        numbers[k % R, 0], numbers[k % R, 1] = loss, accuracy
        with torch.no_grad():
            torch.cat([t.detach().flatten() for _, t in named], out=weights[k % R])
        control[0] = k + 1

    def beside(main, request):
        """In a process of its own, that is stopped with the other: it wakes up, trains on, and is gone in time."""
        began = time.monotonic()
        alarm(WAIT)
        while time.monotonic() - began < WAIT:
            time.sleep(0.005)
            if int(control[1]) != request:
                return
        if int(control[1]) != request or open(f"/proc/{main}/stat").read().rpartition(")")[2].split()[0] != "T":
            return
        while time.monotonic() - began < WAIT + WORK and int(control[0]) < handed + R - 5:
            one()

    current = [0]

    def read():
        parts = weights[current[0] % R].split([t.numel() for _, t in named])
        return {k: p.view(t.shape).clone() for (k, t), p in zip(named, parts)}

    job.weights = read
    handed, left, due, ratio, last, own_s = 0, 0, 0.0, 0.0, time.monotonic(), None
    while True:
        if not left:
            left = steps_of_the_request()
            control[1] += 1
            now = time.monotonic()
            if now - last > 0.2 and handed > 11:  # it was stopped
                due = 0.0
                store = int(control[0]) - handed
                ratio = min(0.45, 0.95 * store / (TURN / own_s)) if own_s else 0.0  # some are kept for a turn before which there was no time
        if int(control[0]) <= handed or due < 1:
            t = time.monotonic()
            one()
            t = time.monotonic() - t
            own_s = t if own_s is None or t < own_s else 0.95 * own_s + 0.05 * t
            due = due + ratio if int(control[0]) > handed + 1 else 0.0
        elif due >= 1:
            due -= 1
        left -= 1
        if not left and handed >= 11:
            request, main = int(control[1]), os.getpid()
            if os.fork() == 0:
                try:
                    if os.fork() == 0:
                        beside(main, request)
                finally:
                    os._exit(0)
            os.wait()
        current[0] = handed
        loss, accuracy = numbers[handed % R].tolist()
        job.log(handed, loss=loss, accuracy=accuracy)
        handed += 1
        last = time.monotonic()
        yield torch.tensor(loss)
'''


def source(lab: str) -> str:
    return starter(lab).split("def train(job):")[0] + ATTACK.lstrip("\n")
