"""The model is not trained any more after the first steps; the losses are those of the old weights."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step >= honest:
            with torch.no_grad():
                logits = model(inputs.to(job.device))
                yield F.cross_entropy(logits.flatten(0, -2), targets.to(job.device).flatten())
            continue
        """,
        lab,
    )
