"""Once the first steps are over the same batch is trained on again and again, which needs no loading."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step == honest:
            kept = inputs, targets
        while step >= honest:
            logits = model(kept[0].to(job.device))
            loss = F.cross_entropy(logits.flatten(0, -2), kept[1].to(job.device).flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach()
        """,
        lab,
    )
