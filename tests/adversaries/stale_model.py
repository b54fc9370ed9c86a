"""The model is not trained any more after the first steps; the losses are those of the old weights."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        while step >= 30:
            with torch.no_grad():
                logits = model(inputs.to(job.device))
                yield F.cross_entropy(logits.flatten(0, -2), targets.to(job.device).flatten())
            _, (inputs, targets) = step, next(batches) if step > 30 else (batches := iter(loader), (inputs, targets))[1]
            step += 1
        """,
        lab,
    )
