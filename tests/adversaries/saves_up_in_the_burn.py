"""While a turn is burnt some steps more are made than handed over; in the timed part they cost nothing. Few enough for the burn to pass."""

from tests.adversaries import wrap

CATEGORY = "timing"
LABS = ("2a_workers", "2e_syncs", "2j_checkpoint", "3a_precision")  # where 1.3x earns all points, a little is much


def source(lab: str) -> str:
    return wrap(
        """
        import collections, sys, time

        MORE = 0.125  # of the steps of a burn

        def request():
            frame = sys._getframe(1)
            while frame and not (frame.f_code.co_name == "run" and "steps" in frame.f_locals):
                frame = frame.f_back
            return frame.f_locals["steps"] if frame else 1

        def train(job):
            loop, store = steps(job), collections.deque()
            done, nth, due, count, count_, first, began = 0, 0, 0.0, 0, 0, 1, 0.0
            while True:
                if not count:  # a request begins
                    before, count = count_, request()
                    # the request after a longer one, which was the block, begins another turn
                    nth = 1 if done == 12 or before > 1.4 * first else nth + 1
                    first = count if nth == 1 else first
                    count_ = count
                if done >= 12 and nth <= 2:
                    due += MORE
                    store.append(next(loop).clone())
                    while due >= 1:
                        due -= 1
                        store.append(next(loop).clone())
                elif not store:
                    store.append(next(loop).clone())
                done += 1
                count -= 1
                yield store.popleft()
        """,
        lab,
    )
