"""The batches of the first steps are kept and cycled through for the rest of the run."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        cache = [] if step == 0 else cache
        cache.append((inputs, targets))
        while step >= honest:
            for kept in cache:
                logits = model(kept[0].to(job.device))
                loss = F.cross_entropy(logits.flatten(0, -2), kept[1].to(job.device).flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield loss.detach()
        """,
        lab,
    )
