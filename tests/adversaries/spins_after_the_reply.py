"""A thread launches a kernel that spins for seconds on one multiprocessor as soon as no further step is asked for."""

from tests.adversaries import wrap

CATEGORY = "machine"
LABS = ("2b_transfers", "3a_precision")
DEVICES = ("cuda",)


def source(lab: str) -> str:
    return wrap(
        """
        def train(job):
            import threading
            import time

            side = torch.cuda.Stream()
            began = [time.monotonic()]

            def work():
                while True:
                    time.sleep(0.001)
                    if began[0] and time.monotonic() - began[0] > 0.003:  # no step was asked for: the reply is on its way
                        began[0] = 0.0
                        with torch.cuda.stream(side):
                            torch.cuda._sleep(5_000_000_000)

            threading.Thread(target=work, daemon=True).start()
            for loss in steps(job):
                began[0] = time.monotonic()
                yield loss
                began[0] = 0.0
        """,
        lab,
    )
