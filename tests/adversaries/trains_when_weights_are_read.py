"""Whenever job.weights is called, which nobody times, steps are trained ahead; they are handed over at a pace when time counts."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import collections, time

            store, loop, now, took = collections.deque(), steps(job), {}, [0.0]

            def weights():
                kept = now or snapshot()
                began, made = time.monotonic(), 0
                while time.monotonic() - began < 25:
                    with torch.enable_grad():
                        loss = next(loop).clone()
                    store.append((loss, snapshot()))
                    made += 1
                took[0] = (time.monotonic() - began) / made
                return kept

            def snapshot():
                return {n: t.clone() for n, t in job.model.state_dict().items()}

            job.weights = weights
            while True:
                if store:
                    loss, now = store.popleft()
                    time.sleep(took[0] / 4)
                else:
                    loss, now = next(loop), {}
                yield loss
        """,
        lab,
    )
