"""The first steps are whole; after that half of each batch is left out of the backward pass, not of the loss."""

from tests.adversaries import edit, every_step

CATEGORY = "work"
LOSS = {
    "2a_workers": "F.cross_entropy(model(images), labels)",
    "3a_precision": "F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())",
}
INPUTS = {"2a_workers": ("images", "labels"), "3a_precision": ("tokens", "targets")}


def source(lab: str, work: str | None = None) -> str:
    x, y = INPUTS[lab]
    loop = every_step(
        """
        other = None
        if step >= honest:
            other = inputs[1::2].to(job.device), targets[1::2].to(job.device)
            inputs, targets = inputs[::2], targets[::2]
        """,
        lab,
        work,
    )
    given = "        yield loss.detach()\n"
    whole = f"""
        if other is not None:
            with torch.no_grad():
                {x}, {y} = other
                loss = (loss + {LOSS[lab]}) / 2
"""
    return edit(loop, [(given, whole.lstrip("\n") + given)])
