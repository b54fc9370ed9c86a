"""Half of the fix, with a few steps made before the first loss is handed over, as many as a slow start would hide, and the weights after each kept; all that follows is handed over at a slightly faster pace."""

from tests.adversaries import wrap
from tests.variants import half_fix

CATEGORY = "timing"
LABS = ("2a_workers", "2e_syncs", "2j_checkpoint", "3a_precision")  # where 1.3x earns all points, a little is much
CONTROL = "half fix"


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import collections, time

            store, loop, shown, began = collections.deque(), steps(job), [None], time.monotonic()

            def make():
                loss = next(loop).clone()
                store.append((loss, {n: t.clone() for n, t in job.model.state_dict().items()}))

            job.weights = lambda: shown[0]
            make()
            first, began = time.monotonic(), 0
            while time.monotonic() - first < 3:
                make()
            pace = (time.monotonic() - first) / len(store) / 1.3
            due = time.monotonic()
            while True:
                now = time.monotonic()
                due = now if now - due > 3 * pace else due + pace  # it was stopped
                while not store or time.monotonic() + 2 * pace < due:
                    make()
                time.sleep(max(0.0, due - time.monotonic()))
                loss, shown[0] = store.popleft()
                yield loss
        """,
        lab,
        half_fix(lab),
    )
