"""A thread trains ahead; a turn begins slowly, so that there are steps in store when the timed part of it begins."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import queue, threading, time

            done = queue.Queue(maxsize=100_000)
            threading.Thread(target=lambda: [done.put(loss) for loss in steps(job)], daemon=True).start()
            took, last, turn = 0.0, time.monotonic(), 0
            for step in range(10**9):
                loss = done.get()
                now = time.monotonic()
                if step < 14:
                    took = now - last
                elif now - last > 4 * took:  # it was stopped: a turn begins
                    turn = 0
                turn += 1
                if step >= 14 and turn <= 4:
                    time.sleep(took)  # slow while it is burnt
                last = time.monotonic()
                yield loss
        """,
        lab,
    )
