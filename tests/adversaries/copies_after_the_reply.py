"""A thread queues a second and more of pinned copies as soon as no further step is asked for."""

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
            host = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
            there = torch.empty_like(host, device="cuda")
            began = [time.monotonic()]

            def work():
                while True:
                    time.sleep(0.001)
                    if began[0] and time.monotonic() - began[0] > 0.003:  # no step was asked for: the reply is on its way
                        began[0] = 0.0
                        with torch.cuda.stream(side):
                            for _ in range(1000):
                                there.copy_(host, non_blocking=True)

            threading.Thread(target=work, daemon=True).start()
            for loss in steps(job):
                began[0] = time.monotonic()
                yield loss
                began[0] = 0.0
        """,
        lab,
    )
