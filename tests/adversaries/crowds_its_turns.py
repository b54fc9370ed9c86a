"""Nine hundred ended processes make its turns begin and end slowly; another process, stopped last and awake first, trains in that time."""

from tests.adversaries import ahead, wrap

CATEGORY = "timing"
LABS, DEVICES = ("2a_workers",), ("cpu",)


def source(lab: str) -> str:
    crowd = """
        import os

        for _ in range(900):
            os.posix_spawn("/usr/bin/true", ["true"], {})
    """
    return ahead(
        crowd,
        wrap(
            """
            ROOM = 200  # steps that are kept


            def state(model):
                return dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if b.is_floating_point()}


            def train(job):
                import statistics
                import time

                import torch

                shapes = {name: tensor.shape for name, tensor in state(job.model).items()}
                kept = torch.zeros(ROOM, sum(shape.numel() for shape in shapes.values())).share_memory_()
                losses = torch.zeros(1 << 20, dtype=torch.float64).share_memory_()
                made, handed, took = (torch.zeros(1, dtype=torch.float64).share_memory_() for _ in range(3))
                if os.fork() == 0:
                    recent, began = [], time.monotonic()
                    for n, loss in enumerate(steps(job)):
                        recent = [*recent, time.monotonic() - began][-15:]
                        took[0] = statistics.median(recent)
                        while n - handed[0] >= ROOM - 2:
                            time.sleep(0.001)
                        torch.cat([tensor.detach().reshape(-1) for tensor in state(job.model).values()], out=kept[n % ROOM])
                        losses[n] = loss.item()
                        made[0] = n + 1
                        began = time.monotonic()

                def weights():
                    parts = kept[(int(handed[0]) - 1) % ROOM].split([shape.numel() for shape in shapes.values()])
                    return {name: part.view(shape).clone() for (name, shape), part in zip(shapes.items(), parts)}

                job.weights = weights
                first, pace, due, last = 12, 0.0, 0.0, 0.0
                for n in range(1 << 20):
                    if n >= first:
                        pace = pace or float(took[0]) / 1.36
                        if time.monotonic() - last > 0.25:  # it was stopped
                            due = time.monotonic()
                        due += pace
                        time.sleep(max(0.0, due - time.monotonic()))
                    while made[0] <= n:
                        time.sleep(0.0002)
                    handed[0] = n + 1
                    last = time.monotonic()
                    yield losses[n].float()
            """,
            lab,
        ),
    )
