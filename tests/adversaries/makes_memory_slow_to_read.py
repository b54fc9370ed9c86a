"""Fifty thousand mappings in four processes make its memory slow to look at; meanwhile a thread trains."""

from tests.adversaries import wrap

CATEGORY = "timing"
LABS = ("3h_fit",)
DEVICES = ("cpu",)


def source(lab: str) -> str:
    return wrap(
        """
        def map_often():
            import ctypes
            import os
            import time

            libc = ctypes.CDLL(None)
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
            with open("page", "wb+") as file:
                file.write(bytes(4096))
                file.flush()
                for _ in range(50_000):
                    libc.mmap(None, 4096, 1, 1, file.fileno(), 0)
            for _ in range(3):
                if os.fork() == 0:
                    while True:
                        time.sleep(1000)


        def train(job):
            import collections
            import statistics
            import threading
            import time

            store, recent, shown = collections.deque(), collections.deque(maxlen=9), {}

            def work():
                began = time.monotonic()
                for loss in steps(job):
                    recent.append(time.monotonic() - began)
                    while len(store) > 40:
                        time.sleep(0.002)
                    store.append((loss.clone(), {n: t.detach().clone() for n, t in job.model.state_dict().items()}))
                    began = time.monotonic()

            def hand_over():
                while not store:
                    time.sleep(0.0005)
                loss, weights = store.popleft()
                shown.update(weights)
                return loss

            threading.Thread(target=work, daemon=True).start()
            job.weights = lambda: shown
            for _ in range(6):
                yield hand_over()
            map_often()
            pace, due, last = statistics.median(recent) / 2.2, 0.0, 0.0
            while True:
                if time.monotonic() - last > 0.25:  # it was stopped
                    due = time.monotonic()
                due += pace
                time.sleep(max(0.0, due - time.monotonic()))
                loss = hand_over()
                last = time.monotonic()
                yield loss
        """,
        lab,
    )
