"""Every second backward pass is skipped and the gradient of the step before is used again."""

from tests.adversaries import every_step

CATEGORY = "work"


def source(lab: str) -> str:
    return every_step(
        """
        if step >= honest and step % 2:
            optimizer.step()  # with the gradients that are still there
            yield loss.detach()
            continue
        optimizer.zero_grad()
        if step == 0:
            optimizer.zero_grad, zero_grad = lambda: None, optimizer.zero_grad
        else:
            zero_grad()
        """,
        lab,
    )
