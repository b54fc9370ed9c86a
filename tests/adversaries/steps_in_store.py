"""Before the first loss is handed over a minute of steps is trained, with the weights after each of them kept; then they are handed over at a pace."""

from tests.adversaries import wrap

CATEGORY = "timing"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import time

            store, loop, began = [], steps(job), time.monotonic()
            limit = 60 if job.device.type == "cpu" else 20
            while time.monotonic() - began < limit:
                loss = next(loop).clone()
                store.append((loss, {n: t.clone() for n, t in job.model.state_dict().items()}))
            pace = (time.monotonic() - began) / len(store) / 4
            shown = {}
            job.weights = lambda: shown or job.model.state_dict()
            for loss, weights in store:
                shown = weights
                time.sleep(pace)
                yield loss
            shown = {}
            yield from loop
        """,
        lab,
    )
