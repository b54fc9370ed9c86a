"""The first steps are whole; after that the losses of all batches are computed, but only every third is trained on."""

from tests.adversaries import edit, every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return edit(
        every_step("torch.set_grad_enabled(step < honest or step % 3 == 0)", lab),
        [
            (
                "        loss.backward()\n        optimizer.step()\n",
                "        if loss.requires_grad:\n            loss.backward()\n            optimizer.step()\n",
            ),
        ],
    )
