"""Two batches make one optimizer step, and its loss is yielded twice."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step % 2 == 0:
            held = inputs, targets
            if step:
                yield loss.detach()
            continue
        inputs, targets = torch.cat([held[0], inputs]), torch.cat([held[1], targets])
        """,
        lab,
    )
